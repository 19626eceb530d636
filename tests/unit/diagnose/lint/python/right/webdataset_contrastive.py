"""Shards of a web dataset are divided by node and worker; the loss gathers features with gradients on all ranks."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
import webdataset as wds
from model import build
from torch.nn.parallel import DistributedDataParallel as DDP


def gather_features(features):
    return torch.cat(torch.distributed.nn.all_gather(features), dim=0)


def is_master(args, local=False):
    return args.local_rank == 0 if local else args.rank == 0


def train_one_epoch(model, loader, optimizer, scaler, args):
    for i, (images, texts) in enumerate(loader):
        a, b = model(images.cuda(), texts.cuda())
        loss = (gather_features(a) @ gather_features(b).T).diagonal().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if is_master(args) and i % 100 == 0:
            print(i, loss.item())


def main(args):
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl", init_method="env://")
    data = (
        wds.WebDataset(args.shards, nodesplitter=wds.split_by_node)
        .decode("pil")
        .to_tuple("jpg", "txt")
    )
    loader = torch.utils.data.DataLoader(data.batched(64), batch_size=None, num_workers=4)
    model = DDP(build().cuda(), device_ids=[args.local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler, args)
        if is_master(args):
            torch.save(
                {"model": model.module.state_dict()}, os.path.join(args.out, f"epoch_{epoch}.pt")
            )
    dist.barrier()
