"""How fast data is loaded: arrays in memory, datasets of five shapes, and the memory of two ranks.

    python benchmarks/input.py                    # everything, some minutes
    python benchmarks/input.py --rounds 3 --only arrays,shapes,memory

"arrays": pictures of CIFAR's shape are cropped (4 pixels of padding), mirrored with probability 0.5
and normalized, as float32. ``paceline.data.arrays`` does it in one thread; torch's DataLoader per
image with PIL, written as torchvision writes it, with each number of workers; SPDL the same
functions in threads, if it is installed. All draw from the same distributions; only paceline's
random numbers are a function of the sample.

"shapes": ``session.loader`` beside torch's DataLoader on the same dataset with the same workers,
both kept between epochs. "of 32 numbers" is the worst case, since a sample takes only some times
as long as its generators' states; "pictures" is the crop and the flip, drawn one by one. A stream
divides itself among torch's workers, while each of ours reads all of it, unless it is
``sharded_by_worker``. With one worker both read the same, so what is lost with two is the division.

"memory": two ranks load the same arrays; the sum of their proportional set sizes (PSS) counts a
page that both share once.

Sides take turns in each round, in another order. Medians over the rounds, and the ratio of medians
with its bootstrap interval (95 %).
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")

import random

import numpy as np
import psutil
import torch
from pictures import MEAN, STD, PilPictures, pictures
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import paceline
from paceline.data import Normalize, RandomCrop, RandomFlip, arrays
from paceline.measure.intervals import ratio

PICTURES, BATCH = 4096, 256
SMALL, SMALL_BATCH = 8192, 64
WORKERS = (0, 1, 2, 4)
MEMORY_PICTURES = 50_000  # 154 MB, as CIFAR-10


def spdl_side(dataset, threads):
    """Return a function that runs an epoch with SPDL, or None if it is not installed."""
    try:
        from spdl.pipeline import PipelineBuilder
    except ImportError:
        return None

    def load(indices):
        return torch.utils.data.default_collate([dataset[index] for index in indices])

    def epoch():
        order = torch.randperm(len(dataset)).split(BATCH)
        builder = PipelineBuilder().add_source([indices.tolist() for indices in order])
        # Whole batches, since each item of a stage costs some 0.5 ms.
        builder.pipe(load, concurrency=threads).add_sink(4)
        pipeline = builder.build(num_threads=threads)
        with pipeline.auto_stop():
            return sum(len(images) for images, _ in pipeline)

    return epoch


def counted(loader):
    """Return a function that runs an epoch and returns its number of samples."""
    return lambda: sum(len(batch[0]) for batch in loader)


def rates(sides, rounds, seed=0):
    """Return samples/s of each side in each round, after a round to warm up."""
    figures = {name: [] for name in sides}
    source = Random(seed)
    for number in range(rounds + 1):
        for name in source.sample(list(sides), len(sides)):
            begin = time.perf_counter()
            samples = sides[name]()
            if number:
                figures[name].append(samples / (time.perf_counter() - begin))
    return figures


def compare_arrays(console, rounds):
    images, labels = pictures(PICTURES), np.arange(PICTURES)
    session = paceline.Session(seed=0)
    transform = [RandomCrop(32, padding=4), RandomFlip(), Normalize(MEAN, STD)]
    dataset = arrays(images, labels, transform=transform)
    sides = {
        "paceline.data.arrays, session.loader": counted(
            session.loader(dataset, BATCH, shuffle=True)
        )
    }
    sides["paceline.data.arrays, raw loop"] = counted(dataset.batches(BATCH, shuffle=True))
    single = PilPictures(images, labels)
    for workers in WORKERS:
        loader = DataLoader(
            single, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        sides[f"DataLoader + PIL, {workers} workers"] = counted(loader)
    for threads in (1, 2):
        side = spdl_side(single, threads)
        if side is None:
            console.print("SPDL is not installed: pip install paceline\\[benchmarks]")
            break
        sides[f"SPDL + PIL, {threads} threads"] = side
    figures = rates(sides, rounds)
    best = max(
        (name for name in sides if "DataLoader" in name),
        key=lambda n: statistics.median(figures[n]),
    )
    table = Table("CIFAR-shaped crop, flip, normalize", "samples/s", f"over {best.split(', ')[1]}")
    for name, values in figures.items():
        quotient = ratio([values], [figures[best]])
        table.add_row(
            name,
            f"{statistics.median(values):,.0f}",
            f"{quotient.value:.2f} ({quotient.low:.2f} to {quotient.high:.2f})",
        )
    console.print(table)


ROWS = torch.randn(SMALL, 32)
ROWS_OF_NUMPY = ROWS.numpy().copy()
IMAGES = pictures(2048)


class OfRows(Dataset):
    def __len__(self):
        return SMALL


class TorchDraws(OfRows):
    def __getitem__(self, index):
        return ROWS[index] + 0.1 * torch.randn(32), index


class NumpyDraws(OfRows):
    def __getitem__(self, index):
        return ROWS_OF_NUMPY[index] + np.random.rand(32).astype(np.float32), index


class PythonAndNumpyDraw(OfRows):
    def __getitem__(self, index):
        row = ROWS_OF_NUMPY[index] + np.random.rand(32).astype(np.float32)
        return (row if random.random() < 0.5 else -row), index


class DrawnPictures(Dataset):
    """Crop and flip with NumPy and Python's random numbers, one picture at a time."""

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, index):
        image = np.pad(IMAGES[index], ((4, 4), (4, 4), (0, 0)))
        top, left = np.random.randint(0, 9, 2)
        image = image[top : top + 32, left : left + 32]
        if random.random() < 0.5:
            image = image[:, ::-1]
        return image.transpose(2, 0, 1).astype(np.float32), index


