"""The script is looked at before anything is started: is there one, is it Python, is it whole?"""

import importlib.abc
import importlib.util
import os
import py_compile
import sys
import zipfile
from pathlib import Path

import pytest

from paceline.errors import EXIT_FAILED, EXIT_MISUSE, RunError, UsageError
from paceline.launch.plan import script
from paceline.launch.plan.parsing import parse


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder that the command is given in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name, **typed):
    return script.read(parse(str(name), (), typed=typed, inherited={}))


def refused(name, **typed):
    with pytest.raises(UsageError) as caught:
        read(name, **typed)
    assert caught.value.exit_status == EXIT_MISUSE
    return caught.value.finding


@pytest.mark.parametrize(
    "content",
    [
        b"import torch\n",
        b"",
        "# größe\n".encode(),
        b"\xef\xbb\xbfprint(1)\n",
        b"# -*- coding: latin-1 -*-\nname = '\xe4'\n",
    ],
    ids=["plain", "empty", "utf-8", "byte order mark", "latin-1"],
)
def test_a_script_is_read(folder, content):
    (folder / "train.py").write_bytes(content)
    assert read("train.py") == content.decode("utf-8", errors="replace")


def test_a_script_without_a_suffix_is_read(folder):
    (folder / "train").write_text("print(1)\n")
    assert read("train") == "print(1)\n"


def test_a_folder_with_a_main_module_is_read(folder):
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text("print(1)\n")
    assert read("app") == "print(1)\n"


def test_archives_and_compiled_files_are_left_to_python(folder):
    (folder / "__main__.py").write_text("print(1)\n")
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.write("__main__.py")
    py_compile.compile("__main__.py", "main.pyc")
    assert read("app.pyz") == read("main.pyc") == ""


# ------------------------------------------------------------------------------------------------ missing


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ("trian.py", "did you mean train.py?"),
        ("train.p", "did you mean train.py?"),
        ("train", "did you mean train.py?"),
        ("src/trian.py", "did you mean src/train.py?"),
        ("nowhere/train.py", "did you mean train.py?"),
        ("zzzzzzzz.py", "give the path of the script, from this folder or absolute"),
    ],
)
def test_a_missing_script_is_answered_with_a_near_one(folder, asked, fix):
    (folder / "src").mkdir()
    for name in ("train.py", "src/train.py"):
        (folder / name).write_text("")
    finding = refused(asked)
    assert (finding.name, finding.fix) == ("script-missing", fix)
    assert asked in finding.what


def test_a_folder_is_not_a_script(folder):
    (folder / "src").mkdir()
    finding = refused("src")
    assert finding.name == "script-missing"
    assert "is a folder" in finding.what
    assert finding.fix == "paceline run src/train.py"


def test_a_script_that_may_not_be_read_is_a_finding(folder, monkeypatch):
    (folder / "train.py").write_text("")

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(
        Path, "read_bytes", refuse
    )  # the tests may run as root, who may read everything
    refused("train.py")


# --------------------------------------------------------------------------------------------- not Python


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("start.sh", b"python train.py\n"),
        ("train.txt", b"a list of files\n"),
        ("program", b"\x7fELF\x02\x01\x00\x00"),
        ("start", b"#!/bin/sh\nexec python train.py --lr 1\n"),
        ("train.py", b"print(1)\x00\n"),
    ],
)
def test_what_is_not_python_is_not_started_as_python(folder, name, content):
    (folder / name).write_bytes(content)
    finding = refused(name)
    assert finding.name == "script-not-python"
    assert finding.where == name
    assert finding.fix.startswith(f"paceline run --no-python {name}")


def test_a_notebook_is_not_a_script(folder):
    (folder / "train.ipynb").write_text("{}")
    finding = refused("train.ipynb")
    assert (finding.name, finding.fix) == (
        "script-not-python",
        "jupyter nbconvert --to script train.ipynb",
    )


