"""A new environment with nothing but what pyproject.toml declares diagnoses; with torch it runs the README's program.

tests/unit/machine/test_torch_requirements.py has the same questions for this environment, with torch hidden.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import blocks, surroundings

ROOT = Path(__file__).parents[2]
INSTALLATION_S, PROGRAM_S = 420, 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def installed(folder, *requirements):
    """Make an environment, install one requirement after the other, and return the folder of its commands."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALLATION_S)
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
    ]
    for requirement in requirements:
        done = subprocess.run(
            [*command, requirement],
            capture_output=True,
            text=True,
            timeout=INSTALLATION_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The commands of an environment without torch."""
    return installed(tmp_path_factory.mktemp("bare") / "venv", str(ROOT))


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory):
    """The commands of an environment for training."""
    # torch first and alone, as in the Makefile: its exact version keeps other packages from choosing another build.
    return installed(tmp_path_factory.mktemp("torch") / "venv", "torch==2.13.0", f"{ROOT}[torch]")


def shell(command, *, folder, commands):
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**surroundings(), "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )


def first_program():
    """The README's first program, the command that starts it, and what that prints."""
    readme = list(blocks((ROOT / "README.md").read_text()))
    program = next(block for block in readme if block.file)
    console = readme[readme.index(program) + 1].text.splitlines()
    command = next(line[2:] for line in console if line.startswith("$ "))
    return program, command, [line for line in console if not line.startswith("$ ")]


def test_an_environment_without_torch_diagnoses(bare, tmp_path):
    program, start, _ = first_program()
    (tmp_path / program.file).write_text(program.text)
    commands = (
        "explain NET001",
        f"lint {program.file}",
        f"submit --dry-run {program.file}",
        "jobs",
    )
    for command in commands:
        done = shell(f"paceline {command}", folder=tmp_path, commands=bare)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    examined = shell("paceline doctor", folder=tmp_path, commands=bare)
    assert examined.returncode in (0, 1), examined.stderr  # this machine may have faults
    refused = shell(start, folder=tmp_path, commands=bare)
    assert refused.returncode == 2
    assert 'pip install "paceline[torch]"' in refused.stderr
    log = shell(
        f"{start} > run.log 2>&1 || paceline explain run.log", folder=tmp_path, commands=bare
    )
    assert "torch-missing" in log.stdout
    modules = shell(
        "python -c 'import torch' || python -c 'import numpy'", folder=tmp_path, commands=bare
    )
    assert modules.stderr.count("ModuleNotFoundError") == 2, "the environment is not bare"


def test_the_first_program_needs_nothing_that_is_not_declared(with_torch, tmp_path):
    program, start, expected = first_program()
    (tmp_path / program.file).write_text(program.text)
    done = shell(start, folder=tmp_path, commands=with_torch)
    assert done.returncode == 0, done.stderr
    # Another processor may round another last digit.
    assert without_figures(done.stdout.splitlines()) == without_figures(expected)
    assert "numpy" not in done.stderr.lower()


def without_figures(lines):
    return [re.sub(r"[\d.]+", "#", line) for line in lines]
