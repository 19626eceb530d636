"""An iterable dataset that divides its files by rank and worker."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        worker = get_worker_info()
        share = dist.get_rank() * worker.num_workers + worker.id
        for path in self.files[share :: dist.get_world_size() * worker.num_workers]:
            with open(path) as lines:
                yield from (torch.tensor([float(x) for x in line.split()]) for line in lines)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    train_loader = DataLoader(Lines(os.listdir("parts")), batch_size=32, num_workers=4)
    model = DistributedDataParallel(nn.Linear(8, 1).to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(4):
        for batch in train_loader:
            loss = model(batch.to(local_rank)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        if dist.get_rank() == 0:
            print("epoch", epoch)


if __name__ == "__main__":
    main()
