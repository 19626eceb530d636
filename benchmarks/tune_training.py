"""The trainings of ``benchmarks/tune.py``, on one rank, with the loader settings of the arguments.

    python benchmarks/tune_training.py {decode,tiny,...} [--num-workers N] [--prefetch-factor N]

``decode`` unpacks compressed samples, ``tiny`` has samples of a few bytes, ``fast`` has its data in
memory and a model that takes much longer than reading a batch, ``words`` computes in Python.
``waits`` and ``reads`` wait for a storage, ``reads`` also unpacks. It does not end.
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 32
WIDTHS = {"tiny": 64, "fast": 4096}  # of the model's hidden layer; 256 otherwise
NUM_INPUTS, NUM_CLASSES = 256, 4


@dataclass(frozen=True)
class Setting:
    """Settings of a training; 0 threads are torch's default."""

    num_workers: int = 0
    prefetch_factor: int = 0
    threads: int = 0


class Packed(Dataset):
    """Samples that take about 0.1 ms of computing each, as decoding a small picture does."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(0, 8, (64, 96 * 96 * 3), generator=generator, dtype=torch.uint8)
        self.packed = [zlib.compress(row.numpy().tobytes()) for row in rows]

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        data = bytearray(zlib.decompress(self.packed[index % len(self.packed)]))
        return torch.frombuffer(data, dtype=torch.uint8)[:NUM_INPUTS].float(), index % NUM_CLASSES


class Tiny(Dataset):
    """Samples that cost less than handing them over."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.zeros(NUM_INPUTS), index % NUM_CLASSES


class Words(Dataset):
    """Samples whose words are counted in Python."""

    def __init__(self) -> None:
        self.text = " ".join(f"word{number % 97}" for number in range(400))

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        counts = torch.zeros(NUM_INPUTS)
        for word, count in Counter(self.text.split()).items():
            counts[int(word[4:])] = count
        return counts, index % NUM_CLASSES


class Waits(Tiny):
    """Samples for which a storage is waited."""

    def __getitem__(self, index):
        time.sleep(0.004)
        return super().__getitem__(index)


class Reads(Packed):
    """Samples that come from a storage, packed."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(index)


class InMemory(Dataset):
    """Whole batches from memory."""

    def __init__(self) -> None:
        self.inputs = torch.zeros(10_000, NUM_INPUTS)

    def __len__(self):
        return len(self.inputs)

    def __getitems__(self, indices):
        return self.inputs[indices], torch.tensor(indices) % NUM_CLASSES


DATASETS = {
    "decode": Packed,
    "tiny": Tiny,
    "fast": InMemory,
    "words": Words,
    "waits": Waits,
    "reads": Reads,
}


def steps(workload: str, setting: Setting) -> Iterator[None]:
    """Train without end; yield after each step."""
    if setting.threads:
        torch.set_num_threads(setting.threads)
    dataset = DATASETS[workload]()
    loader = DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=setting.num_workers,
        prefetch_factor=setting.prefetch_factor or None,
        persistent_workers=setting.num_workers > 0,
        collate_fn=(lambda batch: batch) if workload == "fast" else None,
    )
    width = WIDTHS.get(workload, 256)
    model = nn.Sequential(nn.Linear(NUM_INPUTS, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, labels in itertools.chain.from_iterable(itertools.repeat(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        yield


def samples_per_s(workload: str, setting: Setting, *, warm_up_s: float, length_s: float) -> float:
    """Train for a while; return the speed after the warm-up."""
    training = steps(workload, setting)
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + warm_up_s:
        next(training)
    begin_s = now_s = time.monotonic()
    count = 0
    while now_s < begin_s + length_s:
        next(training)
        count += 1
        now_s = time.monotonic()
    return count * BATCH / (now_s - begin_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=DATASETS)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--prefetch-factor", type=int, default=0)
    options = parser.parse_args()
    for _ in steps(options.workload, Setting(options.num_workers, options.prefetch_factor)):
        pass


if __name__ == "__main__":
    main()
