"""How near the settings that ``paceline tune`` names come to the best of an exhaustive search.

    python benchmarks/tune.py [decode|tiny|fast ...]

Three trainings on one rank: ``decode`` unpacks compressed samples, ``tiny`` has samples of a few
bytes, ``fast`` has data in memory and a model that takes longer than loading. The exhaustive search
starts the training with each number of workers up to the CPUs, with 2 and 4 batches ahead and with
all threads and one, in turn over several rounds, and takes the median. The settings that tune names
are compared in the same figures: 1.00 is the best of the search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path

from paceline.machine.cpus import usable_cpus

WORKLOADS = ("decode", "tiny", "fast")
WARM_UP_S, LENGTH_S = 0.8, 2.0
BATCH = 32


def train(workload: str, setting: dict, seconds: float) -> None:
    """Train; print the samples per second after the warm-up."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 8, (64, 96 * 96 * 3), generator=generator, dtype=torch.uint8)
    packed = [zlib.compress(row.numpy().tobytes()) for row in rows]

    class Packed(Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            data = bytearray(zlib.decompress(packed[index % 64]))
            return torch.frombuffer(data, dtype=torch.uint8)[:256].float(), index % 4

    class Tiny(Dataset):
        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            return torch.zeros(256), index % 4

    class InMemory(Dataset):
        inputs = torch.zeros(10_000, 256)

        def __len__(self):
            return 10_000

        def __getitems__(self, indices):
            return self.inputs[indices], torch.tensor(indices) % 4

    datasets = {"decode": Packed, "tiny": Tiny, "fast": InMemory}
    width = {"decode": 256, "tiny": 64, "fast": 4096}[workload]
    if setting["threads"]:
        torch.set_num_threads(setting["threads"])
    loader = DataLoader(
        datasets[workload](),
        BATCH,
        shuffle=True,
        num_workers=setting["num_workers"],
        prefetch_factor=setting["prefetch_factor"] or None,
        persistent_workers=setting["num_workers"] > 0,
        collate_fn=(lambda batch: batch) if workload == "fast" else None,
    )
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count, start = 0, None
    begun = time.monotonic()
    for inputs, labels in itertools.chain.from_iterable(itertools.repeat(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        now = time.monotonic()
        if start is None and now - begun > WARM_UP_S and count > 4:
            start, count = now, 0
        count += 1
        if start is not None and now - start > seconds and count > 4:
            print((count - 1) * BATCH / (now - start))
            return


def settings(named: dict) -> list[dict]:
    """The settings of the exhaustive search, and the one that tune has named."""
    cpus, _ = usable_cpus()
    grid = [
        {"num_workers": workers, "prefetch_factor": ahead if workers else 0, "threads": threads}
        for workers in range(cpus + 1)
        for ahead in ((2, 4) if workers else (2,))
        for threads in (cpus, 1)
    ]
    return grid if named in grid else [*grid, named]


def rate(workload: str, setting: dict) -> float:
    words = ["--train", workload, "--setting", json.dumps(setting)]
    command = [sys.executable, __file__, *words, "--length", str(LENGTH_S)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(workload: str, rounds: int) -> float:
    """Print the figures of a training; return the share of the best rate that tune's setting has."""
    written = {"num_workers": 0, "prefetch_factor": 0, "threads": 0}
    words = [__file__, "--train", workload, "--setting", json.dumps(written)]
    begun = time.monotonic()
    command = [str(Path(sys.executable).with_name("paceline")), "tune", "--json"]
    ended = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
    took = time.monotonic() - begun
    answer = json.loads(ended.stdout)
    named = {key: answer["best"][key] for key in written}
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        for setting in settings(named):
            rates.setdefault(json.dumps(setting), []).append(rate(workload, setting))
    medians = {text: statistics.median(values) for text, values in rates.items()}
    best = max(medians, key=medians.get)
    share = medians[json.dumps(named)] / medians[best]
    print(f"{workload}: tune took {took:.0f} s, data is the brake: {answer['data_is_bottleneck']}")
    for text, median in sorted(medians.items(), key=lambda item: -item[1]):
        mark = "  named by tune" if text == json.dumps(named) else ""
        low, high = min(rates[text]), max(rates[text])
        print(f"  {text:60} {median:8.0f} samples/s ({low:.0f} to {high:.0f}){mark}")
    print(f"  {share:.2f} of the best\n", flush=True)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", choices=WORKLOADS)
    parser.add_argument("--setting", type=json.loads)
    parser.add_argument("--length", type=float, default=float("inf"))
    options = parser.parse_args()
    if options.train:
        train(options.train, options.setting, options.length)
        return
    for workload in options.workloads or WORKLOADS:
        compare(workload, options.rounds)


if __name__ == "__main__":
    main()
