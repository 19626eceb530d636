"""Time until the cause is named: the faults of tests/faults under paceline run and torchrun, both
with defaults.

    python benchmarks/faults.py [--list] [--limits 30,150] [--jobs 4] [--json] [--out FILE] [PATTERN
    ...]

PATTERN chooses faults by a part of their title, and what the file has of others is kept; without
one all are played. Each fault is injected in the same way under both launchers, in its first script
(usually raw DistributedDataParallel), and without the options that its test gives to paceline: both
sides run with their defaults. A launcher that is still running after the longest limit is killed. A
cause counts as named on a host once the text there has all words that the fault's test asks of
paceline's report; "partly" is named on one host only, "silent" has printed no line about an error.
Notices, and warnings about faults that end no run (such as a straggler), count like errors.

Most faults wait rather than compute, so several are played at a time; a time is that of a machine
that is shared so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from unittest import SkipTest

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults import stage as stages
from faults.launched import Launched, Line
from faults.stage import Fault

LAUNCHERS = ("paceline", "torchrun")
RAW = ROOT / "docs" / "raw" / "faults.json"
# The first line that tells a reader that something is wrong, whoever printed it.
_ERROR = re.compile(
    r"likely cause|hang|notice:|error|exception|traceback|fail|warning [A-Z]{3}\d|refused|timed"
    r" out|killed|signal"
    r"|could not|cannot",
    re.I,
)
# torchrun and torch speak so in runs where nothing is wrong, too.
_TALK = re.compile(
    r"OMP_NUM_THREADS|client socket cannot be retrieved|destroy_process_group|\*{10}"
)


def catalogue() -> list[Fault]:
    """Import all faults, in the order of their files."""
    for path in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        importlib.import_module(f"faults.{path.stem}")
    return [fault for fault in stages.CATALOGUE if fault.finding]


def play(fault: Fault, program: str, limit_s: float) -> dict:
    """Play a fault under a launcher; return when each host reported an error, and when it had
    named the cause.
    """
    plain = replace(fault, options=())
    with tempfile.TemporaryDirectory() as name, stages.stage(Path(name), program) as stage:
        stage.set_up(plain, fault.frameworks[0])
        # it may end, or never come to the moment at which it is to be broken: that is an answer too
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            fault.play(stage)
        ended = stage.wait(limit_s, grace_s=0)
        moment_s = stage.moment_s()
        for launched in stage.launched:
            launched.running.process.kill()
            launched.running.process.wait()
            launched.finish()
        survivors = stage.command.survivors(within_s=3)
        for line in survivors:  # of a launcher that had to be killed
            os.kill(int(line.split()[0]), signal.SIGKILL)
        hosts = [
            judge(fault, launched, number, moment_s)
            for number, launched in enumerate(stage.launched)
        ]
    return {
        "hosts": [host for host in hosts if host is not None],
        "ended": ended,
        "left": len(survivors),
    }


def judge(fault: Fault, launched: Launched, number: int, moment_s: float) -> dict | None:
    """Return when a host's launcher first reported an error, and when its text had named the
    cause, in seconds.
    """
    name, names = fault.of("finding", number), fault.of("names", number)
    if launched.killed or not name or names is None:
        return None
    lines = [line for line in launched.err if not _TALK.search(line.text)]
    first = next(
        (line for line in lines if line.time_s >= moment_s - 1 and _ERROR.search(line.text)), None
    )
    named_s = named_after_s(lines, names, moment_s)
    return {
        "first_s": named_s if first is None else round(max(0.0, first.time_s - moment_s), 1),
        "named_s": named_s,
        "lines": len(lines),
    }


def named_after_s(lines: Sequence[Line], names: Sequence[str], moment_s: float) -> float | None:
    """Return after how many seconds the lines so far match all patterns; None if they never do."""
    missing = set(names)
    text = ""
    for line in lines:
        text += _as_ours(line.text) + "\n"
        missing = {pattern for pattern in missing if not re.search(pattern, text, re.I)}
        if not missing:
            return round(max(0.0, line.time_s - moment_s), 1)
    return None


def _as_ours(text: str) -> str:
    """Return a text in which ranks and places are written as in paceline's, so that what is the
    same counts so.
    """
    text = re.sub(
        r"\[rank(\d+)\]|\brank\s*: (\d+)", lambda match: f"rank {match[1] or match[2]}", text
    )
    return re.sub(r'File "(\S+)", line (\d+)', r"\1:\2", text)


def shown(result: dict) -> str:
    """Return a launcher's result in a few words; the slowest host counts."""
    hosts = result["hosts"]
    if all(host["first_s"] is None for host in hosts):
        return "silent"
    named = [host["named_s"] for host in hosts if host["named_s"] is not None]
    if not named:
        return "spoke, cause not named"
    if len(named) < len(hosts):
        return f"named on {len(named)} of {len(hosts)} hosts"
    return f"named after {max(named):.1f} s"


