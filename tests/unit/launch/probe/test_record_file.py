"""The records of a rank: whole lines, and an end that says so where one cannot be made."""

import contextlib
import json
import os

import pytest
import torch

from paceline import env
from paceline.launch.probe import record_file, recorder
from paceline.launch.probe.record_file import RecordFile
from paceline.rundir.files import RunDir


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-000.observed.jsonl"


@pytest.fixture
def file(path):
    with contextlib.closing(RecordFile(path)) as opened:
        yield opened


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_on_its_way_at_once(file, path):
    file.write("batch", loop=0, indices=[1, 2])
    assert lines(path) == [{"kind": "batch", "loop": 0, "indices": [1, 2]}]


def test_an_exception_ends_the_file_and_not_the_script(file, path):
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


def test_a_forked_child_writes_nothing(file, path):
    child = os.fork()
    if not child:
        file.write("batch", loop=0)
        os._exit(0)
    os.waitpid(child, 0)
    assert lines(path) == []


def test_what_comes_after_the_end_is_dropped(file, path):
    file.close()
    file.write("batch", loop=0)
    assert lines(path) == []


@pytest.mark.parametrize("fault", ["records of an attempt before", "no folder"])
def test_a_run_whose_records_cannot_be_created_is_left_alone(tmp_path, monkeypatch, fault):
    records = RunDir(tmp_path).observed(0)
    if fault != "no folder":
        records.parent.mkdir()
        records.write_text("{}\n")
    monkeypatch.setenv(env.RUN_DIR, str(tmp_path))
    monkeypatch.setenv(env.RANK, "0")
    backward = torch.autograd.backward
    recorder.install(lambda file: True)
    assert torch.autograd.backward is backward
