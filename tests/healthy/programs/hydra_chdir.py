"""Hydra changes into a folder of its own for the job (Hydra documentation: working directory)."""

import hydra
import torch
import torch.distributed as dist
from hydra.core.config_store import ConfigStore
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@hydra.main(version_base=None, config_path=None, config_name="train")
def main(config):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"model-{dist.get_rank()}.pt")
    dist.destroy_process_group()


ConfigStore.instance().store(
    "train",
    {"lr": 0.1, "hydra": {"job": {"chdir": True}, "run": {"dir": "outputs/${oc.env:RANK}"}}},
)
if __name__ == "__main__":
    main()
