"""What is seen of a run while it goes on, in real runs: named where it is wrong, and silent where it is not."""

from __future__ import annotations

import importlib.util
import json
import sys
from textwrap import dedent, indent

import pytest

from starting import free_port

pytestmark = pytest.mark.slow  # some forty real runs

START = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import *

if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 8), torch.randn(240, 1))
held_out = DataLoader(TensorDataset(torch.randn(60, 8), torch.randn(60, 1)), batch_size=10)
net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
model = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def shared(**options):
    return DistributedSampler(data, num_replicas=world, rank=rank, **options)

def step(batch):
    loss = (model(batch[0]) - batch[1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def evaluate():
    with torch.no_grad():
        for x, y in held_out:
            net(x)
"""
END = """
if dist.is_initialized():
    dist.destroy_process_group()
"""

HEALTHY = {
    "evaluation each epoch, and within it": """
        sampler = shared()
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for number, batch in enumerate(DataLoader(data, batch_size=10, sampler=sampler)):
                step(batch)
                if number == 7:
                    evaluate()
            evaluate()
        """,
    "a loader that is not shuffled": """
        loader = DataLoader(data, batch_size=10, sampler=shared(shuffle=False))
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    "shares of one that are padded": """
        data = TensorDataset(*data[:19])
        loader = DataLoader(data, batch_size=5, sampler=shared(shuffle=False))
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    "two loaders side by side": """
        one, other = shared(seed=1), shared(seed=2)
        for epoch in range(3):
            one.set_epoch(epoch), other.set_epoch(epoch)
            loaders = DataLoader(data, batch_size=10, sampler=one), DataLoader(data, batch_size=10, sampler=other)
            for batch, _ in zip(*loaders):
                step(batch)
        """,
    "loaders with the same order over other data": """
        for shard in range(3):
            data = TensorDataset(torch.randn(240, 8), torch.randn(240, 1))
            for batch in DataLoader(data, batch_size=10, sampler=shared()):
                step(batch)
        """,
    "workers that stay": """
        sampler = shared()
        loader = DataLoader(data, batch_size=10, sampler=sampler, num_workers=1, persistent_workers=True)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in loader:
                step(batch)
        """,
    "a batch sampler of tensors": """
        class Batches:
            def __len__(self):
                return 12
            def __iter__(self):
                yield from torch.arange(240)[rank::world].reshape(12, -1)
        loader = DataLoader(data, batch_sampler=Batches())
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    "a fixed order by choice": """
        order = torch.randperm(240).tolist()[rank::world]
        class ByLength(Sampler):
            def __len__(self):
                return len(order)
            def __iter__(self):
                return iter(order)
        loader = DataLoader(data, batch_size=10, sampler=ByLength())
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    "files of its own on each rank, split at random": """
        own = torch.Generator().manual_seed(rank)
        data = TensorDataset(torch.rand(240, 8, generator=own), torch.rand(240, 1, generator=own))
        train, held = random_split(data, [200, 40], generator=own)
        held_out = DataLoader(held, batch_size=10)
        for batch in DataLoader(train, batch_size=10, shuffle=True):
            step(batch)
        evaluate()
        """,
    "a stream": """
        class Numbers(IterableDataset):
            def __iter__(self):
                for number in range(60):
                    yield torch.full((8,), (number + 1000 * rank) / 2000), torch.zeros(1)
        for epoch in range(3):
            for batch in DataLoader(Numbers(), batch_size=10):
                step(batch)
        """,
    "a generator of one's own": """
        def batches():
            for number in range(20):
                yield torch.randn(4, 8), torch.randn(4, 1)
        for batch in batches():
            step(batch)
        """,
    "files of its own on each rank, one seed": """
        x = torch.randn(240, 8, generator=torch.Generator().manual_seed(rank))
        loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=10, shuffle=True)
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    "each rank shuffles all": """
        generator = torch.Generator().manual_seed(rank)
        loader = DataLoader(data, batch_size=10, shuffle=True, generator=generator)
        for epoch in range(3):
            for batch in loader:
                step(batch)
        """,
    "a loop that is left": """
        sampler = shared()
        for epoch in range(4):
            sampler.set_epoch(epoch)
            for number, batch in enumerate(DataLoader(data, batch_size=10, sampler=sampler)):
                step(batch)
                if number == 2:
                    break
        """,
    "a session": """
        import paceline
        session = paceline.Session(seed=0)
        net = nn.Linear(8, 1)
        model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
        loader = session.loader(data, batch_size=20, shuffle=True)
        for epoch in session.epochs(3):
            for x, y in loader:
                session.backward((model(x) - y).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        """,
}

