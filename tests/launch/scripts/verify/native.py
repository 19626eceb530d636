"""Training in native DistributedDataParallel, right unless ``--mistake`` names what is wrong with it."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--mistake", default="")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--scaled", action="store_true")
args = parser.parse_args()
mistake = args.mistake

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if mistake != "other-seeds":
    torch.manual_seed(7)
features = torch.randn(192, 8, generator=torch.Generator().manual_seed(1))
labels = (features.sum(dim=1) > 0).long()
train = TensorDataset(features, labels)
held_out = TensorDataset(features[:101] + 0.5, labels[:101])

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
by_hand = mistake in ("other-seeds", "sum-of-gradients")
model = net if by_hand else DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (world if args.scaled else 1))
if mistake == "no-sampler":
    torch.manual_seed(rank)
    sampler = None
else:
    sampler = DistributedSampler(train, seed=3)
loader = DataLoader(train, args.batch_size, sampler=sampler, shuffle=sampler is None)
epochs = 3
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
if mistake == "padded":
    shares = DataLoader(held_out, 16, sampler=DistributedSampler(held_out, shuffle=False))
else:
    shares = DataLoader(Subset(held_out, range(rank, len(held_out), world)), 16)

for epoch in range(epochs):
    if sampler is not None and mistake != "no-set-epoch":
        sampler.set_epoch(epoch)
    model.train()
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if by_hand:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 1 if mistake == "sum-of-gradients" else world
        optimizer.step()
        for _ in range(world if mistake == "scheduler" else 1):
            scheduler.step()
        if mistake == "drift" and rank == 1 and epoch == 0 and number == 2:
            with torch.no_grad():
                net[0].bias.add_(0.01)
    model.eval()
    figures = torch.zeros(2)
    with torch.no_grad():
        for x, y in shares:
            figures += torch.tensor([(net(x).argmax(1) == y).sum(), len(y)])
    if mistake != "own-share":
        dist.all_reduce(figures)
    if rank == 0:
        print(f"epoch {epoch}: accuracy {figures[0] / figures[1]:.4f}", flush=True)

dist.destroy_process_group()
