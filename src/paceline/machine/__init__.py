"""Facts about this computer: CPUs, GPUs, addresses, versions of software, and what Slurm answers."""
