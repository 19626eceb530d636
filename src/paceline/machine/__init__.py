"""Facts about this computer: CPUs, GPUs, addresses, software versions, and Slurm's answers.

accelerator         the accelerator of this process through ``torch.accelerator``: CUDA, ROCm,
                    XPU or another
agreement           decide whether ranks hold the same parameters, optimizer state and settings
compiled            keep our hooks out of torch.compile: none of them is traced, breaks a graph
                    or makes Dynamo warn
cpus                count the CPUs that this process may use: affinity and cgroup quota
deadline            call a function with a deadline, because a driver or a server may hang
files               read the small files of ``/proc`` and ``/sys``; unreadable files count as
                    empty
fingerprints        fingerprints of what all ranks must hold alike; they tell rounding from a
                    difference
gpus                count the GPUs that ranks would use: their models, and which of them are
                    visible to CUDA
host                read the facts about this machine for the plan: CPUs, GPUs, addresses,
                    owners of ports
interfaces          read the network interfaces of this machine: addresses, rates, hardware
nccl_lists          parse NCCL's lists of interfaces and cards: ``eth``, ``=eth0,ib0``,
                    ``^lo``, ``mlx5_0:1``
nodeaddr            find the address of a node from its Slurm name, which may not resolve
nvml                query NVIDIA's management library (NVML); unavailable answers are None
own_process         start paceline's own processes, without the current folder on ``sys.path``
own_world           find out the world of this process: its environment, and what is known on
                    this machine only
parameters          find the names of parameters, and those that are shards, without access to
                    the model
processes           read the processes of this machine from the kernel: commands, and
                    ``/proc/PID/status``
python_fork         the CPython bug that lets forked DataLoader workers wait forever, and the
                    affected versions
references          keep an object of Python until the process ends
signed_store        the store as launchers and ranks use it: sign what is written, ignore what
                    has no signature
signing             sign what launchers and ranks write for each other: only processes with the
                    secret are believed
slurm_commands      run Slurm's commands with a timeout
sockets             count the bytes that processes have sent and received over TCP (netlink,
                    ``sock_diag``)
software            versions of Python, torch, CUDA, NCCL and paceline: as installed, or as
                    loaded by this process
system              calls to the operating system that Python's library lacks, such as Linux's
                    prctl
torch_private       the private names of torch that paceline uses, by the module or class that
                    has them
torch_requirements  check that torch is installed, can be loaded and is recent enough
ulimits             read the limits of this process, as ``ulimit`` shows them
user_code           tell the user's code from libraries: by where a file is, and by who has
                    installed it
"""
