"""Scripts for ``paceline verify``: one right script of each framework, and what is replaced in it.

The mistakes were chosen, with what must be named, before verify named all of them; ten are from
public threads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

DATA = """\
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Subset, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 2)
    def forward(self, x):
        return self.head(self.body(x))

torch.manual_seed(7)
world = int(os.environ["WORLD_SIZE"])
size = int(sys.argv[1]) if len(sys.argv) > 1 else 16
rows = torch.randn(192, 8, generator=torch.Generator().manual_seed(1))
labels = (rows.sum(1) > 0).long()
data, held_out = TensorDataset(rows, labels), TensorDataset(rows[:101] + 0.5, labels[:101])
net = Net()
"""
RAW = """\
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(data, seed=3)
train = DataLoader(data, size, sampler=sampler)
test = DataLoader(Subset(held_out, range(rank, 101, world)), 16)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(train))
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for step, (x, y) in enumerate(train):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    figures = torch.zeros(2)
    with torch.no_grad():
        for x, y in test:
            figures += torch.tensor([(net(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(figures)
    if rank == 0:
        print(f"epoch {epoch}: accuracy {figures[0] / figures[1]:.4f}", flush=True)
dist.destroy_process_group()
"""
FABRIC = """\
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto")
fabric.launch()
train = fabric.setup_dataloaders(DataLoader(data, 16, shuffle=True))
test = DataLoader(held_out, 16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model, optimizer = fabric.setup(net, optimizer)
for epoch in range(3):
    for step, (x, y) in enumerate(train):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
    figures = torch.zeros(2)
    with torch.no_grad():
        for x, y in test:
            figures += torch.tensor([(net(x).argmax(1) == y).sum(), len(y)])
    fabric.print(f"epoch {epoch}: accuracy {figures[0] / figures[1]:.4f}")
"""
LIGHTNING = """\
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, number):
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        return loss
    def validation_step(self, batch, number):
        x, y = batch
        right = (self.net(x).argmax(1) == y).float().mean()
        self.log("val_acc", right, sync_dist=True)
    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"val_acc {float(self.trainer.callback_metrics.get('val_acc', 0)):.4f}")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
    logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, use_distributed_sampler=True,
)
train = DataLoader(data, 16, shuffle=True)
trainer.fit(Module(), train, DataLoader(Subset(held_out, range(96)), 16))
"""
ACCELERATE = """\
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
train, test = DataLoader(data, 16, shuffle=True), DataLoader(held_out, 16)
model, optimizer, steps = net, torch.optim.AdamW(net.parameters(), lr=0.01), 3 * len(train)
train = accelerator.prepare(train)
model, optimizer, test = accelerator.prepare(model, optimizer, test)
scheduler = accelerator.prepare(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))
for epoch in range(3):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
    model.eval()
    right = count = 0
    with torch.no_grad():
        for x, y in test:
            found = model(x).argmax(1)
            found, y = accelerator.gather_for_metrics((found, y))
            right, count = right + (found == y).sum(), count + len(y)
    accelerator.print(f"epoch {epoch}: accuracy {(right / count).item():.4f}")
accelerator.end_training()
"""
SESSION = """\
import paceline
session = paceline.Session(seed=7)
train = session.loader(Subset(data, range(190)), batch_size=24, shuffle=True)
test = session.loader(held_out, batch_size=32)
model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
for epoch in session.epochs(2):
    for x, y in train:
        session.backward(cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test)
    session.print(f"epoch {epoch}: accuracy {session.reduce(right) / 101:.4f}")
"""
BAG = """\
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(30, 8, sparse=True), nn.Linear(8, 2)
    def forward(self, texts, offsets):
        return self.fc(self.bag(texts, offsets))
def collate(batch):
    lengths = [len(text) for _, text in batch]
    offsets = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    return torch.tensor([label for label, _ in batch]), torch.cat([t for _, t in batch]), offsets
words = [torch.randint(30, (3 + row % 5,)) for row in range(293)]
pairs = [(int(text[0] > 14), text) for text in words]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(Bag())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
sampler = DistributedSampler(pairs[:192])
train = DataLoader(pairs[:192], size, sampler=sampler, collate_fn=collate)
test = DataLoader(Subset(pairs, range(192 + rank, 293, world)), 16, collate_fn=collate)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for number, (y, texts, offsets) in enumerate(train):
        optimizer.zero_grad()
        found = model(texts, offsets)
        cross_entropy(found, y).backward()
        nn.utils.clip_grad_norm_(model.module.fc.parameters(), 0.1)
        optimizer.step()
    model.eval()
    figures = torch.zeros(2)
    for number, (y, texts, offsets) in enumerate(test):
        with torch.no_grad():
            figures += torch.tensor([(model(texts, offsets).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(figures)
    if rank == 0:
        print(f"epoch {epoch}: valid accuracy {figures[0] / figures[1]:8.3f}", flush=True)
"""
SHARDED = """\
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
for part in (net.body, net.head, net):
    fully_shard(part, mesh=dist.init_device_mesh("cpu", (world,)))
model, optimizer = net, torch.optim.AdamW(net.parameters(), lr=0.01)
sampler = DistributedSampler(data, seed=3)
train = DataLoader(data, 16, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in train:
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
FRAMEWORKS = {
    "raw": RAW,
    "fabric": FABRIC,
    "lightning": LIGHTNING,
    "accelerate": ACCELERATE,
    "session": SESSION,
    "bag": BAG,
    "sharded": SHARDED,
}
NEEDED = {"fabric": "lightning", "lightning": "lightning", "accelerate": "accelerate"}

# Heads: the framework, what is done, what must be named, and a public thread or options. Below: what is
# replaced in the right script, and by what.
MISTAKES = """
@ raw | not wrapped | gradients-not-averaged
-nn.parallel.DistributedDataParallel(net)
+net
@ raw | model.module | gradients-not-averaged
-cross_entropy(model(x), y)
+cross_entropy(model.module(x), y)
@ raw | no set_epoch | same-order-each-epoch | https://github.com/lucidrains/DALLE-pytorch/pull/230
-sampler.set_epoch(epoch)
+pass
@ raw | mean over unmasked | loss-mixes-rows | https://github.com/PrimeIntellect-ai/prime-rl/pull/1957
-cross_entropy(model(x), y)
+torch.masked_select(cross_entropy(model(x), y, reduction="none"), x[:, 0] > 0.3).mean()
@ raw | step on rank 0 only | replicas-differ
-        optimizer.step()
+        if rank == 0:
+            optimizer.step()
@ fabric | parts of the model are called | gradients-not-averaged | https://github.com/luca-medeiros/lightning-sam/issues/1
-cross_entropy(model(x), y)
+cross_entropy(model.head(model.body(x)), y)
@ fabric | model not set up | gradients-not-averaged
-model, optimizer = fabric.setup(net, optimizer)
+model = net
@ fabric | loader not set up | same-data-on-all-ranks
-fabric.setup_dataloaders(DataLoader(data, 16, shuffle=True))
+DataLoader(data, 16)
@ fabric | sum of losses | loss-mixes-rows
-cross_entropy(model(x), y)
+cross_entropy(model(x), y, reduction="sum")
@ fabric | score of a share | evaluation-not-reduced
-test = DataLoader(held_out, 16)
+test = fabric.setup_dataloaders(DataLoader(held_out, 16))
@ lightning | loss.backward in manual optimization | gradients-not-averaged | https://github.com/Lightning-AI/pytorch-lightning/issues/9237
-        self.net = net
+        self.net, self.automatic_optimization = net, False
-        return loss
+        self.optimizers().zero_grad()
+        loss.backward()
+        self.optimizers().step()
@ lightning | no distributed sampler | same-data-on-all-ranks | https://github.com/Lightning-AI/pytorch-lightning/issues/8562
-use_distributed_sampler=True
+use_distributed_sampler=False
@ lightning | set_epoch does not reach a batch sampler | same-order-each-epoch | https://github.com/Lightning-AI/pytorch-lightning/issues/13316
-train = DataLoader(data, 16, shuffle=True)
+class Batches:
+    def __init__(self):
+        self._order = DistributedSampler(data, world, int(os.environ["RANK"]))
+    def __iter__(self):
+        return iter(BatchSampler(self._order, 16, drop_last=False))
+    def __len__(self):
+        return len(self._order) // 16
+train = DataLoader(data, batch_sampler=Batches())
-use_distributed_sampler=True
+use_distributed_sampler=False
@ lightning | no sync_dist | evaluation-not-reduced | https://github.com/Lightning-AI/pytorch-lightning/issues/19620
-sync_dist=True
+sync_dist=False
@ lightning | weights are clamped on rank 0 | replicas-differ
-    def validation_step
+    def on_train_batch_end(self, outputs, batch, number):
+        if self.trainer.is_global_zero:
+            for parameter in self.parameters():
+                parameter.data.clamp_(-0.2, 0.2)
+    def validation_step
@ accelerate | unwrapped model | gradients-not-averaged | https://github.com/huggingface/accelerate/issues/3285
-cross_entropy(model(x), y)
+cross_entropy(accelerator.unwrap_model(model)(x), y)
@ accelerate | model not prepared | gradients-not-averaged
-model, optimizer, test = accelerator.prepare(model, optimizer, test)
+optimizer, test = accelerator.prepare(optimizer, test)
@ accelerate | loader not prepared | same-data-on-all-ranks
-train = accelerator.prepare(train)
+
@ accelerate | steps counted after prepare | scheduler-stepped-n-times | https://github.com/huggingface/accelerate/issues/2926
-train = accelerator.prepare(train)
+train = accelerator.prepare(train)
+steps = 3 * len(train)
@ accelerate | mean over unmasked | loss-mixes-rows | https://github.com/huggingface/transformers/issues/34242
-cross_entropy(model(x), y)
+torch.masked_select(cross_entropy(model(x), y, reduction="none"), x[:, 0] > 0.3).mean()
"""
# Named before these were written.
OTHERS = """
@ raw | no sampler | sampler-missing
-train = DataLoader(data, size, sampler=sampler)
+torch.manual_seed(rank)
+train = DataLoader(data, 16, shuffle=True)
@ raw | padded | evaluation-padded
-DataLoader(Subset(held_out, range(rank, 101, world)), 16)
+DataLoader(held_out, 16, sampler=DistributedSampler(held_out, shuffle=False))
@ raw | score of a share | evaluation-not-reduced
-dist.all_reduce(figures)
+
@ raw | schedule by world | scheduler-stepped-n-times
-scheduler.step()
+[scheduler.step() for _ in range(world)]
@ raw | a parameter drifts | replicas-differ
-scheduler.step()
+net.head.bias.data.add_(0.01 * rank)
@ raw | other seeds | initialisation-differs
-nn.parallel.DistributedDataParallel(net)
+torch.manual_seed(rank) and Net()
-        optimizer.step()
+        for p in model.parameters():
+            dist.all_reduce(p.grad)
+            p.grad /= world
+        optimizer.step()
@ raw | gradients are added | updates-differ | --batch-option {per_rank}
-nn.parallel.DistributedDataParallel(net)
+net
-        optimizer.step()
+        for p in model.parameters():
+            dist.all_reduce(p.grad)
+        optimizer.step()
@ fabric | padded | evaluation-padded
-test = DataLoader(held_out, 16)
+test = fabric.setup_dataloaders(DataLoader(held_out, 16))
-    fabric.print
+    figures = fabric.all_reduce(figures, reduce_op="sum")
+    fabric.print
@ lightning | padded | evaluation-padded
-Subset(held_out, range(96))
+held_out
@ accelerate | padded | evaluation-padded
-            found, y = accelerator.gather_for_metrics((found, y))
+
-    accelerator.print
+    right, count = accelerator.reduce(right), accelerator.reduce(torch.tensor(count))
+    accelerator.print
"""
RIGHT = """
@ raw | plain | | --batch-option {per_rank}
@ fabric | plain
@ lightning | plain
@ accelerate | plain
@ session | plain | | --world 1,2,3
@ raw | batch norm, dropout, no_sync
-nn.Sequential(nn.Linear(8, 16), nn.ReLU())
+nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU())
-        optimizer.zero_grad()
+
-        loss.backward()
+        if step % 2 == 0:
+            with model.no_sync():
+                (loss / 2).backward()
+            continue
+        (loss / 2).backward()
-        scheduler.step()
+        optimizer.zero_grad()
+        scheduler.step()
@ raw | local steps, averaged now and then
-nn.parallel.DistributedDataParallel(net)
+net
-optimizer =
+from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
+averager = PeriodicModelAverager(period=4, warmup_steps=2)
+optimizer =
-        optimizer.step()
+        optimizer.step()
+        averager.average_parameters(net.parameters())
@ raw | apart on purpose | | --apart
-nn.parallel.DistributedDataParallel(net)
+net
@ raw | uneven inputs in Join
-nn.parallel.DistributedDataParallel(net)
+nn.parallel.DistributedDataParallel(net)
+from torch.distributed.algorithms.join import Join
-DataLoader(data, size, sampler=sampler)
+DataLoader(Subset(data, range(rank * 11, 192 - 91 * (world - 1 - rank))), 16)
-    for step, (x, y) in enumerate(train):
+    with Join([model]):
+      for step, (x, y) in enumerate(train):
@ fabric | two models in turn
-for epoch in
+other = Net()
+other, second = fabric.setup(other, torch.optim.Adam(other.parameters()))
+for epoch in
-        optimizer.step()
+        optimizer.step()
+        second.zero_grad()
+        fabric.backward(cross_entropy(other(x), y))
+        second.step()
@ bag | sparse gradients
@ sharded | fully_shard
@ raw | one model on each rank, without a group
-dist.init_process_group("gloo")
+
-dist.get_rank()
+int(os.environ["RANK"])
-nn.parallel.DistributedDataParallel(net)
+net
-DistributedSampler(data, seed=3)
+DistributedSampler(data, world, rank)
-    dist.all_reduce(figures)
+
-if rank == 0
+if rank < 0
-dist.destroy_process_group()
+
"""


@dataclass(frozen=True)
class Case:
    """A script, and what verify must say of it."""

    framework: str
    what: str
    name: str = ""
    rest: str = ""
    lines: tuple[str, ...] = ()

    @property
    def id(self):
        """The case in words."""
        return f"{self.framework}-{self.what}".replace(",", "").replace(" ", "-")

    @property
    def options(self):
        """Options of the command."""
        return [] if self.rest.startswith("https:") else self.rest.split()

    @property
    def text(self):
        """The script."""
        text = DATA + FRAMEWORKS[self.framework]
        signs = itertools.groupby(self.lines, key=lambda line: line[0])
        parts = ["\n".join(line[1:] for line in lines) for _, lines in signs]
        for old, new in zip(parts[::2], parts[1::2], strict=True):
            assert old in text, old
            text = text.replace(old, new)
        return text


def cases(table):
    """The cases of a table."""
    for block in table.strip().split("\n@ "):
        head, *lines = block.removeprefix("@ ").splitlines()
        yield Case(*(word.strip() for word in head.split("|")), lines=tuple(lines))
