"""Samplers, epochs and loaders."""

import pytest

from unit.diagnose.lint.python.pairs import found
from unit.diagnose.lint.python.sources import RAW

LOOP = """
for epoch in range(10):
    {first}
    for x, y in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
SAMPLED = (
    RAW
    + "sampler = DistributedSampler(train_set)\nloader = DataLoader(train_set, batch_size=8, sampler=sampler)\n"
)

FACTORY = """
import torch.utils.data as data
import torch
from torch.utils.data.distributed import DistributedSampler

def make_loader(dataset):
    return data.DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))

def main(dataset, model, optimizer, epochs):
    loader = make_loader(dataset)
    for epoch in range(epochs):
        {first}
        for x in loader:
            model(x).backward()
            optimizer.step()
"""
ATTRIBUTE = """
import torch
from torch.utils.data import DataLoader, DistributedSampler

class Trainer:
    def __init__(self, dataset, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.sampler = DistributedSampler(dataset, shuffle={shuffle})
        self.loader = DataLoader(dataset, batch_size=4, sampler=self.sampler)

    def _run_epoch(self, epoch):
        {first}
        for x, y in self.loader:
            self.model(x).sum().backward()
            self.optimizer.step()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
"""
CONDITIONAL = RAW + """
train_sampler = DistributedSampler(train_set) if dist.is_initialized() else None
loader = DataLoader(train_set, batch_size=8, shuffle=train_sampler is None, sampler=train_sampler)
""" + LOOP  # fmt: skip
HOROVOD = """
import torch
import horovod.torch as hvd
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

hvd.init()
dataset = torch.load("data.pt")
train_sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=8, sampler=train_sampler)
""" + LOOP  # fmt: skip

SET_EPOCH = [
    ("plain", SAMPLED + LOOP.format(first="pass"), SAMPLED + LOOP.format(first="sampler.set_epoch(epoch)")),
    ("through the loader", SAMPLED + LOOP.format(first="pass"), SAMPLED + LOOP.format(first="loader.sampler.set_epoch(epoch)")),
    ("factory", FACTORY.format(first="pass"), FACTORY.format(first="loader.sampler.set_epoch(epoch)")),
    ("attribute", ATTRIBUTE.format(first="pass", shuffle="True"), ATTRIBUTE.format(first="pass", shuffle="False")),
    ("attribute told", ATTRIBUTE.format(first="pass", shuffle="True"),
     ATTRIBUTE.format(first="self.loader.sampler.set_epoch(epoch)", shuffle="True")),
    ("conditional", CONDITIONAL.format(first="pass"),
     CONDITIONAL.format(first="if train_sampler is not None: train_sampler.set_epoch(epoch)")),
    ("horovod", HOROVOD.format(first="pass"), HOROVOD.format(first="train_sampler.set_epoch(epoch)")),
    ("one epoch", SAMPLED + LOOP.format(first="pass"), SAMPLED + LOOP.format(first="pass").replace("range(10)", "range(1)")),
    ("framework", SAMPLED + LOOP.format(first="pass"), "from accelerate import Accelerator\n" + SAMPLED + LOOP.format(first="pass")),
]  # fmt: skip

PLAIN = (
    RAW + "loader = DataLoader(train_set, batch_size=8, shuffle=True)\n" + LOOP.format(first="pass")
)
DEEPSPEED = """
import deepspeed
from torch.utils.data import DataLoader
from torchvision import datasets
data = datasets.MNIST("data")
engine, optimizer, batches, _ = deepspeed.initialize(model=net, config="ds.json"{})
loader = DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(3):
    for x, y in {}:
        engine.backward(engine(x))
        engine.step()
"""
SHARDS = (
    RAW
    + """
import webdataset as wds
data = wds.WebDataset({}).decode("pil").to_tuple("jpg", "cls")
for x, y in DataLoader(data, batch_size=8):
    model(x).sum().backward()
"""
)
SAMPLER_MISSING = [
    ("plain", PLAIN, PLAIN.replace("shuffle=True", "sampler=DistributedSampler(train_set, seed=s)")),
    ("batch sampler", PLAIN, PLAIN.replace("batch_size=8, shuffle=True", "batch_sampler=batches")),
    ("own dataset",
     PLAIN.replace('datasets.MNIST("data", train=True)', "Pairs()").replace("train_set =", "class Pairs: pass\ntrain_set ="),
     PLAIN.replace('datasets.MNIST("data", train=True)', "Pairs()").replace(
         "train_set =", "from torch.utils.data import IterableDataset\nclass Pairs(IterableDataset): pass\ntrain_set =")),
    ("own share", PLAIN, PLAIN.replace("DataLoader(train_set", "DataLoader(Subset(train_set, range(rank, 9, 3))")),
    ("share by name", PLAIN, PLAIN.replace("DataLoader(train_set", "DataLoader(train_set.shard(4, rank)")),
    ("no ranks", PLAIN, PLAIN.replace("DDP(nn.Linear(4, 2).cuda(), device_ids=[local_rank])", "nn.Linear(4, 2)")),
    ("for evaluation", PLAIN, PLAIN.replace("loader", "val_loader").replace(".backward()", "")),
    ("dataset from elsewhere", PLAIN.replace('datasets.MNIST("data", train=True)', "Pairs(args)").replace("dist.init", "from pairs import Pairs\ndist.init"),
     PLAIN.replace('datasets.MNIST("data", train=True)', "Pairs(args)").replace("dist.init", "from pairs import Pairs\ndist.init").replace("shuffle=True", "num_workers=2")),
    ("unknown arguments", PLAIN, PLAIN.replace("shuffle=True", "**options")),
    ("path from options", PLAIN.replace('"data"', 'os.path.join(args.data, "train")'), PLAIN.replace('"data"', "f'part{rank}'")),
    ("DeepSpeed", DEEPSPEED.format("", "loader"), DEEPSPEED.format(", training_data=data", "batches")),
    ("DeepSpeed shares", DEEPSPEED.format("", "loader"), DEEPSPEED.format("", "engine.deepspeed_io(loader)").replace("loader = ", "loader = data  # ")),
    ("WebDataset", SHARDS.format("urls"), SHARDS.format("urls, nodesplitter=wds.split_by_node")),
    ("resampled", SHARDS.format("urls"), SHARDS.format("urls, resampled=True")),
    ("shards of the rank", SHARDS.format("urls"), SHARDS.format("urls[rank::4]")),
]  # fmt: skip

ALL = [
    pytest.param(name, yes, no, id=f"{name} {row}")
    for name, table in [
        ("set-epoch-missing", SET_EPOCH),
        ("sampler-missing", SAMPLER_MISSING),
    ]
    for row, yes, no in table
]


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_the_mistake_is_found_and_its_neighbour_is_not(name, yes, no):
    assert name in found(yes)
    assert name not in found(no)


def test_two_samplers_need_two_calls():
    source = (
        SAMPLED
        + "other = DistributedSampler(train_set)\nextra = DataLoader(train_set, sampler=other)\n"
    )
    source += (
        LOOP.format(first="sampler.set_epoch(epoch)")
        + "    for x in extra:\n        model(x).backward()\n"
    )
    assert "set-epoch-missing" in found(source)
