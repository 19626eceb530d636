"""A script from the time of torch.distributed.launch that was kept alive: local_rank -1 means one process."""

import argparse
import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)


def train(args, dataset, model):
    sampler = RandomSampler(dataset) if args.local_rank == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.batch_size)
    total = len(loader) // args.accumulate * args.epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, total)
    if args.local_rank != -1:
        model = DistributedDataParallel(
            model, device_ids=[args.local_rank], output_device=args.local_rank
        )
    for epoch in range(args.epochs):
        if args.local_rank != -1:
            sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            if args.local_rank != -1:
                model.require_backward_grad_sync = (step + 1) % args.accumulate == 0
            loss = model(**batch)[0] / args.accumulate
            loss.backward()
            if (step + 1) % args.accumulate == 0:
                optimizer.step()
                scheduler.step()
                model.zero_grad()
        if args.local_rank in [-1, 0]:
            bare = model.module if hasattr(model, "module") else model
            bare.save_pretrained(f"checkpoint-{epoch}")
            torch.save(optimizer.state_dict(), f"checkpoint-{epoch}/optimizer.pt")


def evaluate(args, dataset, model):
    hits = 0
    model.eval()
    for batch in DataLoader(
        dataset, sampler=SequentialSampler(dataset), batch_size=args.batch_size
    ):
        with torch.no_grad():
            hits += (model(**batch).logits.argmax(-1) == batch["labels"]).sum().item()
    return hits / len(dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1))
    )
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    args = parser.parse_args()
    if args.local_rank == -1:
        device = torch.device("cuda")
    else:
        torch.cuda.set_device(args.local_rank)
        device = torch.device("cuda", args.local_rank)
        torch.distributed.init_process_group(backend="nccl")
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    AutoTokenizer.from_pretrained("bert-base-cased")
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
    if args.local_rank == 0:
        torch.distributed.barrier()
    model.to(device)
    train(args, torch.load("train.pt"), model)
    if args.local_rank in [-1, 0]:
        print(evaluate(args, torch.load("dev.pt"), model))


if __name__ == "__main__":
    main()
