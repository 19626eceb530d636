"""Whoever sets up the ranks, tells the sampler and brings values together sits in another file."""

import argparse

import torch
import utils
from engine import evaluate, train_one_epoch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler
from torchvision import datasets, models


def main(args):
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    train_set = datasets.CIFAR10(args.data)
    val_set = datasets.CIFAR10(args.data, train=False)
    if args.distributed:
        train_sampler = DistributedSampler(train_set)
        val_sampler = DistributedSampler(val_set, shuffle=False)
    else:
        train_sampler = RandomSampler(train_set)
        val_sampler = SequentialSampler(val_set)
    train_loader = DataLoader(
        train_set, batch_sampler=torch.utils.data.BatchSampler(train_sampler, 2, drop_last=True)
    )
    val_loader = DataLoader(val_set, batch_size=1, sampler=val_sampler)
    model = models.resnet18().to(device)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, optimizer, train_loader, device, epoch)
        utils.save_on_master({"model": model_without_ddp.state_dict()}, "model.pth")
        evaluate(model, val_loader, device=device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=".")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--lr", type=float, default=0.02)
    main(parser.parse_args())
