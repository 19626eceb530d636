"""A new environment with what pyproject.toml declares, and nothing else, runs the README's first program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pages import blocks, surroundings

ROOT = Path(__file__).parents[2]
INSTALLATION_S, PROGRAM_S = 420, 60


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The commands of an environment in which only paceline was installed, as a user does it."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALLATION_S)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    # torch first and alone, as in the Makefile: its exact version keeps other packages from choosing another build.
    for what in ("torch==2.13.0", str(ROOT)):
        done = subprocess.run([*command, what], capture_output=True, text=True, timeout=INSTALLATION_S, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_program_needs_nothing_that_is_not_declared(fresh, tmp_path):
    readme = list(blocks((ROOT / "README.md").read_text()))
    program = next(block for block in readme if block.file)
    (tmp_path / program.file).write_text(program.text)
    console = readme[readme.index(program) + 1].text.splitlines()
    command = next(line[2:] for line in console if line.startswith("$ "))
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=tmp_path,
        env={**surroundings(), "PATH": f"{fresh}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line for line in console if not line.startswith("$ ")]
    assert "numpy" not in done.stderr.lower()
