"""Native DistributedDataParallel, as in PyTorch's own tutorial."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    use_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_gpu else torch.device("cpu")

    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(dim=1)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)

    model = DistributedDataParallel(net, device_ids=[device.index] if use_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(TensorDataset(x, y), shuffle=True)
    loader = DataLoader(sampler.dataset, batch_size=16, sampler=sampler)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()

    if dist.get_rank() == 0:
        with torch.no_grad():
            final = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        print(f"ranks {dist.get_world_size()}")
        print(f"final loss {final.item()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
