"""Facts about this computer: CPUs, GPUs, addresses, software versions, and Slurm's answers."""
