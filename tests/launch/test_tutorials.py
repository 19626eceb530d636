"""The rows of two public tutorials that need no GPU: their scripts, job scripts and error texts."""

from __future__ import annotations

import importlib.util
import pickle
import struct

import numpy
import pytest

from paceline.cli import main as module

# Ten lines that read the files of MNIST and CIFAR-10 as torchvision does.
VISION = """
import pickle, numpy, torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def mnist(name):
    images = numpy.fromfile(f"{name}-images-idx3-ubyte", numpy.uint8, offset=16)
    labels = numpy.fromfile(f"{name}-labels-idx1-ubyte", numpy.uint8, offset=8)
    images = torch.tensor(images).reshape(-1, 1, 28, 28).float() / 255
    return TensorDataset(images, torch.tensor(labels).long())
def cifar(name):
    batch = pickle.load(open(f"cifar-10-batches-py/{name}", "rb"), encoding="latin1")
    images = torch.tensor(batch["data"]).reshape(-1, 3, 32, 32).float() / 255
    return TensorDataset(images, torch.tensor(batch["labels"]))
"""
START = """
import os
import torch
from torch import nn
from vision import *
def make(width=784):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 10))
cross_entropy = nn.functional.cross_entropy
torch.manual_seed(0)
"""
STEP = """
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    {backward}
    optimizer.step()
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices={devices}, num_nodes={nodes}, strategy="ddp")
fabric.launch()
model = make(3072)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
for x, y in fabric.setup_dataloaders(DataLoader(cifar("data_batch_1"), 16, shuffle=True)):
"""
LIGHTNING = """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make()
    def training_step(self, batch, index):
        return cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Net(), DataLoader(mnist("train"), 16, shuffle=True), DataLoader(mnist("t10k"), 16))
loss = trainer.callback_metrics["val_loss"]
"""
DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
sampler = DistributedSampler(mnist("train"), shuffle=True)
loader = DataLoader(mnist("train"), 16, sampler=sampler, num_workers=0, pin_memory=True)
model = nn.parallel.DistributedDataParallel(make())
optimizer = torch.optim.Adam(model.parameters())
sampler.set_epoch(0)
for x, y in loader:
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = make()
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters()), DataLoader(mnist("train"), 16, shuffle=True))
for x, y in loader:
"""
END = '\nif os.environ["RANK"] == "0":\n    print(f"loss {loss.item():.2f}")\n'
SCRIPTS = {
    "fabric": FABRIC.format(devices=2, nodes=1) + STEP.format(backward="fabric.backward(loss)"),
    "fabric, 2 nodes": FABRIC.format(devices=2, nodes=2) + "    pass",
    "lightning": LIGHTNING,
    "torch": DDP + STEP.format(backward="loss.backward()"),
    "accelerate": ACCELERATE + STEP.format(backward="accelerator.backward(loss)"),
}
RUNS = [  # row, script, status, words of stdout or stderr that must be there, and must not
    ("0.3", "fabric", 0, ["loss ", "steps/s"], ["error "]),
    ("0.2", "fabric, 2 nodes", 1, ["does not match the world size"], []),
    ("1.3", "lightning", 0, ["loss ", "steps/s"], ["error "]),
    ("1.8, 1.16", "torch", 0, ["loss ", "dataloader.py:", "pin_memory"], ["error ", "loops.py"]),
    ("1.13", "accelerate", 0, ["loss ", "steps/s"], ["error "]),
]


@pytest.fixture
def folder(tmp_path):
    """A folder with 96 images of MNIST and of CIFAR-10 in the formats of torchvision's files."""
    draw = numpy.random.default_rng(0)
    labels = draw.integers(0, 10, 96, dtype=numpy.uint8)
    for name in ("train", "t10k"):
        images = draw.integers(0, 256, 96 * 28 * 28, dtype=numpy.uint8).tobytes()
        head = struct.pack(">4I", 2051, 96, 28, 28)
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(head + images)
        head = struct.pack(">2I", 2049, 96)
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    (tmp_path / "cifar-10-batches-py").mkdir()
    batch = {
        "data": draw.integers(0, 256, (96, 3072), dtype=numpy.uint8),
        "labels": [*map(int, labels)],
    }
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(pickle.dumps(batch))
    (tmp_path / "vision.py").write_text(VISION)
    return tmp_path


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("script", "status", "there", "absent"), [row[1:] for row in RUNS], ids=[row[0] for row in RUNS]
)
def test_a_script_of_the_tutorials_runs(command, folder, script, status, there, absent):
    framework = script.partition(",")[0]
    if importlib.util.find_spec({"fabric": "lightning"}.get(framework, framework)) is None:
        pytest.skip(f"{framework} is not installed")
    file = command.script(START + SCRIPTS[script] + END)
    ended = command.run("--nproc-per-node", "2", file, timeout=110)
    text = ended.out + ended.err
    assert ended.status == status, text
    assert [words for words in there if words not in text] == [], text
    assert [words for words in absent if words in text] == [], text


JOB = "#!/bin/bash;#SBATCH --nodes=1;#SBATCH --gres=gpu:2;#SBATCH --time=1:00:00;"
TOPO = "GPU0 X SYS 32-47 2;GPU1 SYS X 64-79 4"
START_LINE = (
    "distributed_backend=nccl;All distributed processes registered. Starting with 2 processes"
)
LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T12:00:00 DUE TO TIME LIMIT ***"
# row | command | exit status | words that must be printed | words that must not | text of the file, ; for a line's end
TEXTS = f"""
0.12 | explain | 1 | nccl-system-error | no error | ncclSystemError: System call (e.g. socket, malloc) or external library call failed
0.13 | explain | 1 | NET007 | no error | torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/4 clients joined.
0.14 | explain | 1 | NET020 | no error | n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found
1.4 | lint | 1 | JOB003 | No findings | {JOB}#SBATCH --ntasks-per-node=1;srun python train.py
1.10 | lint | 1 | JOB001 | No findings | {JOB}#SBATCH --ntasks-per-node=4;srun torchrun --nproc_per_node=4 train_ddp.py
1.21 | doctor --topo | 0 | all_reduce_perf | RDMA | {TOPO}
1.22 | explain | 1 | NUMA nodes 2 and 4 | no error | {TOPO}
1.24 | explain | 1 | firewall | no error | {START_LINE}
1.24 limit | explain | 1 | nccl-hang-at-init | ask for more time | {START_LINE};{LIMIT}
1.29 | explain | 1 | NET006 | no error | [W socket.cpp:601] [c10d] The client socket has timed out after 900s while trying to connect to (10.0.0.4, 29501).
"""
TRAINER = 'import lightning\nlightning.Trainer(devices=2, strategy="ddp").fit(model)\n'


@pytest.mark.parametrize("row", TEXTS.strip().splitlines(), ids=lambda row: row.split(" | ")[0])
def test_a_text_of_the_tutorials_is_explained(monkeypatch, capsys, tmp_path, row):
    _, words, status, there, absent, text = row.split(" | ", 5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "given").write_text(text.replace(";", "\n") + "\n")
    files = ["given", "train.py"] if words == "lint" else ["given"]
    action = module.cli.main([*words.split(), *files], "paceline", standalone_mode=False)
    ended = action()
    printed = "".join(capsys.readouterr())
    assert (ended, there in printed, absent in printed) == (int(status), True, False), printed
