"""Writes what users see to a folder, to compare it before and after a change that means to keep it.

Every ``--help`` at 80 columns; ``explain``, ``lint`` and ``doctor`` as JSON on the examples of
``tests/codes`` and on a folder of other cases; every page of ``explain NAME``; the job scripts of
``submit --dry-run``; the ``plan.json`` of twelve starts; ``findings.md`` and the fault table.

    python scripts/snapshots.py OUT [CASES]
    diff -r BEFORE OUT

Times, process ids and the names of run folders are masked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
CODES = ROOT / "tests" / "codes"
VOLATILE = (
    (re.compile(r"\b20\d{6}-\d{6}-[\w-]+"), "RUN"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?"), "TIME"),
    (re.compile(r"(/[\w.@+-]+)+/bin/(paceline|python[\d.]*)"), "PROGRAM"),
    (re.compile(r"/tmp/[\w./-]+"), "TEMPORARY"),
)
KINDS = (".log", ".out", ".err", ".txt", ".sbatch", ".sh", ".py")
STARTS = (
    ("--nproc-per-node=1",),
    ("--nproc-per-node=2",),
    ("--nproc-per-node=3", "--hang-timeout=off"),
    ("--nproc-per-node=auto",),
    ("--nproc_per_node=2", "--max-restarts=1"),
    ("--nproc-per-node=2", "--grace-s=5"),
    ("--nproc-per-node=2", "--start-method=spawn"),
    ("--nproc-per-node=2", "--no-python", sys.executable),
    ("--nproc-per-node=2", "--tee=3"),
    ("--nproc-per-node=2", "--redirects=3"),
    ("--standalone", "--nnodes=1", "--nproc-per-node=2"),
    ("--nproc-per-node=2", "--threads=1"),
)
SUBMITS = (
    ("--nodes=1",),
    ("--nodes=2", "--time=10"),
    ("--nodes=4", "--gpus-per-node=8", "--cpus-per-gpu=8", "--time=1:00:00"),
    ("--nodes=2", "--partition=gpu", "--account=a", "--job-name=n"),
    ("--nodes=1", "--array=0-3", "--time=10"),
    ("--nodes=2", "--no-requeue", "--time=30"),
    ("--nodes=2", "--param", "lr=0.1,0.2", "--time=30"),
    ("--nodes=2", "--follow", "--array=0-1"),
)


def call(*arguments: str) -> str:
    """Return what a command prints and its exit status.

    It runs in a fork, since a command ends its process, and an import for each would take minutes.
    """
    from paceline.cli import main as command_line

    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.argv = ["paceline", *arguments]
            try:
                command_line.main()
            except SystemExit as ending:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(ending.code if isinstance(ending.code, int) else 1)
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    return masked(f"{text}exit status {status}\n")


def masked(text: str) -> str:
    """Return a text without what differs from call to call."""
    for pattern, name in VOLATILE:
        text = pattern.sub(name, text)
    return text


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of those below it."""
    yield path
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None:
                yield from commands(command, (*path, name))


def helps() -> Iterator[tuple[str, str]]:
    """Yield the help of each command."""
    from paceline.cli.main import cli

    for path in commands(cli):
        yield f"help/{' '.join(path) or 'paceline'}.txt", call(*path, "--help")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each finding."""
    from paceline.codes import CODES as names

    for name in names:
        yield f"page/{name}.txt", call("explain", name)


def judged(path: Path) -> str:
    """Return what the command for a kind of file says about it."""
    if path.suffix in (".sbatch", ".sh", ".py"):
        return call("lint", "--json", path.name)
    if path.suffix == ".json":
        from paceline.diagnose.doctor.checks.judge import judge
        from paceline.diagnose.doctor.facts import Facts

        found = judge(Facts.from_json(json.loads(path.read_text(encoding="utf-8"))))
        return "\n".join(finding.render() for finding in found) + "\n"
    return call("explain", "--json", path.name)


def cases(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield what is said about each case of a folder."""
    for path in sorted(folder.rglob("*")):
        # Facts of a machine stand in tests/codes alone; a JSON file elsewhere says what is expected.
        known = path.suffix in KINDS or (path.suffix == ".json" and folder == CODES)
        if path.is_file() and known and path.name not in ("golden.txt", "test_codes.py"):
            os.chdir(path.parent)
            # The cluster is that of the example, if it has one, and no other.
            os.environ["SLURM_CONF"] = str(path.parent / "slurm.conf")
            yield f"{name}/{str(path.relative_to(folder)).replace('/', ' ')}", judged(path)
    del os.environ["SLURM_CONF"]


def jobs() -> Iterator[tuple[str, str]]:
    """Yield job scripts."""
    for options in SUBMITS:
        yield f"submit/{' '.join(options)}.txt", call("submit", "--dry-run", *options, "train.py")


def plans() -> Iterator[tuple[str, str]]:
    """Yield the ``plan.json`` of starts."""
    for number, options in enumerate(STARTS):
        folder = f"runs-{number}"
        command = [sys.executable, "-m", "paceline", "run", "--run-dir", folder, *options]
        ended = subprocess.run(
            [*command, "train.py"], capture_output=True, text=True, timeout=60, check=False
        )
        plan = Path(folder) / "plan.json"
        text = plan.read_text(encoding="utf-8") if plan.exists() else ended.stderr
        yield f"plan/{number}.json", masked(text)


def main(out: Path, other_cases: Path | None) -> None:
    """Write all snapshots."""
    os.environ["COLUMNS"] = "80"
    for name in ("reference/findings.md", "reference/faults.md"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / name, out / name)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        Path("train.py").write_text("print('hello')\n", encoding="utf-8")
        parts = [*helps(), *pages(), *jobs(), *plans(), *cases(CODES, "codes")]
        if other_cases is not None:
            parts += cases(other_cases, "cases")
        os.chdir(ROOT)
    for name, text in parts:
        path = out / name.replace("=", " ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(parts)} snapshots in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None)
