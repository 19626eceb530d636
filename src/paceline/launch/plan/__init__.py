"""What is decided before anything starts: options, script, ports, what Slurm says. No torch."""
