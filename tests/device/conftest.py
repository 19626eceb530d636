"""Tests on an emulated accelerator: what a GPU shows and a CPU cannot, in processes that load it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from emulated.build import missing_for_build  # noqa: E402

MISSING = missing_for_build()


def pytest_collection_modifyitems(items):
    if MISSING:
        reason = f"the emulated accelerator is compiled, and {MISSING} is missing: scripts/install_system_packages.sh"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


def environment(**knobs):
    """Return an environment in which torch loads the emulated accelerator."""
    paths = (str(HERE), str(HERE / "autoload"), os.environ.get("PYTHONPATH", ""))
    text = " ".join(f"{name}={value}" for name, value in knobs.items())
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "EMULATED_DEVICE": text}


@pytest.fixture
def on_device(tmp_path):
    """Return a function that runs a program on the device, on one rank or under ``paceline run``."""

    def run(program, *arguments, ranks=0, timeout=120, **knobs):
        script = tmp_path / "program.py"
        script.write_text(program, encoding="utf-8")
        start = [sys.executable]
        if ranks:
            start = [str(Path(sys.executable).with_name("paceline")), "run", "--nproc-per-node", str(ranks)]
        return subprocess.run(
            [*start, str(script), *arguments],
            cwd=tmp_path,
            env=environment(**knobs),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
