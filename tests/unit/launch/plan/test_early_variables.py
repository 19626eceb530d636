"""Which variables torch reads while it is imported, and who is told when one is set too late."""

from __future__ import annotations

import sys
import types

import pytest

from paceline.launch.plan import early_variables
from paceline.launch.plan.early_variables import Lateness, LateVariables, is_early

SETS = "import {module}\ndef act():\n    heard('OMP_NUM_THREADS', '2', '1')\n"


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_ALLOC_CONF"]
)
def test_families_that_are_read_at_import(name):
    assert is_early(name)


@pytest.mark.parametrize(
    "name", ["TORCH_HOME", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_DEBUG", "TORCHVISION", "SEED", "OMP"]
)
def test_others_are_read_when_they_are_needed(name):
    assert not is_early(name)


@pytest.fixture
def users():
    """Makes the functions of a user's module; nothing that the tests have imported counts as the script's."""
    reports = []
    lateness = Lateness(reports.append, is_users=lambda file: file.startswith("/home/"))
    made = []

    def make(text, file="/home/me/helper.py", name="users_helper"):
        module = sys.modules[name] = types.ModuleType(name)
        made.append(name)
        module.heard = lateness.check
        exec(compile(text, file, "exec"), module.__dict__)
        return module

    make.reports = reports
    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def empty_main(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))


def test_a_module_of_the_users_is_reported_once(users):
    helper = users(SETS.format(module="os"))
    helper.act()
    helper.act()
    assert users.reports == [
        {"name": "OMP_NUM_THREADS", "value": "1", "place": "/home/me/helper.py:3"}
    ]


@pytest.mark.parametrize(
    "text",
    [
        SETS.format(module="torch"),
        "from torch import nn\n" + SETS.format(module="os"),
        "from torch.nn import Linear\n" + SETS.format(module="os"),
        "import torch.optim as optim\n" + SETS.format(module="os"),
        "def act():\n    heard('OMP_NUM_THREADS', '1', '1')\n",
        "def act():\n    heard('SEED', None, '1')\n",
    ],
    ids=[
        "torch",
        "a package of it",
        "a class of it",
        "under another name",
        "the same value",
        "another variable",
    ],
)
def test_what_is_in_vain_under_torchrun_too_is_not_reported(users, text):
    users(text).act()
    assert users.reports == []


def test_a_library_is_not_reported(users):
    users(SETS.format(module="os"), file="/usr/lib/python3/library.py").act()
    assert users.reports == []


def test_torch_in_another_module_of_the_script_counts(users):
    users("import torch", name="users_model")
    users(SETS.format(module="os")).act()
    assert users.reports == []


def test_the_launcher_prints_each_variable_once(monkeypatch):
    entry = {"name": "OMP_NUM_THREADS", "value": "1", "place": "helper.py:3"}
    notices = []
    late = LateVariables(lambda: iter([entry, entry]), notices.append)
    late.tick()
    late.tick()
    late.tick(at_once=True)
    (notice,) = notices
    assert "helper.py:3" in notice.what
    assert notice.advice == "fix: export OMP_NUM_THREADS=1, or --start-method spawn"


def test_a_path_below_this_folder_is_shown_short(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "in helper.py:3," in early_variables.notice("A", "1", str(tmp_path / "helper.py:3")).what
