"""Without torch everything diagnoses, and what needs it says ``torch-missing`` with the line to paste."""

import importlib.util
import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import paceline
from paceline.diagnose.variables import judge
from paceline.diagnose.variables.versions import release
from paceline.errors import PacelineError
from paceline.machine import torch_requirements
from refusals import refusal

ROOT = Path(__file__).parents[3]
HIDDEN = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
COMMAND = "sys.argv[0] = 'paceline'; from paceline.cli.entry import main; main()"
WITH_TORCH = sorted(set(paceline.__all__) - set(paceline._WITHOUT_TORCH) - {"__version__"})


def python(code, *args, folder, **environ):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nfrom paceline import Session\nsession = Session()\n")
    (tmp_path / "run.log").write_text("epoch 0: loss 0.7\nepoch 1: loss 0.5\n")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "NET001"],
        ["explain", "run.log"],
        ["lint", "train.py"],
        ["submit", "--dry-run", "train.py"],
        ["jobs"],
        ["run", "--help"],
    ],
    ids=" ".join,
)
def test_what_diagnoses_needs_neither_torch_nor_numpy(words, script, tmp_path):
    ended = python(HIDDEN + COMMAND, *words, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "torch-missing" not in ended.stdout + ended.stderr


def test_the_doctor_says_that_torch_is_not_installed(tmp_path):
    ended = python(HIDDEN + COMMAND, "doctor", "--json", folder=tmp_path)
    assert ended.returncode in (0, 1), ended.stderr  # this machine may have faults
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["run", "train.py"],
        ["run", "--nproc-per-node", "auto", "train.py"],
        ["run", "--start-method", "exec", "train.py"],
        ["run", "--numa-binding", "node", "train.py"],
        ["run", "--no-python", "/bin/true"],
        ["run", "--check-only"],
        ["checkpoint", "export", "run", "model.pt"],
    ],
    ids=" ".join,
)
def test_what_needs_torch_says_how_to_install_it(words, script, tmp_path):
    ended = python(HIDDEN + COMMAND, *words, folder=tmp_path)
    assert ended.returncode == 2
    assert "torch-missing" in ended.stderr
    assert f'fix: {sys.executable} -m pip install "paceline[torch]"' in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", WITH_TORCH)
def test_a_public_name_says_so_as_an_import_error(name, tmp_path):
    code = (
        "import paceline\n"
        f"try:\n    paceline.{name}\n"
        "except paceline.PacelineError as error:\n"
        "    print(error.finding.name, isinstance(error, ImportError))\n"
    )
    assert python(HIDDEN + code, folder=tmp_path).stdout == "torch-missing True\n"


def test_the_other_public_names_load_without_it(tmp_path):
    names = ", ".join(paceline._WITHOUT_TORCH)
    ended = python(f"{HIDDEN}from paceline import {names}", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_launch_says_so_when_it_is_called(tmp_path):
    ended = python(f"{HIDDEN}import paceline; paceline.launch(print)", folder=tmp_path)
    assert ended.stderr.count("torch-missing") == 1


def test_a_folder_called_torch_is_not_torch(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: ModuleSpec(name, loader=None)
    )  # of a namespace
    assert refusal(PacelineError, torch_requirements.require_installed).name == "torch-missing"


def fake_torch(folder, text):
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (
            "raise OSError('libcudart.so.13: cannot open')",
            "torch-missing",
            "OSError: libcudart.so.13: cannot open",
        ),
        (
            "from torch._C import *",
            "torch-missing",
            "ModuleNotFoundError: No module named 'torch._C",
        ),
        ("__version__ = '2.4.1+cu121'", "torch-too-old", "torch 2.4.1+cu121 is installed"),
    ],
)
def test_a_torch_that_cannot_be_used_is_named(text, name, words, script, tmp_path):
    environ = fake_torch(tmp_path, text)
    ended = python(f"import sys; {COMMAND}", "run", "train.py", folder=tmp_path, **environ)
    assert ended.returncode == 2
    assert name in ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.7.1", True),
        ("1.13.1+cu117", True),
        ("2.8.0", False),
        ("2.8.0a0+34c6371d24.nv25.08", False),  # as NVIDIA's containers call theirs
        ("2.16.0.dev20261101+cu130", False),
        ("3.0", False),
        ("unknown", False),
    ],
)
def test_the_first_two_numbers_decide_whether_it_is_too_old(version, expected):
    assert torch_requirements.is_too_old(version) is expected


def test_the_oldest_version_is_that_of_the_extra():
    declared = re.search(r'"torch>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert (
        (int(declared[1]), int(declared[2]))
        == torch_requirements.OLDEST
        == release(judge.OLDEST_TORCH)
    )