FAULTY = {
    "no sampler, shuffled alike": (
        "same-data-on-all-ranks",
        """
        loader = DataLoader(data, batch_size=10, shuffle=True)
        for epoch in range(3):
            for batch in loader:
                step(batch)
            evaluate()
        """,
    ),
    "no sampler, not shuffled, workers": (
        "same-data-on-all-ranks",
        """
        loader = DataLoader(data, batch_size=10, num_workers=1, persistent_workers=True)
        for epoch in range(2):
            for batch in loader:
                step(batch)
        """,
    ),
    "one full batch on all": (
        "same-data-on-all-ranks",
        """
        for epoch in range(5):
            for batch in DataLoader(data, batch_size=240):
                step(batch)
        """,
    ),
    "set_epoch forgotten": (
        "same-order-each-epoch",
        """
        loader = DataLoader(data, batch_size=10, sampler=shared())
        for epoch in range(3):
            for batch in loader:
                step(batch)
            evaluate()
        """,
    ),
    "set_epoch forgotten, workers that stay": (
        "same-order-each-epoch",
        """
        loader = DataLoader(data, batch_size=10, sampler=shared(), num_workers=1, persistent_workers=True)
        for epoch in range(2):
            for batch in loader:
                step(batch)
        """,
    ),
    "set_epoch forgotten, a loader for each epoch": (
        "same-order-each-epoch",
        """
        for epoch in range(2):
            for batch in DataLoader(data, batch_size=10, sampler=shared()):
                step(batch)
        """,
    ),
    "each rank splits for itself, and evaluates": (
        "data-not-shardable",
        """
        train, held = random_split(data, [200, 40], generator=torch.Generator().manual_seed(rank))
        held_out = DataLoader(held, batch_size=10)
        for epoch in range(3):
            for batch in DataLoader(train, batch_size=10, shuffle=True):
                step(batch)
            evaluate()
        """,
    ),
    "a generator seeded anew": (
        "same-order-each-epoch",
        """
        for epoch in range(2):
            generator = torch.Generator().manual_seed(rank)
            for batch in DataLoader(data, batch_size=10, shuffle=True, generator=generator):
                step(batch)
        """,
    ),
}

FABRIC = """
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 8), torch.randn(240, 1))
net = torch.nn.Linear(8, 1)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=10, shuffle=True), use_distributed_sampler={shared})
held_out = fabric.setup_dataloaders(DataLoader(data, batch_size=10), use_distributed_sampler=False)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward((model(x) - y).square().mean())
        optimizer.step()
    with torch.no_grad():
        for x, y in held_out:
            net(x)
"""
LIGHTNING = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)
    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()
    def validation_step(self, batch, batch_idx):
        self.net(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 8), torch.randn(240, 1))
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler={shared}, val_check_interval=0.5,
)
trainer.fit(Module(), DataLoader(data, batch_size=10, shuffle=True), DataLoader(data, batch_size=10))
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 8), torch.randn(240, 1))
net = torch.nn.Linear(8, 1)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
loader, held_out = DataLoader(data, batch_size=10, shuffle=True), DataLoader(data, batch_size=10)
if {shared}:
    loader, held_out = accelerator.prepare(loader, held_out)
for epoch in range(3):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
        if number == len(loader) - 2:
            with torch.no_grad():
                for x, y in held_out:
                    net(x)
accelerator.end_training()
"""
FRAMEWORKS = {"lightning.fabric": FABRIC, "lightning": LIGHTNING, "accelerate": ACCELERATE}

NOT_FINITE = """
for number in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    if rank == 1 and number == 11:
        loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SHORT_WINDOWS = """
import sys
from paceline.launch.monitor import observer
observer.WINDOW_S = 0.8
from paceline.cli.main import main
main()
"""


def findings(ended):
    """The findings that a run's last event tells, which are those that were printed."""
    return json.loads((ended.folder / "events.jsonl").read_text().splitlines()[-1])["findings"]


def run(command, text, *options, ranks=2):
    script = command.script(text)
    ended = command.run(
        "--nproc-per-node",
        ranks,
        "--run-dir",
        "run",
        *options,
        script,
        env={"OMP_NUM_THREADS": "1"},
    )
    ended.folder = command.folder / "run"
    return ended


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_hears_nothing(command, name):
    ended = run(command, START + dedent(HEALTHY[name]) + END)
    assert (ended.status, findings(ended)) == (0, []), ended.err


