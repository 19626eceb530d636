"""Time to an error, and whether it names its cause: the faults of tests/faults under paceline run and under torchrun.

    python benchmarks/faults.py [--list] [--limit 60] [--json] [--out FILE] [PATTERN ...]

PATTERN chooses faults by a part of their title, and what the file has of others is kept; without one all are played,
which takes an hour. Each fault is broken in the same way under both launchers, in its first script (mostly raw
DistributedDataParallel). "silent" is a launcher that has printed no line about an error within the limit; it is killed
then. A cause counts as named on a host if the text there has all words that the fault's test asks of paceline's report;
"partly" is named on one host only. Warnings about faults that end no run (such as a straggler) count like errors.
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
from pathlib import Path
from unittest import SkipTest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults import stage as stages
from faults.launched import Line
from faults.stage import Fault, Stage

LAUNCHERS = ("paceline", "torchrun")
RAW = ROOT / "docs" / "raw" / "faults.json"
# The first line that tells a reader that something is wrong, whoever printed it.
_ERROR = re.compile(
    r"likely cause|error|exception|traceback|fail|warning [A-Z]{3}\d|refused|timed out|killed|signal|could not|cannot",
    re.I,
)
# torchrun and torch speak so in runs where nothing is wrong, too.
_TALK = re.compile(r"OMP_NUM_THREADS|client socket cannot be retrieved|destroy_process_group|\*{10}")


def catalogue() -> list[Fault]:
    """Import all faults, in the order of their files."""
    for path in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        importlib.import_module(f"faults.{path.stem}")
    return [fault for fault in stages.CATALOGUE if fault.finding]


def play(fault: Fault, program: str, limit_s: float) -> dict:
    """Play a fault under a launcher; return what it said and when."""
    with tempfile.TemporaryDirectory() as name, stages.stage(Path(name), program) as stage:
        stage.set_up(fault, fault.frameworks[0])
        # it may end, or never come to the moment at which it is to be broken: that is an answer too
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            fault.play(stage)
        ended = stage.wait(limit_s, grace_s=0)
        moment_s = stage.moment_s()
        for launched in stage.launched:
            launched.running.process.kill()
            launched.running.process.wait()
            launched.finish()
        left = stage.command.survivors(within_s=3)
        for line in left:  # of a launcher that had to be killed
            os.kill(int(line.split()[0]), signal.SIGKILL)
        told = [judge(fault, stage, number, moment_s) for number in range(len(stage.launched))]
    heard = [host for host in told if host is not None]
    named = [host["named"] for host in heard]
    return {
        "seconds": [host["seconds"] for host in heard],
        "named": "yes" if named and all(named) else "partly" if any(named) else "no",
        "lines": max((host["lines"] for host in heard), default=0),
        "ended": ended,
        "left": len(left),
    }


def judge(fault: Fault, stage: Stage, number: int, moment_s: float) -> dict | None:
    """Return when a host's launcher first spoke of an error and whether its text names the cause."""
    launched = stage.launched[number]
    name, names = fault.of("finding", number), fault.of("names", number)
    if launched.killed or not name or names is None:
        return None
    lines = [line for line in launched.err if not _TALK.search(line.text)]
    first = next((line for line in lines if line.time_s >= moment_s - 1 and _ERROR.search(line.text)), None)
    if stage.program == "paceline" and launched.told_s(name):  # another warning may stand before it
        first = Line("", launched.told_s(name))
    text = _as_ours("\n".join(line.text for line in lines))
    return {
        "seconds": None if first is None else round(max(0.0, first.time_s - moment_s), 1),
        "named": first is not None and all(re.search(pattern, text, re.I) for pattern in names),
        "lines": len(lines),
    }


def _as_ours(text: str) -> str:
    """Return a text in which ranks and places are written as in paceline's, so that what is the same counts so."""
    text = re.sub(r"\[rank(\d+)\]|\brank\s*: (\d+)", lambda match: f"rank {match[1] or match[2]}", text)
    return re.sub(r'File "(\S+)", line (\d+)', r"\1:\2", text)


def shown(result: dict) -> str:
    """Return a launcher's result in a few words: the slowest host counts, and a silent one more."""
    if not result["seconds"] or all(each is None for each in result["seconds"]):
        return "silent"
    spoken = [each for each in result["seconds"] if each is not None]
    one = " (one host silent)" if len(spoken) < len(result["seconds"]) else ""
    return f"{max(spoken):.1f} s{one}, named: {result['named']}, {result['lines']} lines"


def header(limit_s: float) -> str:
    import torch

    versions = f"Python {platform.python_version()} · torch {torch.__version__} · gloo"
    return f"{time.strftime('%Y-%m-%d')} · {versions} · silent: nothing within {limit_s:g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="parts of titles")
    parser.add_argument("--list", action="store_true", help="print the titles and end")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a launcher counts as silent")
    parser.add_argument("--json", action="store_true", help="print the raw results as JSON")
    parser.add_argument("--out", type=Path, default=RAW, help="file for the raw results")
    options = parser.parse_args()
    faults = [f for f in catalogue() if not options.patterns or any(p in f.title for p in options.patterns)]
    if options.list or not faults:
        print(*(fault.title for fault in faults or catalogue()), sep="\n")
        return 0 if faults else 2
    results: dict[str, dict[str, dict]] = {}
    print(header(options.limit), f"{'':60} {'paceline':44} torchrun", sep="\n", file=sys.stderr)
    for fault in faults:
        try:
            results[fault.title] = {program: play(fault, program, options.limit) for program in LAUNCHERS}
        except SkipTest as reason:
            print(f"{fault.title[:60]:60} skipped: {reason}", file=sys.stderr)
            continue
        ours, theirs = (shown(results[fault.title][program]) for program in LAUNCHERS)
        print(f"{fault.title[:60]:60} {ours:44} {theirs}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(results, indent=1))
    kept = json.loads(options.out.read_text())["faults"] if options.patterns and options.out.exists() else {}
    content = {"header": header(options.limit), "faults": kept | results}
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
