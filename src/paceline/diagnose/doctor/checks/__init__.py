"""Checks of a machine: each turns the facts about one part into findings.

asked       parse the settings of CUDA and NCCL as these libraries do: GPUs, versions, switches
gpus        check each GPU: is it healthy, free, visible and awake?
interfaces  check network interfaces: which do NCCL and gloo use, and are sockets fast enough?
judge       run all checks on the facts about a machine, and sort the findings
limits      check the limits of a process: shared memory, open files, stack, CPUs, disks
links       check the links between GPUs: peer-to-peer, NVLink, PCI access control, nearby CPUs
rdma        check RDMA (InfiniBand, RoCE, EFA): is it present, and would NCCL use it?
software    check software, its settings and leftovers: driver against torch, earlier runs
visibility  check which GPUs of a machine are visible to CUDA in this process
"""
