import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
digits = datasets.MNIST("data", transform=transforms.ToTensor())
held_out = datasets.MNIST("data", train=False, transform=transforms.ToTensor())
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
model = DistributedDataParallel(net, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
if os.path.exists("model.pt"):
    state = torch.load("model.pt", map_location="cpu")
    model.module.load_state_dict(state)
sampler = DistributedSampler(digits)
loader = DataLoader(digits, batch_size=64, sampler=sampler)

for epoch in range(10):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
