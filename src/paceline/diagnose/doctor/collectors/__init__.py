"""Collectors: each reads a part of the machine, decides nothing, and omits what it cannot read.

gather      collect all facts about this machine, each part with a timeout; one failure affects
            one part
gpus        collect GPUs, their driver and links from NVML, their errors from the kernel log
host        collect the kind of machine, the limits of this process, and settings of
            libraries
network     collect RDMA ports, and the libraries that NCCL needs to use them
peer_trial  copy data between every two GPUs and verify it; ``peers`` runs this in a child that
            it can kill
peers       collect what affects traffic between GPUs: bridges above them, and a copy between
            every two
processes   collect processes: holders of GPUs, leftovers of earlier runs, and running loader
            workers
topology    read the matrix of ``nvidia-smi topo -m``, pasted or in a log: GPUs and the links
            between them
"""
