"""Loops on raw DDP, Fabric and Accelerate that are stopped on real ranks, and resumed.

What they train on as many ranks is bit for bit what it would have been in float64, and each sample comes once.
"""

import itertools
import os
import signal
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import paceline

LIBRARIES = tuple(
    name for name in ("lightning.fabric", "accelerate") if find_spec(name.partition(".")[0])
)
LENGTH, BATCH, EPOCHS = 61, 2, 3


class Samples(Dataset):
    """Rows with noise, so that the random state is part of what is trained."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        row = torch.full((3,), float(index), dtype=torch.float64) / LENGTH
        return index, row + 0.1 * torch.randn(3, dtype=torch.float64)


def raw(net, optimizer):
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
        sampler = DistributedSampler(Samples())
        model = DistributedDataParallel(net)
    else:
        model, sampler = net, DistributedSampler(Samples(), 1, 0)
    loader = DataLoader(Samples(), BATCH, sampler=sampler)
    return model, optimizer, loader, torch.Tensor.backward


def fabric(net, optimizer):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    devices = int(os.environ["WORLD_SIZE"])
    made = Fabric(
        accelerator="cpu", devices=devices, strategy="ddp", plugins=TorchElasticEnvironment()
    )
    made.launch()
    model, optimizer = made.setup(net, optimizer)
    loader = made.setup_dataloaders(DataLoader(Samples(), BATCH, shuffle=True))
    return model, optimizer, loader, made.backward


def accelerated(net, optimizer):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)  # of the job before
    GradientState._reset_state()
    made = Accelerator(cpu=True)
    loader = DataLoader(Samples(), BATCH, shuffle=True)
    model, optimizer, loader = made.prepare(net, optimizer, loader)
    return model, optimizer, loader, made.backward


KINDS = {"raw": raw, "fabric": fabric, "accelerate": accelerated}


def train(kind, folder, stop_at, apart=1):
    """Train to the end, or until a signal after a step, 0 for none.

    The signal comes ``apart`` steps later to each further rank. Returns samples by epoch,
    parameters, and the number of steps.
    """
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1)).double()
    model, optimizer, loader, backward = KINDS[kind](net, torch.optim.AdamW(net.parameters()))
    torch.manual_seed(1 + rank)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(
        getattr(optimizer, "optimizer", optimizer), 0.9
    )
    run = paceline.preemptible(model, optimizer, scheduler, loader=loader, run_dir=folder)
    taken = {}
    try:
        for epoch in range(run.epoch, EPOCHS):
            taken[epoch] = []
            if kind == "raw":
                loader.sampler.set_epoch(epoch)
            for indices, rows in loader:
                optimizer.zero_grad()
                backward(model(rows).square().mean())
                optimizer.step()
                taken[epoch] += indices.tolist()
                if stop_at and run.step == stop_at + apart * rank:
                    os.kill(os.getpid(), signal.SIGTERM)
            scheduler.step()
    except SystemExit as ended:
        assert ended.code == 75, ended
        assert stop_at
    else:
        assert run.step > 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    return taken, [value.tolist() for value in net.parameters()], run.step


def skip_without(kind):
    library = {"fabric": "lightning", "accelerate": "accelerate"}.get(kind, "torch")
    if find_spec(library) is None:  # not by importing it here, which sets variables
        pytest.skip(f"{library} is not installed")


def joined(*parts):
    """Samples by epoch of runs that continued each other, of one rank."""
    epochs = sorted({epoch for part in parts for epoch in part})
    return {epoch: [index for part in parts for index in part.get(epoch, [])] for epoch in epochs}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop_at", [2, 13, 20])
def test_as_many_ranks_compute_the_same_bit_for_bit(library_ranks, tmp_path, kind, stop_at):
    skip_without(kind)

    def start(name, stop):
        folder = str(tmp_path / name)
        return library_ranks.run(train, kind, folder, stop, world_size=2, launched=True)

    whole = start("whole", 0)
    first, second = start("run", stop_at), start("run", 0)
    assert first[0][2] == first[1][2] in range(stop_at + 1, stop_at + 5)
    for rank in range(2):
        assert joined(first[rank][0], second[rank][0]) == whole[rank][0]
        assert second[rank][1:] == whole[rank][1:]


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [("raw", 2, 3), ("raw", 3, 1), ("fabric", 3, 2), ("accelerate", 2, 3)],
)
def test_on_another_number_of_ranks_each_sample_comes_once(
    library_ranks, tmp_path, kind, before, now
):
    skip_without(kind)

    def start(stop, world_size):
        folder = str(tmp_path / "run")
        return library_ranks.run(train, kind, folder, stop, 0, world_size=world_size, launched=True)

    first = start(2, before)
    assert first[0][2] < LENGTH // BATCH // before
    second = start(first[0][2] + 1, now)
    assert second[0][2] > first[0][2]
    third = start(0, now)
    assert len({str(parameters) for _, parameters, _ in third}) == 1
    for epoch in range(EPOCHS):
        taken = itertools.chain(*(part[0].get(epoch, []) for part in (*first, *second, *third)))
        counts = torch.bincount(torch.tensor(list(taken)), minlength=LENGTH)
        assert counts.min() == 1
        assert counts.sum() - LENGTH < BATCH * now * 2  # what the framework pads


def independent(folder):
    torch.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    net = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(Samples(), BATCH)
    run = paceline.preemptible(net, optimizer, loader=loader, run_dir=folder)
    try:
        for _, rows in loader:
            net(rows).square().mean().backward()
            optimizer.step()
            run.stop()
    except paceline.PacelineError as error:
        return error.finding.name, error.finding.what


def test_models_that_ranks_train_for_themselves_are_not_mixed(library_ranks, tmp_path):
    ended = library_ranks.run(independent, str(tmp_path), world_size=2, launched=True)
    assert {name for name, _ in ended} == {"replicas-differ"}
