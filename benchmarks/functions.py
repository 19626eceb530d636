"""Python functions as jobs beside submitit: 20 jobs on a Slurm of this machine, wall time and lines of code.

    python benchmarks/functions.py [--jobs 20] [--rounds 3] [--json]

The cluster is that of the tests (two nodes of four CPUs on one machine), which needs root and Slurm. Both sides start
from a program of their own, in turn first, and are timed from its start to its end: import, pickling, submission,
all results read. The function sleeps for a moment and imports nothing. Lines are those of the two programs below.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

PROGRAMS = {
    "paceline": """
import time
import paceline

def square(x):
    time.sleep(0.2)
    return x * x

jobs = paceline.map(square, range({jobs}), time=5)
print(sum(job.result() for job in jobs))
""",
    "submitit": """
import time
import submitit

def square(x):
    time.sleep(0.2)
    return x * x

executor = submitit.SlurmExecutor(folder="submitit-%j")
executor.update_parameters(time=5, ntasks_per_node=1)
jobs = executor.map_array(square, range({jobs}))
print(sum(job.result() for job in jobs))
""",
}

# submitit asks sacct, which needs a database of accounts that the cluster of the tests has not.
SACCT = """#!/bin/bash
echo 'JobID|State|NodeList'
exec squeue --noheader --array --states=all --format='%i|%T|%N'
"""


def timed(program: str, folder: Path, environ: dict[str, str], num_jobs: int) -> float:
    """Run a program in an empty folder; return its wall time in seconds."""
    folder.mkdir()
    (folder / "program.py").write_text(program.format(jobs=num_jobs))
    before_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    took_s = time.monotonic() - before_s
    right = str(sum(x * x for x in range(num_jobs)))
    assert ended.stdout.split() == [right], f"{ended.stdout}{ended.stderr}"
    return took_s


def lines_of(program: str) -> int:
    """Return how many lines of a program are not empty."""
    return sum(bool(line.strip()) for line in program.splitlines())


def measure(rounds: int, num_jobs: int) -> dict[str, dict[str, object]]:
    """Return wall times and lines of each side."""
    from slurm.cluster import start, stop

    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as made:
        cluster = start(Path(made) / "cluster")
        sacct = Path(made) / "bin" / "sacct"
        sacct.parent.mkdir()
        sacct.write_text(SACCT)
        sacct.chmod(0o755)
        path = f"{sacct.parent}{os.pathsep}{cluster.environ['PATH']}"
        environ = {**cluster.environ, "PATH": path}
        try:
            for number in range(rounds):
                names = list(PROGRAMS) if number % 2 == 0 else list(reversed(PROGRAMS))
                for name in names:
                    folder = Path(made) / f"{name}-{number}"
                    times[name].append(timed(PROGRAMS[name], folder, environ, num_jobs))
        finally:
            stop(cluster.folder)
    return {
        name: {
            "seconds": [round(value, 2) for value in values],
            "median_s": round(statistics.median(values), 2),
            "lines": lines_of(PROGRAMS[name]),
        }
        for name, values in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = measure(options.rounds, options.jobs)
    if options.json:
        print(json.dumps({"jobs": options.jobs, "sides": measured}, indent=1))
        return
    print(f"{options.jobs} jobs: seconds of {options.rounds} rounds, median, lines of code")
    for name, values in measured.items():
        print(f"{name:9} {values['seconds']}  {values['median_s']} s  {values['lines']} lines")


if __name__ == "__main__":
    main()
