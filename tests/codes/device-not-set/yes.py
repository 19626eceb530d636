import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

dist.init_process_group("nccl")
rank = dist.get_rank()
digits = datasets.MNIST("data", transform=transforms.ToTensor())
held_out = datasets.MNIST("data", train=False, transform=transforms.ToTensor())
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(digits)
loader = DataLoader(digits, batch_size=64, sampler=sampler)

for epoch in range(10):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
