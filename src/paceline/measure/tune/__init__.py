"""Find the fastest loader settings of a script or dataset: ``paceline tune``."""
