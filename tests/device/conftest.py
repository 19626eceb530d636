"""Tests on an emulated accelerator: what a GPU shows and a CPU cannot, in processes that load it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from emulated.build import missing_for_build

MISSING = missing_for_build()


def pytest_collection_modifyitems(items):
    if MISSING:
        reason = f"{MISSING} is missing to compile the emulated accelerator: scripts/install_system_packages.sh"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


def environment(**knobs):
    """Return an environment in which torch loads the emulated accelerator."""
    paths = (str(HERE), str(HERE / "autoload"), os.environ.get("PYTHONPATH", ""))
    text = " ".join(f"{name}={value}" for name, value in knobs.items())
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "EMULATED_DEVICE": text,
    }


def text_of(program):
    """Return the text of a program: that of a function is its source and a call."""
    if isinstance(program, str):
        return program
    return f"{textwrap.dedent(inspect.getsource(program))}\n\n{program.__name__}()\n"


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a program with the device; it returns what the program came to.

    A program is a text, or a function that imports what it needs. ``ranks`` starts it with ``paceline run``, ``command``
    with another command of paceline; ``hidden`` hides the device; the other names are its knobs.
    """

    def run(program, *arguments, ranks=0, command=(), hidden=False, timeout=120, **knobs):
        script = tmp_path / "program.py"
        script.write_text(text_of(program), encoding="utf-8")
        begin = [sys.executable]
        if ranks or command:
            paceline = str(Path(sys.executable).with_name("paceline"))
            begin = [
                paceline,
                *(command or ("run", "--nproc-per-node", str(ranks), "--run-dir", "run")),
            ]
        return subprocess.run(
            [*begin, str(script), *arguments],
            cwd=tmp_path,
            env=environment(**knobs) | ({"CUDA_VISIBLE_DEVICES": ""} if hidden else {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def on_device(start):
    """Return a function like that of ``start``, for programs that must succeed; it returns their output."""

    def run(program, *arguments, **named):
        ended = start(program, *arguments, **named)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run
