"""Start-up, restart and answer times of ``paceline run`` beside torchrun's, interleaved, medians.

    python benchmarks/launch.py [--rounds 5] [--json]

Each round runs every case under both launchers, in turn first, on the same two-line script. Wall
time is from starting the command to its end. A restart is timed from the moment at which a rank
raises to the moment at which the last new rank has imported torch and prints its first line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
if dist.get_rank() == 0: print(x.item())
dist.destroy_process_group()
"""

# The first optimizer imports torch._dynamo: the start of a script that really trains.
OPTIMIZER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(1, 8)).sum().backward()
optimizer.step()
dist.destroy_process_group()
"""

CRASH_ONCE = """
import os, sys, time
import torch
attempt, rank, folder = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], sys.argv[1]
with open(f"{folder}/line-{attempt}-{rank}", "w") as file: file.write(str(time.time_ns()))
if attempt == "0":
    while not all(os.path.exists(f"{folder}/line-0-{r}") for r in "01"): time.sleep(0.01)
    if rank == "1":
        with open(f"{folder}/crash", "w") as file: file.write(str(time.time_ns()))
        raise RuntimeError("once")
    time.sleep(60)
"""


ATTEMPTS = 3
FAILURES: list[str] = []  # commands that did not succeed and were started again, with their error


def wall(command: list[str], folder: Path) -> float:
    """Seconds that a command takes until it succeeds; what failed is printed under the table."""
    for _ in range(ATTEMPTS):
        start = time.perf_counter()
        ended = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if ended.returncode == 0:
            return seconds
        error = ended.stderr.strip()[-2000:]
        FAILURES.append(f"{Path(command[0]).name}: exit status {ended.returncode}: {error}")
    raise SystemExit("\n".join(FAILURES))


def starting(script: str, ranks: int):
    def measure(launcher: list[str], folder: Path) -> float:
        (folder / "script.py").write_text(script)
        return wall([*launcher, "--nproc-per-node", str(ranks), "script.py"], folder)

    return measure


def restarting(launcher: list[str], folder: Path) -> float:
    (folder / "script.py").write_text(CRASH_ONCE)
    marks = Path(tempfile.mkdtemp(dir=folder))
    wall(
        [*launcher, "--nproc-per-node", "2", "--max-restarts", "1", "script.py", str(marks)], folder
    )
    first_lines = [int((marks / f"line-1-{rank}").read_text()) for rank in range(2)]
    return (max(first_lines) - int((marks / "crash").read_text())) / 1e9


def answering(*words: str):
    def measure(launcher: list[str], folder: Path) -> float:
        start = time.perf_counter()
        subprocess.run([launcher[0], *words], cwd=folder, check=False, capture_output=True)
        return time.perf_counter() - start

    return measure


PACELINE = [str(BIN / "paceline"), "run"]
TORCHRUN = [str(BIN / "torchrun"), "--standalone"]

# name, what is measured, the most that paceline may take as a share of torchrun's time (or in
# seconds)
CASES = [
    ("2 ranks, one all-reduce", starting(ALL_REDUCE, 2), "0.65x"),
    ("8 ranks, one all-reduce", starting(ALL_REDUCE, 8), "0.30x"),
    ("2 ranks, one optimizer step", starting(OPTIMIZER, 2), ""),
    ("restart after a crash, 2 ranks", restarting, "0.50x"),
]
ANSWERS = [
    ("paceline --help", answering("--help"), "0.3 s"),
    ("paceline run, wrong option", answering("run", "--nproc-per-nodes", "2", "x.py"), "0.3 s"),
    (
        "paceline run, no such script",
        answering("run", "--nproc-per-node", "2", "missing.py"),
        "0.3 s",
    ),
]


def measure_all(rounds: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for round_number in range(rounds):
            for case, measure, _ in CASES:
                sides = [("paceline", PACELINE), ("torchrun", TORCHRUN)]
                for side, launcher in sides if round_number % 2 else reversed(sides):
                    found.setdefault(case, {}).setdefault(side, []).append(
                        measure(launcher, folder)
                    )
            for case, measure, _ in ANSWERS:
                found.setdefault(case, {}).setdefault("paceline", []).append(
                    measure(PACELINE, folder)
                )
    return found


def render(found: dict[str, dict[str, list[float]]]) -> str:
    lines = [f"{'':34} {'paceline':>10} {'torchrun':>10} {'ratio':>8}   asked"]
    for case, _, asked in [*CASES, *ANSWERS]:
        ours = statistics.median(found[case]["paceline"])
        theirs = found[case].get("torchrun")
        if theirs:
            other = statistics.median(theirs)
            asked = asked and f"at most {asked}"
            lines.append(f"{case:34} {ours:8.2f} s {other:8.2f} s {ours / other:7.2f}x   {asked}")
        else:
            lines.append(f"{case:34} {ours:8.3f} s {'':10} {'':8}   at most {asked}")
    return "\n".join(lines)


def header() -> str:
    import torch

    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    cpus = len(os.sched_getaffinity(0))
    versions = f"Python {platform.python_version()} · torch {torch.__version__}"
    return f"{time.strftime('%Y-%m-%d')} · {cpus} CPUs, {model} · {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the raw seconds as JSON")
    options = parser.parse_args()
    found = measure_all(options.rounds)
    if options.json:
        print(json.dumps({"header": header(), "seconds": found}, indent=1))
    else:
        print(header(), render(found), *FAILURES, sep="\n")


if __name__ == "__main__":
    main()
