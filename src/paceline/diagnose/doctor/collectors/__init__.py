"""Collectors: each reads a part of the machine, decides nothing, and omits what it cannot read.

gather      collect all facts about this machine, each part with a timeout; one failure affects
            one part
gpus        collect GPUs, their driver and the links between them from NVML
host        collect the kind of machine: host name, virtual machine or container, and Slurm's
            step
network     collect RDMA ports, and the libraries that NCCL needs to use them
peer_trial  copy data between every two GPUs and verify it; ``peers`` runs this in a child that
            it can kill
peers       try a copy between every two GPUs in a child process, because a broken link can
            hang forever
processes   collect processes: holders of GPUs, leftovers of earlier runs, and running loader
            workers
"""
