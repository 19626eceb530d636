"""Samplers, epochs, loaders and downloads."""

import pytest

from unit.diagnose.lint.python.pairs import found, severity
from unit.diagnose.lint.python.sources import ACCELERATE, FABRIC, LIGHTNING, RAW

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
]  # fmt: skip

WORKERS = (
    "from torch.utils.data import DataLoader, IterableDataset\nloader = DataLoader(d, 8, shuffle=True, num_workers=4)\n"
    + LOOP.format(first="pass")
)
KEPT = WORKERS.replace("num_workers=4", "num_workers=4, persistent_workers=True")
IN_FUNCTION = (
    "from torch.utils.data import DataLoader\ndef train(data):\n    for x in data:\n        model(x).backward()\n"
    "def main():\n    loader = DataLoader(d, sampler=s, num_workers=2)\n"
    "    for epoch in range(9):\n        train(loader)\n"
)
NOT_PERSISTENT = [
    ("kept", WORKERS, KEPT),
    ("ended on purpose", WORKERS, KEPT.replace("=True\n", "=False\n")),
    ("no workers", WORKERS, WORKERS.replace("num_workers=4", "num_workers=0")),
    ("number not known", WORKERS, WORKERS.replace("num_workers=4", "num_workers=args.workers")),
    ("another start method", WORKERS, WORKERS.replace("num_workers=4", "num_workers=4, multiprocessing_context='spawn'")),
    ("unknown arguments", WORKERS, WORKERS.replace("num_workers=4", "num_workers=4, **options")),
    ("a stream", WORKERS, WORKERS.replace(" shuffle=True,", "")),
    ("one epoch", WORKERS, WORKERS.replace("range(10)", "range(1)")),
    ("no loop over epochs", WORKERS, WORKERS.replace("for epoch in range(10)", "if True")),
    ("another loader", WORKERS, WORKERS.replace("in loader", "in other")),
    ("in a function of the file", IN_FUNCTION, IN_FUNCTION.replace("train(loader)", "train(other)")),
    ("made in each epoch", IN_FUNCTION, IN_FUNCTION.replace("train(loader)", "train(DataLoader(d, sampler=s, num_workers=2))").replace("    loader =", "    other =")),
    ("handed to a framework", IN_FUNCTION, IN_FUNCTION.replace("    for epoch", "    loader = fabric.setup_dataloaders(loader)\n    for epoch")),
    ("another DataLoader", WORKERS, WORKERS.replace("torch.utils.data import", "own import")),
]  # fmt: skip

BOTH = "import torch\nfrom torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler\n"
SHUFFLE = [
    ("inline", BOTH + "DataLoader(d, shuffle=True, sampler=DistributedSampler(d))", BOTH + "DataLoader(d, sampler=DistributedSampler(d))"),
    ("by name", BOTH + "s = DistributedSampler(d)\nDataLoader(d, shuffle=True, sampler=s)",
     BOTH + "s = DistributedSampler(d)\nDataLoader(d, shuffle=s is None, sampler=s)"),
    ("other sampler", BOTH + "DataLoader(d, 8, True, RandomSampler(d))", BOTH + "DataLoader(d, 8, False, RandomSampler(d))"),
    ("weighted", BOTH + "DataLoader(d, shuffle=True, sampler=WeightedRandomSampler(w, 3))",
     BOTH + "DataLoader(d, shuffle=True, sampler=None)"),
    ("expected to fail", BOTH + "DataLoader(d, shuffle=True, sampler=DistributedSampler(d))",
     BOTH + "import pytest\nwith pytest.raises(ValueError):\n    DataLoader(d, shuffle=True, sampler=DistributedSampler(d))"),
    ("unknown sampler", BOTH + "DataLoader(d, shuffle=True, sampler=DistributedSampler(d))",
     BOTH + "def f(s):\n    return DataLoader(d, shuffle=True, sampler=s)"),
    ("other DataLoader", BOTH + "DataLoader(d, shuffle=True, sampler=DistributedSampler(d))",
     BOTH.replace("DataLoader, ", "") + "from own import DataLoader\nDataLoader(d, shuffle=True, sampler=DistributedSampler(d))"),
]  # fmt: skip

