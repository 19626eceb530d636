"""datasets: a stream shared out with split_dataset_by_node."""

import torch
import torch.distributed as dist
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
torch.manual_seed(0)
table = Dataset.from_dict({"x": [[index / 128] * 4 for index in range(128)]}).to_iterable_dataset(
    num_shards=4
)
stream = split_dataset_by_node(
    table.shuffle(seed=1, buffer_size=32).with_format("torch"), dist.get_rank(), 2
)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    stream.set_epoch(epoch)
    for batch in DataLoader(stream, batch_size=16):
        optimizer.zero_grad()
        model(batch["x"]).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
