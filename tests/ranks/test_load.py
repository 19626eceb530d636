"""Weights of others reach every rank, whole or in shards, and are exported once for all."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from paceline import Session
from paceline.errors import PacelineError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def save_pretrained(self, folder, state_dict=None):
        save_file(state_dict or self.state_dict(), f"{folder}/model.safetensors")


def load(folder, strategy):
    """Load and export; return the values of the model, and what the other way of loading says."""
    session = Session(strategy=strategy)
    torch.manual_seed(session.rank)
    model = Net()
    model, _ = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.load(f"{folder}/source.ckpt")
    session.export(model, f"{folder}/out")
    missing = f"{folder}/rank-{session.rank}.pt"
    if session.is_main:
        torch.save(Net().state_dict(), missing)
    try:
        session.load(missing)
    except PacelineError as error:
        return values(model), error.finding.name
    return values(model), ""


def values(model):
    with torch.no_grad():
        return model(torch.eye(4, device=next(model.parameters()).device)).tolist()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_have_the_weights_of_the_file(ranks, tmp_path, strategy):
    torch.manual_seed(7)
    source = Net()
    state = {f"model.{key}": value for key, value in source.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "source.ckpt")
    results = ranks.run(load, str(tmp_path), strategy, world_size=2)
    assert results == [(values(source), "checkpoint-missing")] * 2
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert {key: value.tolist() for key, value in exported.items()} == {
        key: value.tolist() for key, value in source.state_dict().items()
    }
