"""Three stages with isend and irecv, micro-batches in flight."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
stage = nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(5):
        sent = []
        for micro in range(4):
            x = torch.randn(4, 8)
            if rank > 0:
                dist.irecv(x, rank - 1, tag=micro).wait()
            if rank < world - 1:
                sent.append(dist.isend(stage(x), rank + 1, tag=micro))
        for work in sent:
            work.wait()
dist.barrier()

dist.destroy_process_group()
