"""Functions, arguments and results as files: what cannot be pickled is named, and a file is whole or not there."""

from __future__ import annotations

import errno
import functools
import json
import sys
import threading
from pathlib import Path

import pytest

from paceline.errors import RunError, SetupError, UsageError
from paceline.functions import pickles
from refusals import refusal

LOCK = threading.Lock()


def stored(tmp_path, function):
    path = tmp_path / "function.pkl"
    pickles.pack_function(function).write(path)
    return pickles.load(path)


def test_a_function_with_what_it_uses_comes_back(tmp_path):
    factor = 3

    def times(x):
        return factor * x

    assert stored(tmp_path, times)(4) == 12
    assert stored(tmp_path, lambda x: x + factor)(4) == 7
    assert stored(tmp_path, functools.partial(max, 5))(4) == 5


def test_the_variable_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def train():
        with lock:
            return 1

    finding = refusal(UsageError, pickles.pack_function, train)
    assert finding.name == "not-picklable"
    assert finding.where == "its variable lock is a _thread.lock"
    assert "TypeError: cannot pickle '_thread.lock' object" in finding.evidence


def test_a_global_variable_and_a_bound_argument_are_named():
    namespace = {"LOCK": LOCK}
    exec("def train(x):\n    return LOCK", namespace)
    finding = refusal(UsageError, pickles.pack_function, namespace["train"])
    assert finding.where == "the global variable LOCK is a _thread.lock"
    finding = refusal(UsageError, pickles.pack_function, functools.partial(print, 1, end=LOCK))
    assert finding.where == "argument end is a _thread.lock"


def test_the_argument_that_cannot_be_pickled_is_named():
    finding = refusal(UsageError, pickles.pack_arguments, (1, LOCK, "text"))
    assert (finding.name, finding.where) == ("not-picklable", "argument 2 is a _thread.lock")


@pytest.mark.parametrize("value", [None, 5, "train.py"])
def test_what_is_not_a_function_is_refused(value):
    finding = refusal(UsageError, pickles.pack_function, value)
    assert finding.name == "option-invalid"
    assert "the function itself, not a call of it" in finding.fix


def test_a_result_that_cannot_be_pickled_leaves_no_file(tmp_path):
    finding = refusal(RunError, pickles.write_result, tmp_path / "result.pkl", LOCK)
    assert finding.name == "not-picklable"
    assert list(tmp_path.iterdir()) == []


def test_a_result_larger_than_the_disk_leaves_no_file(tmp_path, monkeypatch):
    """The device takes the header of the result and no more."""

    def dump(pickler, value):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pickles.cloudpickle.Pickler, "dump", dump)
    finding = refusal(SetupError, pickles.write_result, tmp_path / "result.pkl", 1)
    assert finding.name == "disk-full"
    assert list(tmp_path.iterdir()) == []


def test_a_real_full_disk_says_so(monkeypatch):
    """/dev/full refuses every write, as a full disk does."""
    full = Path("/dev/full")
    monkeypatch.setattr(pickles, "whole", lambda path: path.open("wb", buffering=0))
    finding = refusal(SetupError, pickles.write_result, full, 1)
    assert finding.name == "disk-full"


def test_another_python_is_refused_before_anything_is_unpickled(tmp_path):
    path = tmp_path / "function.pkl"
    header = {"version": pickles.VERSION, "python": "2.7", "path": []}
    path.write_bytes(json.dumps(header).encode() + b"\nnot a pickle")
    finding = refusal(SetupError, pickles.load, path)
    assert finding.name == "wrong-python-env"
    assert "Python 2.7" in finding.what


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x80\x04N."])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "function.pkl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a pickled call"):
        pickles.load(path)


def test_modules_are_found_where_the_program_found_them(tmp_path, monkeypatch):
    (tmp_path / "only_here_8231.py").write_text("def f(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here_8231 import f

    path = tmp_path / "function.pkl"
    pickles.pack_function(f).write(path)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "only_here_8231")
    with pytest.raises(ModuleNotFoundError):
        pickles.load(path)
    assert pickles.load(path, extend_path=True)(1) == 2


def test_an_exception_that_cannot_be_pickled_is_left_out(tmp_path):
    pickles.write_exception(tmp_path / "exception.pkl", ValueError(LOCK))
    assert list(tmp_path.iterdir()) == []
    pickles.write_exception(tmp_path / "exception.pkl", ValueError("three"))
    assert repr(pickles.load(tmp_path / "exception.pkl")) == "ValueError('three')"


class Refused(Exception):
    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


class Unreachable(OSError):
    def __init__(self, host, after_s):
        super().__init__(errno.EHOSTUNREACH, "no route", host)
        self.after_s = after_s


def test_an_exception_whose_constructor_takes_other_arguments_comes_back(tmp_path):
    path = tmp_path / "exception.pkl"
    for error in (Refused(7, "no"), Unreachable("node-b", 3), KeyError("k"), OSError(2, "m", "f")):
        pickles.write_exception(path, error)
        back = pickles.load(path)
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
        assert getattr(back, "errno", None) == getattr(error, "errno", None)
    pickles.write_result(path, [Refused(7, "no")])
    assert pickles.load(path)[0].code == 7
