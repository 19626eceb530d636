"""Classify scikit-learn's 1,797 handwritten digits with PyTorch's DistributedDataParallel.

    python examples/digits_ddp.py
    torchrun --standalone --nproc-per-node 2 examples/digits_ddp.py
    paceline run --nproc-per-node 2 examples/digits_ddp.py
    paceline submit --nodes 2 examples/digits_ddp.py

At least 95 % of the 360 held-out digits are classified correctly, on CPUs and on GPUs.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

local_rank = int(os.environ.get("LOCAL_RANK", "0"))
gpu = torch.device("cuda", local_rank) if torch.cuda.is_available() else None
device = gpu or torch.device("cpu")
# torchrun and paceline run set RANK; under plain python this process is the only one.
alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("nccl" if gpu else "gloo", device_id=gpu, **alone)
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8], 0 to 1
y, held_out = torch.tensor(digits.target), torch.arange(len(x)) % 5 == 0  # every fifth sample
train_set, test_set = (TensorDataset(x[part], y[part]) for part in (~held_out, held_out))
sampler = DistributedSampler(train_set, shuffle=True)
train_loader = DataLoader(train_set, batch_size=32 // world_size, sampler=sampler)
test_share = range(rank, len(test_set), world_size)  # a sampler would repeat samples to fill it
test_loader = DataLoader(Subset(test_set, test_share), batch_size=256)

net = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
).to(device)
model = DistributedDataParallel(net, device_ids=[gpu] if gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(10):
    sampler.set_epoch(epoch)  # another order in each epoch
    for images, labels in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    correct = torch.zeros((), dtype=torch.long, device=device)
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (net(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    dist.all_reduce(correct)  # the sum over all ranks, not rank 0's part
    if rank == 0:
        percent = 100 * correct.item() / len(test_set)
        print(f"epoch {epoch + 1}: {len(test_set)} samples, accuracy {percent:.2f} %")
dist.destroy_process_group()
