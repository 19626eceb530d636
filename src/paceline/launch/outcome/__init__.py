"""From rank exits and evidence: the root cause, the final report, and how to resume the run."""
