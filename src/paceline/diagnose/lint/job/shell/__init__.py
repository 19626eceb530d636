"""Parse and interpret the shell code of a job script, without running it."""