def count(results: dict[str, dict[str, dict]], program: str, limit_s: float) -> dict[str, int]:
    """Return how many faults a launcher had named on every host, on some, and not reported at
    all within a limit.
    """
    counts = {"named": 0, "partly": 0, "silent": 0}
    for result in results.values():
        hosts = result[program]["hosts"]
        named = [host["named_s"] is not None and host["named_s"] <= limit_s for host in hosts]
        silent = all(host["first_s"] is None or host["first_s"] > limit_s for host in hosts)
        counts["named"] += all(named)
        counts["partly"] += any(named) and not all(named)
        counts["silent"] += silent
    return counts


def header(limits: Sequence[float]) -> str:
    import torch

    versions = f"Python {platform.python_version()} · torch {torch.__version__} · gloo"
    shown_limits = " and ".join(f"{limit:g}" for limit in limits)
    return (
        f"{time.strftime('%Y-%m-%d')} · {versions} · defaults on both sides · counted at"
        f" {shown_limits} s"
    )


def play_both(title: str, limit_s: float) -> tuple[str, dict[str, dict] | str]:
    """Play a fault under both launchers, in a process of its own; the reason where it cannot be
    played here.
    """
    fault = next(fault for fault in catalogue() if fault.title == title)
    try:
        return title, {program: play(fault, program, limit_s) for program in LAUNCHERS}
    except (SkipTest, pytest.skip.Exception) as reason:
        return title, f"skipped: {reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="parts of titles")
    parser.add_argument("--list", action="store_true", help="print the titles and end")
    parser.add_argument(
        "--limits", default="30,150", help="seconds at which is counted, separated by commas"
    )
    parser.add_argument("--jobs", type=int, default=4, help="faults that are played at a time")
    parser.add_argument("--json", action="store_true", help="print the raw results as JSON")
    parser.add_argument("--out", type=Path, default=RAW, help="file for the raw results")
    options = parser.parse_args()
    faults = [
        f
        for f in catalogue()
        if not options.patterns or any(p in f.title for p in options.patterns)
    ]
    if options.list or not faults:
        print(*(fault.title for fault in faults or catalogue()), sep="\n")
        return 0 if faults else 2
    limits = sorted(float(limit) for limit in options.limits.split(","))
    results: dict[str, dict[str, dict]] = {}
    print(header(limits), f"{'':60} {'paceline':34} torchrun", sep="\n", file=sys.stderr)
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        plays = [pool.submit(play_both, fault.title, limits[-1]) for fault in faults]
        for done in as_completed(plays):
            title, result = done.result()
            if isinstance(result, str):
                print(f"{title[:60]:60} {result}", file=sys.stderr)
                continue
            results[title] = result
            ours, theirs = (shown(result[program]) for program in LAUNCHERS)
            print(f"{title[:60]:60} {ours:34} {theirs}", file=sys.stderr, flush=True)
    kept = (
        json.loads(options.out.read_text())["faults"]
        if options.patterns and options.out.exists()
        else {}
    )
    played = kept | results
    for limit in limits:
        counts = {program: count(played, program, limit) for program in LAUNCHERS}
        print(f"of {len(played)} faults, within {limit:g} s: {counts}", file=sys.stderr)
    if options.json:
        print(json.dumps(results, indent=1))
    options.out.write_text(
        json.dumps({"header": header(limits), "faults": played}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