class Rows(IterableDataset):
    """A stream that divides itself among workers, as torch's documentation shows."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, SMALL, step):
            yield ROWS[index] + 0.1 * torch.randn(32), index


class SlowRows(IterableDataset):
    """The same, with 1 ms of waiting for each sample."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 512, step):
            time.sleep(0.001)
            yield ROWS[index], index


SHAPES = {
    "TensorDataset": (lambda: TensorDataset(ROWS, torch.arange(SMALL)), 0),
    "draws torch, of 32 numbers": (TorchDraws, 0),
    "draws NumPy, of 32 numbers": (NumpyDraws, 0),
    "draws NumPy and Python, of 32 numbers": (PythonAndNumpyDraw, 0),
    "draws NumPy and Python, pictures": (DrawnPictures, 0),
    "draws torch, two workers": (TorchDraws, 2),
    "stream, two workers": (Rows, 2),
    "stream that waits, divided by worker": (SlowRows, 2),
    "stream that waits, two workers": (SlowRows, 2),
    "stream, one worker": (Rows, 1),
    "stream that waits, one worker": (SlowRows, 1),
}


def compare_shapes(console, rounds):
    session = paceline.Session(seed=0)
    table = Table("dataset", "DataLoader", "session.loader", "ratio")
    for name, (make, workers) in SHAPES.items():
        dataset = make()
        order = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
        settings = {"num_workers": workers, "persistent_workers": workers > 0, **order}
        divided = {"sharded_by_worker": True} if name.endswith("by worker") else {}
        ours = session.loader(dataset, SMALL_BATCH, **settings, **divided)
        theirs = DataLoader(dataset, SMALL_BATCH, **settings)
        figures = rates({"ours": counted(ours), "theirs": counted(theirs)}, rounds)
        ours.release()
        del theirs
        quotient = ratio([figures["ours"]], [figures["theirs"]])
        table.add_row(
            name,
            f"{statistics.median(figures['theirs']):,.0f}",
            f"{statistics.median(figures['ours']):,.0f}",
            f"{quotient.value:.2f} ({quotient.low:.2f} to {quotient.high:.2f})",
        )
    console.print(table)


def hold(rank, meeting, kind):
    """Hold the data on one of two ranks, and print this rank's PSS and USS beyond torch's, in MB."""
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    own = psutil.Process()
    torch.distributed.barrier()
    before = own.memory_full_info()

    def load():
        return np.random.default_rng(0).integers(
            0, 256, (MEMORY_PICTURES, 3, 32, 32), dtype=np.uint8
        )

    if kind == "arrays":
        data = arrays(load(), transform=Normalize(MEAN, STD))
        for stored in data.stored:
            stored.sum()  # a page of a mapped file counts once it was read
    else:
        data = TensorDataset(torch.from_numpy(load()))
    torch.distributed.barrier()
    after = own.memory_full_info()
    print(after.pss - before.pss, after.uss - before.uss, flush=True)
    torch.distributed.barrier()
    del data


def compare_memory(console):
    table = Table("two ranks, the same 154 MB each", "PSS, both [MB]", "USS, both [MB]")
    for kind in ("arrays", "TensorDataset"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--hold", kind, "--meeting", f"{folder}/store"]
            ranks = [
                subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
                for rank in range(2)
            ]
            printed = [rank.communicate(timeout=120)[0].split() for rank in ranks]
        sums = (sum(int(of_rank[place]) for of_rank in printed) / 1e6 for place in (0, 1))
        table.add_row(kind, *(f"{value:.0f}" for value in sums))
    console.print(table)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="arrays,shapes,memory")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        hold(args.rank, args.meeting, args.hold)
        return
    console = Console(width=100)
    load = os.getloadavg()[0]
    console.print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} CPUs")
    console.print(f"load average at the start: {load:.1f}; beside other work figures are noisy")
    torch.set_num_threads(1)
    parts = args.only.split(",")
    if "arrays" in parts:
        compare_arrays(console, args.rounds)
    if "shapes" in parts:
        compare_shapes(console, args.rounds)
    if "memory" in parts:
        compare_memory(console)


if __name__ == "__main__":
    main()
