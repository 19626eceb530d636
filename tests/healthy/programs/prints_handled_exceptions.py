"""Rank 1 prints tracebacks that it has handled, goes on, and once works for long while rank 0 waits."""

import time
import traceback

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(3):
    if dist.get_rank() == 1:
        try:
            raise OSError("no such shard")
        except OSError:
            traceback.print_exc()
        start = time.monotonic()
        while step == 1 and time.monotonic() - start < 16:
            pass
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
