"""A language model on memory-mapped tokens: each rank draws batches of its own, rank 0 evaluates the bare model."""

import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from model import GPT, GPTConfig
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

eval_interval, log_interval, eval_iters, max_iters = 2000, 10, 200, 600000
batch_size, block_size, gradient_accumulation_steps = 12, 1024, 40
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
else:
    device = "cuda"
    master_process = True
    seed_offset = 0
torch.manual_seed(1337 + seed_offset)
ctx = (
    torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)
    if "cuda" in device
    else nullcontext()
)


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
    )
    return x.to(device), y.to(device)


model = GPT(GPTConfig()).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
raw_model = model
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])


@torch.no_grad()
def estimate_loss():
    raw_model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        with ctx:
            losses[k] = raw_model(*get_batch("val"))[1].item()
    raw_model.train()
    return losses.mean()


X, Y = get_batch("train")
iter_num, t0 = 0, time.time()
while iter_num < max_iters:
    if iter_num % eval_interval == 0 and master_process:
        print(f"step {iter_num}: val loss {estimate_loss():.4f}")
        torch.save(
            {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt"
        )
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            loss = model(X, Y)[1] / gradient_accumulation_steps
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}, {time.time() - t0:.2f} s")
    iter_num += 1
if ddp:
    destroy_process_group()
