"""From rank exits and evidence to the root cause, the final report and how the run is resumed."""
