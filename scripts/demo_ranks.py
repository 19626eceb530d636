"""Prints how many ranks the demo starts: nothing on a machine with GPUs (one per GPU), else two."""

from paceline import env
from paceline.machine import host

gpus, _ = host.count_gpus(env.read(env.CUDA_DEVICES))
print("" if gpus else "--nproc-per-node 2")
