"""Prints how many ranks the demo starts: nothing on a machine with GPUs (one per GPU), else two."""

from paceline import env
from paceline.machine import gpus

num_gpus, _ = gpus.count(env.read(env.CUDA_DEVICES))
print("" if num_gpus else "--nproc-per-node 2")
