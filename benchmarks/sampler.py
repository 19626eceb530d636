"""The order of a billion samples on the last rank of 16,384: start, memory, and what a batch costs.

    python benchmarks/sampler.py [--write]

A stored permutation of 10^9 samples would take 8 GB on every rank. The computed one is compared
with it at a size where both are possible, batch by batch, alternating.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from paceline.train.data.order import CountedOrder, blocks, epoch_order, shuffled
from paceline.train.data.share import EvenBatches, Shard

ROUNDS = 7
RAW = Path(__file__).parent.parent / "docs" / "raw" / "sampler.json"
LENGTH, WORLD_SIZE = 10**9, 16_384


def shares(order, shard):
    return blocks(order, shard.read())


def start(per_rank):
    """Milliseconds until the first batch of an epoch."""
    before = time.perf_counter()
    shard = Shard(EvenBatches(LENGTH, per_rank * WORLD_SIZE), WORLD_SIZE - 1, WORLD_SIZE)
    next(shares(shuffled(LENGTH, seed=0, epoch=1), shard))
    return (time.perf_counter() - before) * 1e3


def per_batch(batches, number):
    """Microseconds for a batch of indices."""
    before = time.perf_counter()
    for _ in range(number):
        next(batches)
    return (time.perf_counter() - before) / number * 1e6


def stored_batches(order, size):
    """What a sampler does with a stored permutation: a slice, as a list."""
    return (order[first : first + size].tolist() for first in range(0, len(order), size))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="write the raw numbers to docs/raw")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a rank's share on these machines
    raw = {"length": LENGTH, "world_size": WORLD_SIZE, "start_ms": {}, "batch_us": {}}
    table = Table(
        "samples a rank", "start [ms]", "computed [us/batch]", "stored [us/batch]", "ratio"
    )
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in (8, 32, 256, 2048):
        raw["start_ms"][size] = [start(size) for _ in range(ROUNDS)]
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) / 1024
    raw["memory_mb"] = grown_mb
    # The same number of batches on both sides; the stored one is as large as they need and no
    # larger.
    for size in (8, 32, 256, 2048):
        number = max(2000, (1 << 17) // size)
        stored = torch.frombuffer(epoch_order(number * size, seed=0, epoch=0), dtype=torch.int64)
        shard = Shard(EvenBatches(LENGTH, size * WORLD_SIZE), WORLD_SIZE - 1, WORLD_SIZE)
        number = min(number, shard.num_batches - 1)
        sides = {"computed": [], "stored": []}
        for _ in range(ROUNDS):
            computed = shares(CountedOrder(LENGTH, seed=0, epoch=1), shard)
            sides["computed"].append(per_batch(computed, number))
            sides["stored"].append(per_batch(stored_batches(stored, size), number))
        raw["batch_us"][size] = sides
        ours, theirs = (statistics.median(sides[side]) for side in ("computed", "stored"))
        first = statistics.median(raw["start_ms"][size])
        table.add_row(
            f"{size}", f"{first:.1f}", f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"
        )
    console = Console()
    console.print(table)
    console.print(
        f"resident memory grew by {grown_mb:.1f} MB; stored it would be {LENGTH * 8 / 1e6:.0f} MB"
    )
    console.print("targets: start at most 50 ms, constant memory, ratio at most 2")
    if args.write:
        RAW.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