DOWNLOAD = [
    ("mnist", RAW + 'if rank == 0:\n    datasets.MNIST("/tmp/data", download=True)\ndist.barrier()\n',
     RAW + 'if local_rank == 0:\n    datasets.MNIST("/tmp/data", download=True)\ndist.barrier()\n'),
    ("argument", RAW + 'datasets.CIFAR10("data", download=rank == 0)\n', RAW + 'datasets.CIFAR10("data", download=local_rank == 0)\n'),
    ("hub", ACCELERATE + "from huggingface_hub import snapshot_download\nif accelerator.is_main_process:\n    snapshot_download('a/b')\n",
     ACCELERATE + "from huggingface_hub import snapshot_download\nif accelerator.is_local_main_process:\n    snapshot_download('a/b')\n"),
    ("environment", RAW + 'if int(os.environ["RANK"]) == 0:\n    datasets.MNIST("/scratch/x", download=True)\n',
     RAW + 'if int(os.environ["LOCAL_RANK"]) == 0:\n    datasets.MNIST("/scratch/x", download=True)\n'),
    ("everyone", RAW + 'if dist.get_rank() == 0:\n    datasets.MNIST("d", download=True)\n', RAW + 'datasets.MNIST("d", download=True)\n'),
    ("lightning", LIGHTNING + "class D(L.LightningDataModule):\n    def __init__(self):\n        self.prepare_data_per_node = False\n",
     LIGHTNING + "class D(L.LightningDataModule):\n    def __init__(self):\n        self.prepare_data_per_node = True\n"),
    ("one first", FABRIC + 'from torchvision import datasets\nwith fabric.rank_zero_first():\n    datasets.MNIST("/tmp/d", download=True)\n',
     FABRIC + 'from torchvision import datasets\nwith fabric.rank_zero_first(local=True):\n    datasets.MNIST("/tmp/d", download=True)\n'),
    ("own function", RAW + "def download(to):\n    pass\nif rank == 0:\n    download('x')\n", RAW + "def download(to):\n    pass\nif local_rank == 0:\n    download('x')\n"),
    ("one process", RAW + 'if rank == 0:\n    datasets.MNIST("d", download=True)\n',
     RAW + 'if not dist.is_initialized() and rank == 0:\n    datasets.MNIST("d", download=True)\n'),
]  # fmt: skip

ALL = [
    pytest.param(name, yes, no, id=f"{name} {row}")
    for name, table in [
        ("set-epoch-missing", SET_EPOCH),
        ("sampler-missing", SAMPLER_MISSING),
        ("shuffle-with-sampler", SHUFFLE),
        ("download-on-global-rank-only", DOWNLOAD),
        ("workers-not-persistent", NOT_PERSISTENT),
    ]
    for row, yes, no in table
]


@pytest.mark.parametrize(("name", "yes", "no"), ALL)
def test_the_mistake_is_found_and_its_neighbour_is_not(name, yes, no):
    assert name in found(yes)
    assert name not in found(no)


def test_torch_refuses_shuffle_with_a_sampler_so_it_is_an_error():
    assert severity(SHUFFLE[0][1], "shuffle-with-sampler") == "error"


@pytest.mark.parametrize(
    ("row", "expected"), [(0, "warning"), (1, "hint"), (2, "hint"), (3, "warning")]
)
def test_a_download_is_a_warning_only_into_a_folder_that_is_local_by_its_name(row, expected):
    assert severity(DOWNLOAD[row][1], "download-on-global-rank-only") == expected


def test_workers_that_are_started_anew_are_no_more_than_a_hint():
    assert severity(WORKERS, "workers-not-persistent") == "hint"


def test_two_samplers_need_two_calls():
    source = (
        SAMPLED
        + "other = DistributedSampler(val_set)\nextra = DataLoader(val_set, sampler=other)\n"
    )
    source += (
        LOOP.format(first="sampler.set_epoch(epoch)")
        + "    for x in extra:\n        model(x).backward()\n"
    )
    assert "set-epoch-missing" in found(source)


SEEDED = (
    RAW
    + "sampler = DistributedSampler(train_set, seed={})\nloader = DataLoader(train_set, sampler=sampler)\n"
)


@pytest.mark.parametrize(
    "seed", ["rank", "7 + dist.get_rank()", "int(time.time()) * local_rank", "own"]
)
def test_a_seed_of_each_rank_mixes_the_shares(seed):
    source = SEEDED.format(seed).replace("sampler =", "own = args.seed + rank\nsampler =", 1)
    assert "same-data-on-all-ranks" in found(source)


@pytest.mark.parametrize(
    "seed",
    [
        "0",
        "args.seed",
        "epoch",
        "args.seed * dist.get_world_size()",
        "None",
        "seeds[0]",
        "42 + trial",
    ],
)
def test_a_seed_that_all_ranks_share_is_right(seed):
    assert "same-data-on-all-ranks" not in found(SEEDED.format(seed))
