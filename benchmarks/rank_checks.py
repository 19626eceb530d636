"""What it costs to compare ranks: one comparison beside one optimizer step, and its share of training.

Two ranks on this machine. A session compares them after steps 1, 2, 4, ..., 4096: thirteen times. Each round times
optimizer steps, whole training steps and comparisons in turn.

    python benchmarks/rank_checks.py --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import paceline

NUM_CHECKS, NUM_STEPS = 13, 4096
MODELS = {
    "net 32-64-10, 2.8 k parameters": (lambda: layers(32, 64, 10), 64, 40),
    "100 layers of 64, 0.4 M in 200 tensors": (lambda: layers(*[64] * 101), 64, 10),
    "6 layers of 1024, 6.3 M": (lambda: layers(*[1024] * 7), 64, 4),
}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
}


def layers(*widths: int) -> nn.Module:
    parts = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*(part for linear in parts for part in (linear, nn.ReLU())))


def timed(act, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - begin) / times


def measure(rounds: int) -> dict[str, list[list[float]]]:
    """On a rank: return the seconds of an optimizer step, a training step and a comparison, of each round."""
    torch.set_num_threads(1)
    return {
        f"{name} | {kind}": rounds_of(make(), optimizer, batch, times, rounds)
        for name, (make, batch, times) in MODELS.items()
        for kind, optimizer in OPTIMIZERS.items()
    }


def rounds_of(model: nn.Module, make_optimizer, batch: int, times: int, rounds: int):
    session = paceline.Session(loggers=(), run_dir=tempfile.mkdtemp())
    inputs = torch.ones(batch, model[0].in_features)
    model, optimizer = session.setup(model, make_optimizer(model.parameters()))
    gradients = session._gradients

    def step() -> None:
        session.backward(model(inputs).square().mean())
        optimizer.step()

    def compare() -> None:
        gradients.check.last_step = -1
        gradients.compare_ranks()

    timed(step, 3)
    compare()
    return [
        [timed(optimizer.step, times), timed(step, times), timed(compare, times)]
        for _ in range(rounds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--on-rank", action="store_true")
    options = parser.parse_args()
    if options.on_rank:
        found = measure(options.rounds)
        if os.environ["RANK"] == "0":
            Path(os.environ["FOUND"]).write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        script = [__file__, "--on-rank", "--rounds", str(options.rounds)]
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *script],
            env={**os.environ, "FOUND": str(file), "OMP_NUM_THREADS": "1"},
            check=True,
            stderr=subprocess.DEVNULL,
        )
        found = json.loads(file.read_text())
    print(
        "| model | optimizer step ms | training step ms | comparison ms | / optimizer step | of 4,096 steps |"
    )
    print("|---|---|---|---|---|---|")
    for name, numbers in found.items():
        own, whole, check = (statistics.median(column) for column in zip(*numbers, strict=True))
        share = NUM_CHECKS * check / (NUM_STEPS * whole)
        print(
            f"| {name} | {own * 1e3:.3f} | {whole * 1e3:.3f} | {check * 1e3:.3f} | {check / own:.2f} | {share:.2%} |"
        )


if __name__ == "__main__":
    main()
