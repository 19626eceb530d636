"""The records of a rank: whole lines, and an end that says so where one cannot be made."""

from __future__ import annotations

import contextlib
import json
import os

import pytest

from paceline.launch.probe import record_file
from paceline.launch.probe.record_file import RecordFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-000.observed.jsonl"


@pytest.fixture
def file(path):
    with contextlib.closing(RecordFile(path)) as file:
        yield file


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_on_its_way_at_once(path, file):
    file.write("batch", loop=0, indices=[1, 2])
    assert lines(path) == [{"kind": "batch", "loop": 0, "indices": [1, 2]}]


def test_an_exception_ends_the_file_and_not_the_script(path, file):

    def fail(value):
        raise ValueError(f"cannot read {value}")

    guarded = file.guarded(fail)
    assert guarded("a sample") is None
    guarded("another")
    file.write("batch", loop=0)
    assert lines(path) == [{"kind": "fault", "what": "ValueError: cannot read a sample"}]


def test_a_limit_ends_the_file_and_says_so(path, monkeypatch):
    monkeypatch.setattr(record_file, "_MOST_BYTES", 60)
    with contextlib.closing(RecordFile(path)) as file:
        for number in range(5):
            file.write("batch", loop=number, indices=[1, 2])
    assert [line["kind"] for line in lines(path)] == ["batch", "fault"]


def test_a_forked_child_writes_nothing(path, file):
    child = os.fork()
    if not child:
        file.write("batch", loop=0)
        os._exit(0)
    os.waitpid(child, 0)
    assert lines(path) == []
