"""Which line of a script is named as the one that constructs its training loader."""

from __future__ import annotations

import sys

import pytest
from torch.utils.data import Dataset

from paceline.launch.probe.loader_maker import Maker, Makers


class Numbers(Dataset):
    def __len__(self):
        return 3


SCRIPT = "def direct(make, data):\n    return make(data)\n\ndef through(library, make, data):\n    return library(make, data)\n"
LIBRARY = "def rebuilt(make, data):\n    return make(data)\n"


def module(text, file, name):
    space = {"__name__": name}
    exec(compile(text, file, "exec"), space)
    return space


@pytest.fixture
def makers():
    return Makers(is_users=lambda file: file.endswith("train.py"))


@pytest.fixture
def make(makers):
    """What stands in for the constructor of a loader: returns its maker."""
    return lambda data: makers.find(sys._getframe(1), data)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return module(SCRIPT, str(tmp_path / "train.py"), "__main__")


def library(name):
    return module(LIBRARY, f"/site-packages/{name}.py", name)["rebuilt"]


def test_the_line_of_the_script(script, make):
    assert script["direct"](make, Numbers()) == Maker("", "train.py:2")


def test_a_loader_that_a_library_constructs_again_keeps_the_scripts_line(script, make):
    data = Numbers()
    script["direct"](make, data)
    assert script["through"](library("accelerate.data_loader"), make, data).place == "train.py:2"


def test_another_dataset_is_another_loader(script, make):
    script["direct"](make, Numbers())
    assert script["through"](library("accelerate.data_loader"), make, Numbers()).place == (
        "train.py:5"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformers.trainer", "transformers"),
        ("paceline.train.data.loader", "paceline"),
        ("lightning.fabric", ""),
    ],
)
def test_a_library_that_constructs_the_first_loader(script, make, name, expected):
    assert script["through"](library(name), make, Numbers()) == Maker(expected, "train.py:5")


def test_a_dataset_that_cannot_be_referred_to(script, make):
    data = [1, 2, 3]
    script["direct"](make, data)
    assert script["through"](library("accelerate.data_loader"), make, data).place == "train.py:5"


def test_without_a_script_no_line_is_named(make):
    assert library("lightning.fabric")(make, Numbers()) == Maker()
