"""The command line and the pure parts answer at once, and on a login node: they never import torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parents[1]

# Whole packages; of others the modules that answer on the command line, or that a rank reads before its script does.
PARTS = (
    "cli",
    "diagnose",
    "signatures",
    "slurm",
    "text",
    "rundir",
    "machine",
    "launch/plan",
    "why",
    "measure",
)
WITHOUT_TORCH = (
    *("paceline", "paceline.errors", "paceline.env", "paceline.world", "paceline.counters"),
    "paceline.rundir.manifest",
    "paceline.rundir.committed",
    "paceline.train.checkpoint",
    *(f"paceline.train.checkpoint.{name}" for name in ("findings", "folder", "division")),
    "paceline.train.checkpoint.description",
    *(
        f"paceline.launch.outcome.{name}"
        for name in ("root_cause", "explanation", "weight", "resume", "nccl")
    ),
    "paceline.launch.in_rank.rank_entry",
    *(f"paceline.testing.{name}" for name in ("plugin", "pool", "parity", "faults", "rank")),
    *(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for part in PARTS
        for path in sorted((ROOT / "paceline" / part).rglob("*.py"))
    ),
)


def python(code: str, *args: str) -> str:
    """Run code in a fresh interpreter; return what it printed to stdout."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_pure_parts_do_not_import_torch():
    printed = python(
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(f'{name} imports torch')\n"
        "print('done')\n",
        *WITHOUT_TORCH,
    )
    assert printed == "done\n"


def test_importing_starts_no_thread_and_leaves_the_environment_alone():
    printed = python(
        "import importlib, os, sys, threading\n"
        "before = dict(os.environ)\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "print(threading.active_count(), dict(os.environ) == before)\n",
        *WITHOUT_TORCH,
    )
    assert printed == "1 True\n"


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["run", "--help"], 0),
        (["run", "--nproc-per-nod", "2", "train.py"], 2),
        (["run", "--nproc-per-node", "0", "train.py"], 2),
        (["run", "no-such-script.py"], 2),
        (["checkpoint", "--help"], 0),
        (["explain", "NET001"], 0),
        (["explain", "port-in-use", "--json"], 0),
        (["explain", __file__], 0),
        (["explain", "nonsense"], 2),
        (["lint", __file__], 0),
        (["lint", "no-such-file.py"], 2),
        (["lint"], 2),
        (["doctor", "--jso"], 2),
        (["submit", "--help"], 0),
        (["submit", "--dry-run", __file__], 0),
        (["submit", "--nodes", "two", __file__], 2),
        (["submit", "no-such-script.py"], 2),
        (["profile", "check", "no-such-profile"], 2),
        (["why", "--help"], 0),
        (["why", "no/such/file.json"], 2),
        (["report", "no/such/run"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_command_answers_without_torch(args, status):
    printed = python(
        "import os, sys\n"
        "os._exit = sys.exit\n"  # which is how the command ends after its deed
        "sys.argv[0] = 'paceline'\n"
        "from paceline.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    print()\n"
        "    print(stop.code, 'torch' in sys.modules)\n",
        *args,
    )
    assert printed.splitlines()[-1] == f"{status} False"
