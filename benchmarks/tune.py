"""How near the settings that ``paceline tune`` names come to the best of an exhaustive search.

    python benchmarks/tune.py [decode|tiny|...] [--rounds 1] [--final-rounds 7]

Six trainings on one rank (``tune_training.py``). The exhaustive search runs the training with
up to 16 workers, with 2 and 4 batches ahead, with all threads and with one, in turn over
``--rounds`` rounds. Its two best settings, those that tune names and the script's own are then
measured again, side by side in alternating rounds: a figure of the search had luck, or it would not
be the best one. The share is the median over those rounds of the speed with tune's settings over
the speed with the best of these, with its bootstrap interval: 1.00 is equally fast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import astuple
from multiprocessing.connection import Connection
from pathlib import Path

import tune_training
from tune_training import DATASETS, Setting

from paceline.machine.cpus import usable_cpus
from paceline.measure import intervals

WARM_UP_S, SEARCH_S, FINAL_S = 0.6, 1.0, 1.5
WRITTEN = Setting(threads=usable_cpus()[0])  # torch's default, which the script keeps
WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
NUM_BEST = 2  # of the search, that are measured again

Rates = dict[Setting, list[float]]


def train_in_child(end: Connection, workload: str, setting: Setting, length_s: float) -> None:
    end.send(tune_training.samples_per_s(workload, setting, warm_up_s=WARM_UP_S, length_s=length_s))


def rate(workload: str, setting: Setting, length_s: float) -> float:
    """Train in a process of its own, forked from this one, which has imported torch."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=train_in_child, args=(sender, workload, setting, length_s))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        child.join()


def settings_of_search() -> list[Setting]:
    cpus, _ = usable_cpus()
    return [
        Setting(workers, ahead, threads)
        for workers in WORKERS
        for ahead in ((2, 4) if workers else (0,))
        for threads in sorted({1, cpus})
    ]


def measure(workload: str, settings: list[Setting], rounds: int, length_s: float) -> Rates:
    """Measure settings in rounds, each in another order."""
    rates: Rates = {setting: [] for setting in settings}
    for number in range(rounds):
        order = random.Random(number).sample(settings, len(settings))
        for setting in order:
            rates[setting].append(rate(workload, setting, length_s))
    return rates


def tuned(workload: str) -> tuple[dict, float]:
    """Return the answer of tune, and the seconds that it took."""
    command = [str(Path(sys.executable).with_name("paceline")), "tune", "--json"]
    begin_s = time.monotonic()
    ended = subprocess.run(
        [*command, tune_training.__file__, workload], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(ended.stdout), time.monotonic() - begin_s


def named(answer: dict) -> Setting:
    best = answer["best"]
    return Setting(best["num_workers"], best["prefetch_factor"], best["threads"])


def compare(workload: str, options: argparse.Namespace) -> float:
    """Print the figures of a training; return the speed of tune's settings over the best ones'."""
    answer, tune_s = tuned(workload)
    searched = measure(workload, settings_of_search(), options.rounds, SEARCH_S)
    by_rate = sorted(searched, key=lambda setting: -statistics.median(searched[setting]))
    choice = named(answer)
    finalists = list(dict.fromkeys([choice, *by_rate[:NUM_BEST], WRITTEN]))
    final = measure(workload, finalists, options.final_rounds, FINAL_S)

    print(
        f"{workload}: tune took {tune_s:.0f} s, {len(answer['settings'])} settings,"
        f" data is the brake: {answer['data_is_bottleneck']}; load {os.getloadavg()[0]:.1f}"
    )
    show("exhaustive search", searched, choice)
    show("side by side", final, choice)
    shares = [share(final, choice, other) for other in finalists]
    least = min(shares, key=lambda interval: interval.value)
    gain = share(final, choice, WRITTEN)
    print(
        f"  over the best side by side: {words(least)}; over the script as written: {words(gain)}\n",
        flush=True,
    )
    return least.value


def share(rates: Rates, setting: Setting, other: Setting) -> intervals.Interval:
    """Return how many times as fast a setting is as another, from rounds in which both ran."""
    pairs = [own / others for own, others in zip(rates[setting], rates[other], strict=True)]
    return intervals.median([[pair] for pair in pairs])


def words(interval: intervals.Interval) -> str:
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def show(title: str, rates: Rates, choice: Setting) -> None:
    print(f"  {title}: workers, ahead, threads")
    for setting in sorted(rates, key=lambda setting: -statistics.median(rates[setting])):
        values = rates[setting]
        mark = "  named by tune" if setting == choice else ""
        print(
            f"    {astuple(setting)!s:12} {statistics.median(values):9,.0f} samples/s"
            f" ({min(values):,.0f} to {max(values):,.0f}){mark}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", choices=[*DATASETS, []], default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--final-rounds", type=int, default=7)
    options = parser.parse_args()
    for workload in options.workloads or DATASETS:
        compare(workload, options)


if __name__ == "__main__":
    main()
