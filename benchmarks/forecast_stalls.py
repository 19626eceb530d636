"""Forecasts of trainings that stall now and then, beside what more ranks then measured.

    python benchmarks/forecast_stalls.py [samples|saves|pauses|tail|shards ...] [--steps 150]

A bench of 1 and 2 ranks forecasts 4 on the same node, which then train. Computing is replaced by
sleeping, because few cores cannot compute for four ranks: what ranks take from each other on one
node is not forecast. ``samples``: one sample in 400 takes 200 ms. ``saves``: each rank writes for
100 ms every 15 steps. ``pauses``: a rank pauses for 80 ms in 3 % of its steps. ``tail``: each step's
time has a heavy tail. ``shards``: a shard change of 250 ms in 1 % of the steps, on each rank at
another time.
Measured figures are the median of ``--rounds`` runs; a forecast is right if that is inside its
interval.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACELINE = str(Path(sys.executable).with_name("paceline"))
KINDS = ("samples", "saves", "pauses", "tail", "shards")
BATCH, STEP_S = 32, 0.08
WORLD = 4


def stall_s(kind: str, step: int, source: random.Random) -> float:
    """Return how much longer a step takes on this rank."""
    if kind == "samples":
        return sum(0.2 for _ in range(BATCH) if source.random() < 0.0025)
    if kind == "saves":
        return 0.1 if step % 15 == 14 else 0.0
    if kind == "pauses":
        return 0.08 if source.random() < 0.03 else 0.0
    if kind == "tail":
        return 0.006 * source.paretovariate(2.2)
    return 0.25 if source.random() < 0.01 else 0.0


def train(kind: str, num_steps: int) -> None:
    """Train without end, or for a number of steps and print samples/s."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    source = random.Random(f"{kind} {rank} {time.time_ns()}")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader([(torch.zeros(BATCH, 64),)] * 10_000, batch_size=None)
    begin_s = time.monotonic()
    for step, (inputs,) in enumerate(loader):
        if step == 10:
            begin_s = time.monotonic()
        loss = model(inputs).square().mean()
        time.sleep(STEP_S + stall_s(kind, step, source))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == num_steps:
            break
    if rank == 0 and num_steps:
        print(
            json.dumps({"samples_per_s": (step - 9) * BATCH * world / (time.monotonic() - begin_s)})
        )
    torch.distributed.destroy_process_group()


def run(*words: str, folder: str) -> str:
    ended = subprocess.run([PACELINE, *words], cwd=folder, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {ended.returncode}")
    return ended.stdout


def measured(kind: str, num_steps: int, folder: str) -> float:
    words = ["run", "--nproc-per-node", str(WORLD), "--no-slurm", __file__, "--train", kind]
    output = run(*words, "--steps", str(num_steps), folder=folder)
    (line,) = [line for line in output.splitlines() if '"samples_per_s"' in line]
    return json.loads(line[line.index("{") :])["samples_per_s"]


def compare(kind: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = [__file__, "--train", kind, "--steps", "0"]
        steps = ["--steps", str(options.steps)]
        worlds = ["--world", str(WORLD), "--gpus-per-node", str(WORLD)]
        run("bench", "--world", "1,2", *steps, "--run-dir", "bench", *script, folder=folder)
        answer = json.loads(run("forecast", "bench", *worlds, "--json", folder=folder))
        figures = [measured(kind, options.measured_steps, folder) for _ in range(options.rounds)]
    (point,) = answer["points"]
    value, width = (
        statistics.median(figures),
        (point["high"] - point["low"]) / point["samples_per_s"],
    )
    is_right = point["low"] <= value <= point["high"]
    print(
        f"{kind}: forecast {point['samples_per_s']:,.0f} ({point['low']:,.0f} to {point['high']:,.0f},"
        f" {width:.0%} wide), measured {value:,.0f} ({min(figures):,.0f} to {max(figures):,.0f}):"
        f" {'inside' if is_right else 'OUTSIDE'}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[])
    parser.add_argument("--steps", type=int, default=150, help="of a start of the bench")
    parser.add_argument("--measured-steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.steps)
        return
    for kind in options.kinds or KINDS:
        compare(kind, options)


if __name__ == "__main__":
    main()
