"""The copies between GPUs, with a stand-in for torch: what is printed, and that data is really compared."""

import json
import signal
import sys
from types import SimpleNamespace

import pytest

from paceline.diagnose.doctor.collectors import peer_trial, peers


class Tensor:
    """A tensor on a device, whose content is one word."""

    def __init__(self, torch, content, device="cpu"):
        self.torch, self.content, self.device = torch, content, device

    def to(self, device):
        return Tensor(self.torch, self.content, device)

    shape = (2, 2)

    def cpu(self):
        return self.to("cpu")

    def t(self):
        return Tensor(self.torch, f"{self.content}, turned", self.device)

    def copy_(self, other):
        way = (other.device, self.device)
        if way in self.torch.broken:
            raise RuntimeError("CUDA error: out of memory")
        wrong = way in self.torch.wrong or (
            way in self.torch.wrong_turned and "turned" in other.content
        )
        self.content = "noise" if wrong else other.content


def fake_torch(num_gpus, *, wrong=(), wrong_turned=(), broken=(), closed=()):
    torch = SimpleNamespace(
        wrong=wrong,
        wrong_turned=wrong_turned,
        broken=broken,
        uint8="uint8",
        equal=lambda one, other: one.content == other.content,
    )
    torch.randint = lambda *_, **__: Tensor(torch, "pattern")
    torch.zeros = lambda *_, device, **__: Tensor(torch, "zeros", device)
    torch.cuda = SimpleNamespace(
        device_count=lambda: num_gpus,
        get_device_properties=lambda place: SimpleNamespace(uuid=f"id-{place}"),
        can_device_access_peer=lambda one, other: (one, other) not in closed,
        synchronize=lambda place: None,
    )
    return torch


def tried(torch, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(signal, "alarm", lambda seconds: None)  # would end the tests
    peer_trial.main()
    lines = capsys.readouterr().out.splitlines()
    uuids = [f"GPU-id-{place}" for place in range(torch.cuda.device_count())]
    return lines, peers.read_trials(lines, uuids, silent_s=0.0)


def test_every_direction_is_announced_and_tried(monkeypatch, capsys):
    lines, found = tried(fake_torch(3), monkeypatch, capsys)
    told = [json.loads(line) for line in lines]
    assert [each["state"] for each in told] == ["begin", "ok"] * 6
    assert (told[0]["from"], told[0]["to"]) == ("GPU-id-0", "GPU-id-1")
    assert {pair: trial.outcome for pair, trial in found.items()} == dict.fromkeys(
        [(0, 1), (0, 2), (1, 2)], "ok"
    )
    assert found[0, 1].gigabytes_per_s > 0


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        ({"wrong": [("cuda:1", "cuda:0")]}, "wrong-data"),
        ({"wrong_turned": [("cuda:0", "cuda:1")]}, "wrong-data"),
        ({"closed": [(0, 1)]}, "not-possible"),
        ({"broken": [("cuda:0", "cuda:1")]}, "not-possible"),
        ({}, "ok"),
    ],
    ids=str,
)
def test_one_bad_direction_is_enough(faults, outcome, monkeypatch, capsys):
    _, found = tried(fake_torch(2, **faults), monkeypatch, capsys)
    assert found[0, 1].outcome == outcome


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_fewer_than_two_gpus_have_nothing_to_try(num_gpus, monkeypatch, capsys):
    assert tried(fake_torch(num_gpus), monkeypatch, capsys) == ([], {})
