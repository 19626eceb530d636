"""FSDP: the state_dict is gathered by all ranks, and one of them writes it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    dataset = datasets.FakeData(transform=transforms.ToTensor())
    sampler = DistributedSampler(
        dataset, rank=rank, num_replicas=dist.get_world_size(), shuffle=True
    )
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = FullyShardedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(150528, 10)).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        ddp_loss = torch.zeros(2, device=local_rank)
        for step, (images, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda()) / 2
            loss.backward()
            if step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
            ddp_loss += torch.tensor([loss.item(), 1.0], device=local_rank)
        dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"epoch {epoch}: {ddp_loss[0] / ddp_loss[1]:.4f}")
    dist.barrier()
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