@pytest.mark.parametrize(
    "name", ["no sampler, shuffled alike", "no sampler, not shuffled, workers"]
)
def test_a_single_rank_may_read_what_it_likes(command, name):
    ended = run(command, START + dedent(FAULTY[name][1]) + END, ranks=1)
    assert (ended.status, findings(ended)) == (0, []), ended.err


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_the_data_is_told_once_while_the_run_goes_on_and_once_at_its_end(command, name):
    finding, text = FAULTY[name]
    ended = run(command, START + dedent(text) + END)
    assert ended.status == 0
    assert [found["name"] for found in findings(ended)] == [finding], ended.err
    assert ended.err.count(f"{finding}: ") == 2


@pytest.mark.peers
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_other_frameworks_are_seen_too(command, name, shared):
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    ended = run(command, FRAMEWORKS[name].format(shared=shared))
    assert ended.status == 0, ended.err
    assert [found["name"] for found in findings(ended)] == (
        [] if shared else ["same-data-on-all-ranks"]
    ), ended.err


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("loss * float('nan')", "rank 1's loss is not finite in step 12"),
        (
            "loss + 0 * torch.sqrt(net[1].weight - net[1].weight).sum()",
            "rank 1's gradient of 1.weight is not finite in step 12",
        ),
    ],
    ids=["loss", "gradient"],
)
def test_the_rank_whose_loss_or_gradient_is_not_finite_is_named(command, loss, said):
    ended = run(command, START + NOT_FINITE.format(loss=loss) + END, "--check-finite")
    assert ended.status == 1
    assert f"cause: {said}   [RUN023 non-finite-on-one-rank]" in ended.block
    assert "rank 0: stopped because rank 1 failed" in ended.block


def test_finite_losses_are_left_alone(command):
    ended = run(
        command,
        START + NOT_FINITE.format(loss="loss * 2") + END,
        "--check-finite",
        "--check-replicas",
        "4",
    )
    assert (ended.status, findings(ended)) == (0, []), ended.err


def test_replicas_that_drift_apart_are_told_with_the_first_parameter(command):
    drift = """
for number in range(30):
    step((torch.randn(4, 8), torch.randn(4, 1)))
    if rank == 1 and number == 11:
        with torch.no_grad():
            net[1].weight[0, 2] += 1e-3
"""
    ended = run(command, START + drift + END, "--check-replicas", "5")
    (found,) = findings(ended)
    assert (ended.status, found["name"], found["where"]) == (0, "replicas-differ", "rank 1")
    assert found["evidence"][0] == "first: 1.weight"


def on_two_nodes(command, text, *options, program):
    command.script(text)
    program.write_text(SHORT_WINDOWS)
    port = free_port()
    started = [
        command.start(
            *(program, "run", "--nnodes", 2, "--node-rank", node, "--master-addr", "127.0.0.1"),
            *(
                "--master-port",
                port,
                "--nproc-per-node",
                1,
                "--run-dir",
                "run",
                *options,
                "train.py",
            ),
            program=sys.executable,
            env={"OMP_NUM_THREADS": "1"},
        )
        for node in (0, 1)
    ]
    return [each.wait() for each in started]


def test_a_slow_node_is_told_on_every_node(command, tmp_path):
    slow = """
begin = time.monotonic()
for number in range(250):
    time.sleep(0.02 if rank == 1 else 0.005)
    step((torch.randn(4, 8), torch.randn(4, 1)))
"""
    for ended in on_two_nodes(command, START + slow + END, program=tmp_path / "short.py"):
        assert ended.status == 0
        assert ended.err.count("RUN022 straggler: ") == 2, ended.err
        assert "(node 1) holds the others up" in ended.err


def test_the_same_data_and_drifted_replicas_are_told_on_every_node(command, tmp_path):
    text = FAULTY["no sampler, shuffled alike"][1] + indent(
        "\nif rank == 1:\n    net[0].bias.data += 1\n", " " * 8
    )
    text += FAULTY["no sampler, shuffled alike"][1]
    options = ("--check-replicas", "10")
    for ended in on_two_nodes(
        command, START + dedent(text) + END, *options, program=tmp_path / "short.py"
    ):
        assert ended.status == 0
        for name in (
            "DAT007 same-data-on-all-ranks: all 2 ranks",
            "RUN024 replicas-differ: after step",
        ):
            assert ended.err.count(name) == 2, ended.err
        assert "first in 0.bias" in ended.err
