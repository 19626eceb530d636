"""webdataset: shards written by rank 0, shared out by node and shuffled."""

import torch
import torch.distributed as dist
import webdataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
if dist.get_rank() == 0:
    with webdataset.ShardWriter("shard-%02d.tar", maxcount=32, verbose=0) as writer:
        for index in range(128):
            writer.write({"__key__": f"{index:04}", "x.cls": index % 7})
dist.barrier()
data = webdataset.WebDataset(
    "shard-{00..03}.tar", shardshuffle=False, nodesplitter=webdataset.split_by_node
)
loader = webdataset.WebLoader(data.shuffle(16).decode().to_tuple("x.cls"), batch_size=8)
model = DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (labels,) in loader:
    optimizer.zero_grad()
    model(labels.float().reshape(-1, 1)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
