"""``paceline run --prove`` on scripts of every framework: a right loss is proven, a wrong one found."""

from __future__ import annotations

import importlib.util

import pytest

from paceline.rundir.proofs import read_proof
from printed_json import read_json
from starting import BIN

pytestmark = [pytest.mark.ci, pytest.mark.cold, pytest.mark.timeout(300)]
COMMON = """\
import sys, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 5), torch.randint(0, 3, (48,)))
net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def loss_of(net, batch):
    x, y = batch
    losses = F.cross_entropy(net(x), y, reduction="none")
    return losses.mean() if "wrong" not in sys.argv else (losses * (y > 0)).sum() / (y > 0).sum()


optimizer = torch.optim.AdamW(net.parameters())
train = DataLoader(data, batch_size=12, shuffle=True, num_workers=WORKERS)
"""
SCRIPTS = {
    "torch": """
torch.distributed.init_process_group("gloo")
ddp = nn.parallel.DistributedDataParallel(net)
for epoch in range(5):
    for batch in train:
        optimizer.zero_grad()
        loss_of(ddp, batch).backward()
        optimizer.step()
    torch.save(net.state_dict(), "saved.pt")
""",
    "paceline": """
import paceline
session = paceline.Session(seed=0)
net, optimizer = session.setup(net, optimizer)
train = session.loader(data, batch_size=12, shuffle=True)
session.restore("latest")
for epoch in session.epochs(5):
    for batch in train:
        session.backward(loss_of(net, batch))
        optimizer.step()
        optimizer.zero_grad()
    session.save()
""",
    "trainer": """
import paceline
class Module(paceline.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, number):
        return loss_of(self.net, batch)
    def configure_optimizers(self):
        return optimizer
paceline.Trainer(max_epochs=5).fit(Module(), train)
""",
    "fabric": """
import lightning
fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
net, optimizer = fabric.setup(net, optimizer)
train = fabric.setup_dataloaders(train)
for epoch in range(5):
    for batch in train:
        optimizer.zero_grad()
        fabric.backward(loss_of(net, batch))
        optimizer.step()
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, number):
        return loss_of(self.net, batch)
    def validation_step(self, batch, number):
        self.log("loss", loss_of(self.net, batch))
    def configure_optimizers(self):
        return optimizer
trainer = lightning.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, gradient_clip_val=0.1,
)
trainer.fit(Module(), train, DataLoader(data, batch_size=12))
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net, optimizer, train = accelerator.prepare(net, optimizer, train)
for epoch in range(5):
    for batch in train:
        with accelerator.accumulate(net):
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            optimizer.zero_grad()
""",
}
QUICK = ("torch", "paceline")


def proven(command, script, *words, options=(), workers=0):
    """Ask a script; return its path, and how the command has ended."""
    needed = {"trainer": "torch", "other": "torch", "fabric": "lightning"}.get(script, script)
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    path = command.script(
        COMMON.replace("WORKERS", str(workers)) + SCRIPTS.get(script, ""), "train.py"
    )
    asked = ("run", "--prove", *options, path, *words)
    return command.run(*asked, program=str(BIN / "paceline"), timeout=280)


FRAMEWORKS = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in SCRIPTS
]


@pytest.mark.parametrize("script", FRAMEWORKS)
def test_a_right_loss_is_proven_and_a_wrong_one_found(command, script):
    right = proven(command, script)
    assert (right.status, right.out.partition(" (")[0]) == (
        0,
        "loss: mean over rows, proven on the first batch",
    ), right.err
    wrong = proven(command, script, "wrong", options=("--json",))
    assert wrong.status == 1, wrong.err
    (found,) = read_json("run", wrong.out)["findings"]
    assert found["name"] == "loss-mixes-rows"
    assert found["where"].startswith("train.py:")


@pytest.mark.slow
def test_a_proof_saves_nothing_and_is_read_for_the_same_script_only(command):
    ended = proven(command, "torch", "--lr", "0.1", workers=2)
    assert ended.status == 0, ended.err
    folder = command.folder / "paceline-runs"
    assert [path.name for path in folder.iterdir()] == [".proofs"]
    assert not (command.folder / "saved.pt").exists()
    script = str(command.folder / "train.py")
    proof = read_proof(script, ["--lr", "0.1"], folder=folder)
    assert proof.line == ended.out.strip()
    assert read_proof(script, [], folder=folder) is None


PREFETCHED = """
import queue, threading
batches = queue.Queue(1)
threading.Thread(target=lambda: [batches.put(b) for _ in range(3) for b in train], daemon=True).start()
while batch := batches.get():
    loss_of(net, batch).backward()
"""
NO_FLOAT64 = """
for epoch in range(5):
    for batch in train:
        assert net[0].weight.dtype == torch.float32
        loss_of(net, batch).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "status", "out"),
    [
        ("print(len(data))", 2, "not judged: no loss.backward() followed a batch"),
        ("raise SystemExit(net.oops)", 2, "not judged: the script failed"),
        (
            "loss_of(net, next(iter(train))).backward()",
            2,
            "not judged: the script has ended after its first batch",
        ),
        (PREFETCHED, 2, "not judged: its batches are read by another thread"),
        pytest.param(NO_FLOAT64, 0, "loss: mean over rows", marks=pytest.mark.slow),
    ],
)
def test_other_scripts(command, monkeypatch, text, status, out):
    monkeypatch.setitem(SCRIPTS, "other", text)
    ended = proven(command, "other")
    assert (ended.status, ended.out[: len(out)]) == (status, out), ended.err
