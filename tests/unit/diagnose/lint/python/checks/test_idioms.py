"""Idioms of working training code beside the mistakes that they resemble: samplers, loaders, collectives."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import RAW

MAKE = "def make(data, shuffle=True):\n    return DistributedSampler(data, {})\n"
LOADER = "loader = DataLoader(train_set, sampler={})\n"
EPOCHS = "for epoch in range(3):\n    {}\n    for x in loader:\n        model(x).backward()\n"
SHUFFLED = "def make(data):\n    return DistributedSampler(data)\n"
LOADER = "loader = DataLoader(train_set, sampler={})\n"
EPOCHS = "for epoch in range(3):\n    {}\n    for x in loader:\n        model(x).backward()\n"
SAMPLED = "sampler = DistributedSampler(train_set)\n" + LOADER.format("sampler")
FOREVER = "def forever(loader):\n    epoch = 0\n    while True:\n        {}\n        for batch in loader:\n            yield batch\nbatches = forever(loader)\n"
SHUFFLED = MAKE.format("") + LOADER.format("make(train_set)")
ONCE = "for x in loader:\n    model(x).backward()\n"
TENSORS = "x, y = torch.randn(1000, 4), torch.randn(1000)\n"
FIT = "\ntrain_loader = DataLoader({}, batch_size=32, shuffle=True)\nfor a, b in train_loader:\n    model(a).backward()\n"
PAIR, PART = FIT.format("TensorDataset(x, y)"), FIT.format("TensorDataset(u, v)")
# Each rule: its name, severity and beginning; the wrong scripts, the right ones, and right ones that were once taken for wrong.
RULES = [
    ("set-epoch-missing", "warning", RAW, {
        "helper": SHUFFLED + EPOCHS.format("")}, {
        "seed of the epoch": "def make(data, epoch):\n    return DistributedSampler(data, seed=epoch)\n" + EPOCHS.format("loader = DataLoader(train_set, sampler=make(train_set, epoch))"),
        "validation": MAKE.format("shuffle=False") + LOADER.format("make(train_set)") + "val_loader = DataLoader(val_set, sampler=DistributedSampler(val_set))\n" + EPOCHS.format(""),
        "one pass": SHUFFLED + ONCE, "trained elsewhere": SHUFFLED + "for epoch in range(3):\n    train_one_epoch(model, loader, epoch)\n",
        "told elsewhere": SHUFFLED + EPOCHS.format("engine.begin(loader, epoch)"),
        "on the loader": SHUFFLED + EPOCHS.format("loader.sampler.set_epoch(epoch)"), "by a function": SHUFFLED + EPOCHS.format("set_epoch(loader, epoch)")}, {
        "chosen by the caller": MAKE.format("shuffle=shuffle") + LOADER.format("make(train_set, shuffle=False)") + EPOCHS.format("")}),
    ("collective-in-rank-block", "error", RAW, {
        "or cpu": "if rank == 0 or rank == 'cpu':\n    dist.barrier()\n"}, {
        "both sides": "if rank == 0 or rank == 'cpu':\n    dist.barrier()\nelse:\n    dist.barrier()\n",
        "or not cpu": "if rank == 0 or rank != 'cpu':\n    dist.barrier()\n", "not cpu": "if rank != 'cpu':\n    dist.barrier()\n"}, {
        "all": "def wait(rank):\n    if rank == 'all' or rank == 0:\n        dist.barrier()\n",
        "by a function": "def answer():\n    dist.barrier()\nif rank == 0:\n    dist.barrier()\nelse:\n    answer()\n"}),
    ("sampler-missing", "warning", RAW, {
        "scaled": TENSORS + "part = x[:800]\nu = (part - part.mean(0)) / part.std(0)\nv = y[:800].cuda()" + PART, "moved": TENSORS + FIT.format("TensorDataset(x[:800].cuda(), y[:800].cuda())"),
        "indexed": TENSORS + "u, v = x[:800], y[:800]" + PART}, {
        "bounds": TENSORS + "from utils import bounds\nlow, high = bounds(1000)\nu, v = x[low:high], y[low:high]" + PART, "chunk": TENSORS + "u, v = x.chunk(4)[rank], y.chunk(4)[rank]" + PART,
        "offset": TENSORS + "low = 250 * int(os.environ['RANK'])\nu, v = x[low:low + 250], y[low:low + 250]" + PART, "every nth": TENSORS + "u, v = x[rank::4], y[rank::4]" + PART,
        "mask": TENSORS + "mine = torch.arange(1000) % 4 == rank\nu, v = x[mine], y[mine]" + PART, "file": "part = torch.load(f'{rank}.pt')\nu, v = part['x'][:800], part['y'][:800]" + PART,
        "slice": TENSORS + "mine = slice(rank, None, 4)\nu, v = x[mine], y[mine]" + PART}, {
        "own order": TENSORS + "g = torch.Generator().manual_seed(rank)\norder = torch.randperm(1000, generator=g)\nu, v = x[order[:250]], y[order[:250]]" + PART,
        "unknown rows": TENSORS + "from utils import rows\nmine = rows(1000)" + FIT.format("TensorDataset(x[mine], y[mine])"),
        "rows in place": TENSORS + "mine = slice(rank, None, 4)" + FIT.format("TensorDataset(x[mine], y[mine])"), "scattered": TENSORS + "dist.scatter(x, parts)\ndist.scatter(y, labels)" + PAIR,
        "filled": TENSORS + "for step in range(1000):\n    x[step], y[step] = env.step()" + PAIR, "own seed": "torch.manual_seed(rank)\n" + TENSORS + "u, v = x[:800], y[:800]" + PART}),
]  # fmt: skip


def rows(*tables):
    return [
        pytest.param(rule[0], rule[1], rule[2] + text, id=f"{rule[0]}: {kind}")
        for rule in RULES
        for table in tables
        for kind, text in rule[table].items()
    ]


@pytest.mark.parametrize(("name", "expected", "source"), rows(3))
def test_the_mistake_is_found(name, expected, source):
    assert name in found(source)
    assert expected in ("", severity(source, name))


@pytest.mark.parametrize(("name", "expected", "source"), rows(4, 5))
def test_an_idiom_that_works_is_left_alone(name, expected, source):
    assert name not in found(source)
