"""Native DDP under torchrun; works as a single process, too."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def reduce_sum(tensor):
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def train(loader, model, criterion, optimizer, device):
    model.train()
    for images, target in loader:
        loss = criterion(model(images.to(device)), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, model, device):
    model.eval()
    totals = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, target in loader:
            totals[0] += (model(images.to(device)).argmax(dim=1) == target.to(device)).sum()
            totals[1] += target.numel()
    correct, count = reduce_sum(totals).tolist()
    return correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    if distributed:
        dist.init_process_group("nccl")

    model = models.resnet50().to(device)
    if distributed:
        model = DistributedDataParallel(model, device_ids=[local_rank])
    model_to_save = model.module if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train_set = datasets.ImageFolder(os.path.join(args.data, "train"), transforms.ToTensor())
    val_set = datasets.ImageFolder(os.path.join(args.data, "val"), transforms.ToTensor())
    if distributed:
        train_sampler = DistributedSampler(train_set)
        val_sampler = DistributedSampler(val_set, shuffle=False, drop_last=True)
    else:
        train_sampler = val_sampler = None
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=(train_sampler is None), sampler=train_sampler
    )
    val_loader = DataLoader(val_set, args.batch_size, shuffle=False, sampler=val_sampler)

    best = 0.0
    for epoch in range(args.epochs):
        if distributed:
            train_sampler.set_epoch(epoch)
        train(train_loader, model, nn.CrossEntropyLoss(), optimizer, device)
        accuracy = validate(val_loader, model, device)
        if not distributed or dist.get_rank() == 0:
            print(f"epoch {epoch}: {accuracy:.4f}")
            if accuracy > best:
                torch.save({"epoch": epoch, "state_dict": model_to_save.state_dict()}, "best.pt")
        best = max(best, accuracy)


if __name__ == "__main__":
    main()
