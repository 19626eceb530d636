"""Is the stage and the rank that slows a run named? Fifty injected delays, sixteen that are not in
every step, and thirty runs in which all ranks are alike.

    python benchmarks/stages.py                 # all: about 30 minutes
    python benchmarks/stages.py --only rare     # those that are not in every step, and all healthy runs
    python benchmarks/stages.py --some 10       # each fifth delay and healthy run

The cases are fixed: 2 ranks and 4; a delay of 10, 25 or 50 % of a step in one stage of one rank;
the frameworks in turn. A case counts as "first" if the run's JSON names the stage and the rank,
and as "top two" if they are among its first two suspects. A run that says "needs more evidence"
names nobody, which is a miss; a healthy run that names somebody is a false alarm. Of a delay that is not
in every step, the first of ``rare`` has to have the rank and the stage.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from launch import BIN, header

SCRIPT = Path(__file__).parent / "stage_delays" / "train.py"
FRAMEWORKS = ("ddp", "fabric", "lightning", "accelerate")
STAGES = ("data", "forward", "backward", "optimizer")
SHARES = (0.10, 0.25, 0.50)
STEP_MS = 38.0  # the sum of STAGES_MS in train.py
RANKS = {2: (0, 1), 4: (0, 3)}
MORE = [(4, 2, "data", 0.10), (4, 2, "backward", 0.10)]
HEALTHY = 30
ALL = -2


def cases() -> list[dict]:
    """Return all delays, the frameworks in turn."""
    delays = [
        (world, rank, stage, share)
        for world, ranks in RANKS.items()
        for rank, stage, share in itertools.product(ranks, STAGES, SHARES)
    ]
    return [
        {"world": world, "rank": rank, "stage": stage, "share": share, "framework": framework}
        for (world, rank, stage, share), framework in zip(
            delays + MORE, itertools.cycle(FRAMEWORKS), strict=False
        )
    ]


def rare() -> list[dict]:
    """Return delays of single steps: regular ones, a validation, and pauses that come by chance."""
    kinds = [
        {"stage": "other", "rank": 0, "delay_ms": 160, "every": 10},  # a checkpoint of rank 0
        {"stage": "validation", "rank": 1, "delay_ms": 30, "validate_every": 15},
        {"stage": "data", "rank": 1, "delay_ms": 120, "every": 12},  # another shard is opened
        {"stage": "forward", "rank": 1, "delay_ms": 90, "chance": 0.3},
        {"stage": "backward", "rank": 0, "delay_ms": 150, "every": 8},
        {"stage": "optimizer", "rank": 1, "delay_ms": 100, "every": 10},
        {"stage": "data", "rank": 0, "delay_ms": 200, "chance": 0.12},  # storage that stalls
        {"stage": "other", "rank": 1, "delay_ms": 60, "every": 5},  # logging
    ]
    return [
        {"world": world, "framework": framework, **kind}
        for (world, kind), framework in zip(
            itertools.product(RANKS, kinds),
            itertools.cycle((*FRAMEWORKS, "transformers")),
            strict=False,
        )
    ]


def healthy() -> list[dict]:
    """Return runs without a delay, and runs in which all ranks have the same ones."""
    shared = [
        {},
        {},
        {"rank": ALL, "stage": "other", "delay_ms": 150, "every": 20},
        {"validate_every": 15},
        {"rank": ALL, "stage": "data", "delay_ms": 100, "chance": 0.06},
    ]
    worlds, frameworks = itertools.cycle(RANKS), itertools.cycle((*FRAMEWORKS, "transformers"))
    return [
        {"world": next(worlds), "framework": next(frameworks), "rank": -1, **shared[number % 5]}
        for number in range(HEALTHY)
    ]


def run(case: dict, steps: int) -> dict:
    """Run one case; return the figures that ``paceline run --json`` gives of it."""
    command = [str(BIN / "paceline"), "run", "--json", "--nproc-per-node", str(case["world"])]
    command += [str(SCRIPT), "--steps", str(steps)]
    if "share" in case:
        command += ["--delay-ms", str(case["share"] * STEP_MS)]
    for name, value in case.items():
        if name not in ("world", "share"):
            command += [f"--{name.replace('_', '-')}", str(value)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr[-3000:])
    return json.loads(ended.stdout.strip().splitlines()[-1])["summary"]


def verdict(case: dict, summary: dict) -> str:
    """Return what is said about a case: first, top two, missed, silent or false alarm."""
    time_of_step = summary.get("step") or {}
    named = time_of_step.get("named")
    delays = time_of_step.get("rare", [])
    if case["rank"] < 0:
        is_accused = named or any(delay["rank"] is not None for delay in delays)
        return "false alarm" if is_accused else "silent"
    # the code of a validation is between an optimizer step and the next batch
    truth = (case["rank"], case["stage"].replace("validation", "other"))
    if "share" not in case:
        said = [(delay["rank"], delay["stage"]) for delay in delays[:2]]
        return "first" if said[:1] == [truth] else "top two" if truth in said else "missed"
    suspects = [(s["rank"], s["stage"]) for s in time_of_step.get("suspects", [])[:2]]
    if named and (named["rank"], named["stage"]) == truth:
        return "first"
    return "top two" if truth in suspects else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--some", type=int, default=0, metavar="N", help="only N delays")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", choices=("usual", "rare"))
    options = parser.parse_args()
    delays = {"usual": cases(), "rare": rare(), None: [*cases(), *rare()]}[options.only]
    # odd, so that all frameworks are met
    every = len(delays) // options.some | 1 if options.some else 1
    chosen = delays[::every] + healthy()[::every]
    counts: dict[str, int] = {}
    seconds = []
    print(header())
    for case in chosen:
        start = time.perf_counter()
        summary = run(case, options.steps)
        seconds.append(time.perf_counter() - start)
        said = verdict(case, summary)
        counts[said] = counts.get(said, 0) + 1
        print(f"{case!s:110} {said:12} {json.dumps(summary.get('step'))}", flush=True)
    delays = [case for case in chosen if case["rank"] >= 0]
    print(f"{len(delays)} delays, {len(chosen) - len(delays)} healthy runs: {counts}")
    print(f"median of a run: {statistics.median(seconds):.1f} s")
    sys.exit(bool(counts.get("false alarm")))


if __name__ == "__main__":
    main()