@pytest.mark.parametrize("name", ["train.txt", "train.py.bak", "train.sh", "train-v1.2"])
def test_a_script_may_have_any_suffix(folder, name):
    (folder / name).write_text("print(1)\n")
    assert read(name) == "print(1)\n"


@pytest.mark.parametrize("name", ["-", "/dev/null"])
def test_what_can_be_read_only_once_is_left_to_python(name):
    assert read(name) == ""


def test_another_python_has_its_own_syntax_and_modules(folder, monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python9/bin/python")
    (folder / "train.py").write_text("new syntax\n")
    assert read("train.py") == read("no_such_module", module=True) == ""


class EditableFinder(importlib.abc.MetaPathFinder):
    """As setuptools installs for a package in editable mode whose folder is not on sys.path."""

    def __init__(self, name, file):
        self._name, self._file = name, file

    def find_spec(self, fullname, path, target=None):
        return (
            importlib.util.spec_from_file_location(fullname, self._file)
            if fullname == self._name
            else None
        )


def test_a_package_in_editable_mode_is_found_and_not_imported(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "tool.py").write_text("raise SystemExit('imported')\n")
    finder = EditableFinder("editable_tool", folder / "elsewhere" / "tool.py")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert read("editable_tool", module=True) == "raise SystemExit('imported')\n"
    assert read("editable_tool.part", module=True) == ""
    assert "editable_tool" not in sys.modules


@pytest.mark.parametrize(
    ("text", "line", "shown"),
    [
        ("x = (\n", 1, "x = ("),
        ("x = 1\nif x\n    pass\n", 2, "if x"),
        ("def f():\nreturn 1\n", 2, "return 1"),
    ],
)
def test_a_syntax_error_is_told_before_anything_starts(folder, text, line, shown):
    (folder / "train.py").write_text(text)
    with pytest.raises(RunError) as caught:
        read("train.py")
    finding = caught.value.finding
    assert caught.value.exit_status == EXIT_FAILED
    assert (finding.name, finding.where, finding.evidence) == (
        "user-exception",
        f"train.py:{line}",
        (shown,),
    )
    assert "nothing was started" in finding.fix


def test_what_python_only_warns_of_is_no_error(folder):
    """It is for the ranks to warn, under the filters that the script sets."""
    (folder / "train.py").write_text('pattern = "\\d"\n')
    assert read("train.py") == 'pattern = "\\d"\n'


# --------------------------------------------------------------------------------- programs and modules


def test_a_program_is_looked_up_as_the_shell_does(folder):
    program = folder / "train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert read("./train", no_python=True) == read("sh", no_python=True) == ""


@pytest.mark.parametrize(
    ("name", "exists", "what", "fix"),
    [
        ("./nothing", False, "there is no program ./nothing", "give its path, such as ./program"),
        ("no-such-program-anywhere", False, "there is no program", "give its path"),
        ("./train.sh", True, "./train.sh cannot be executed", "chmod +x ./train.sh"),
    ],
)
def test_a_program_that_cannot_be_executed(folder, name, exists, what, fix):
    if exists:
        (folder / name).write_text("#!/bin/sh\n")
    finding = refused(name, no_python=True)
    assert finding.name == "script-missing"
    assert finding.what.startswith(what)
    assert finding.fix.startswith(fix)


def test_a_module_is_read_without_being_imported(folder):
    (folder / "one_module.py").write_text("raise SystemExit('imported')\n")
    assert read("one_module", module=True) == "raise SystemExit('imported')\n"


def test_a_module_that_is_not_there_is_a_finding(folder):
    assert refused("no_such_module_anywhere", module=True).name == "module-not-found"


@pytest.mark.parametrize("name", ["package.inner", "sys"])
def test_other_modules_have_no_text_to_look_at(folder, name):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "package" / "inner.py").write_text("")
    assert read(name, module=True) == ""


def test_looking_leaves_the_script_alone(folder):
    (folder / "train.py").write_text("open('made', 'w')\n")
    read("train.py")
    assert os.listdir(folder) == ["train.py"]
