"""An embedding that is also the head, beside a frozen encoder."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
tokens = TensorDataset(torch.randint(50, (256, 6)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.frozen = nn.Embedding(50, 16), nn.Linear(16, 16).requires_grad_(False)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.frozen(self.embed(x)).tanh())


model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
sampler = DistributedSampler(tokens)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(tokens, 16, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()

dist.destroy_process_group()
