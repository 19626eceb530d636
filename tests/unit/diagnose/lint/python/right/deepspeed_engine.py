"""DeepSpeed: the engine accumulates, steps its scheduler and saves on all ranks."""

import argparse

import deepspeed
import torch
from dataset import Pairs
from model import Net
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
net = Net()
engine, optimizer, _, scheduler = deepspeed.initialize(
    args=args, model=net, model_parameters=net.parameters()
)
data = Pairs()
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu(), sampler=sampler)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(engine(x.to(engine.device)), y.to(engine.device))
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("checkpoints", tag=f"epoch{epoch}")
    if torch.distributed.get_rank() == 0:
        print("epoch", epoch, loss.item())
