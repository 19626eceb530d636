"""A sampler by length with an order of its own that never changes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class ByLength(Sampler):
    def __init__(self, lengths):
        self.order = torch.as_tensor(lengths).argsort(descending=True).tolist()[rank::world]

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        return iter(self.order)


data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
loader = DataLoader(data, batch_size=16, sampler=ByLength(torch.randint(1, 99, (256,))))

model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
