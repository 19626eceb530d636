"""Is the stage and the rank that slows a run named? Fifty injected delays, and twenty runs without.

    python benchmarks/stages.py                 # all: about 20 minutes
    python benchmarks/stages.py --some 10       # each fifth delay and healthy run

The cases are fixed: 2 ranks and 4; a delay of 10, 25 or 50 % of a step in one stage of one rank;
the frameworks in turn. A case counts as "first" if the run's JSON names the stage and the rank,
and as "top two" if they are among its first two suspects. A run that says "needs more evidence"
names nobody, which is a miss; a healthy run that names somebody is a false alarm.
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
HEALTHY = 20


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


def healthy() -> list[dict]:
    worlds = itertools.cycle(RANKS)
    return [
        {"world": next(worlds), "rank": -1, "stage": "data", "share": 0.0, "framework": framework}
        for framework, _ in zip(itertools.cycle(FRAMEWORKS), range(HEALTHY), strict=False)
    ]


def run(case: dict, steps: int) -> dict:
    """Run one case; return the figures that ``paceline run --json`` gives of it."""
    command = [str(BIN / "paceline"), "run", "--json", "--nproc-per-node", str(case["world"])]
    command += [str(SCRIPT), "--framework", case["framework"], "--steps", str(steps)]
    command += ["--rank", str(case["rank"]), "--stage", case["stage"]]
    command += ["--delay-ms", str(case["share"] * STEP_MS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr[-3000:])
    return json.loads(ended.stdout.strip().splitlines()[-1])["summary"]


def verdict(case: dict, summary: dict) -> str:
    """Return what is said about a case: first, top two, missed, silent or false alarm."""
    time_of_step = summary.get("step") or {}
    named = time_of_step.get("named")
    suspects = [(s["rank"], s["stage"]) for s in time_of_step.get("suspects", [])[:2]]
    truth = (case["rank"], case["stage"])
    if case["rank"] < 0:
        return "false alarm" if named else "silent"
    if named and (named["rank"], named["stage"]) == truth:
        return "first"
    return "top two" if truth in suspects else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--some", type=int, default=0, metavar="N", help="only N delays")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    delays = cases()
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
