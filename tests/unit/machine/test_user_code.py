"""Whose file it is: the user's, or a library's that pip has installed anywhere."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from paceline.machine.user_code import is_users


def write(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


@pytest.fixture
def folder(tmp_path):
    """A project with `pip install --target vendor` of a package, a module, and a part of one."""
    record = "yaml/__init__.py,,\nyaml/deep/loader.py,,\nsix.py,,\ngoogle/cloud/x.py,,\n"
    write(tmp_path / "vendor/PyYAML-6.dist-info/RECORD")
    (tmp_path / "vendor/PyYAML-6.dist-info/RECORD").write_text(record)
    write(tmp_path / "vendor/yaml/__init__.py", tmp_path / "vendor/yaml/deep/__init__.py")
    write(tmp_path / "train.py", tmp_path / "mine/__init__.py", tmp_path / "vendor/own.py")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("vendor/yaml/deep/loader.py", False),
        ("vendor/six.py", False),
        ("vendor/google/cloud.py", False),
        ("vendor/own.py", True),
        ("mine/model.py", True),
        ("train.py", True),
        (os.__file__, False),
        (sysconfig.get_path("scripts") + "/paceline", False),
        (sysconfig.get_path("scripts") + "/pytest", True),
        ("<string>", False),
    ],
)
def test_a_library_that_pip_has_installed_beside_the_script_is_not_the_users(file, users, folder):
    path = file if file.startswith("<") else str(folder / file)
    assert is_users(path) == users
