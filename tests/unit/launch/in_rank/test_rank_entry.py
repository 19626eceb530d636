"""What a rank records of an exception: enough to name it, and never more than the launcher can read at once."""

from __future__ import annotations

import json
import os

import pytest

from paceline.launch.in_rank import rank_entry, rank_files
from paceline.launch.in_rank.rank_files import RankFiles
from paceline.launch.plan.task import RankTask

MOST_BYTES = 400_000


def recursion(number=0):
    recursion(number + 1)


def chain():
    error = None
    for number in range(1000):
        try:
            raise KeyError(f"number {number}" + 1000 * " ") from error
        except KeyError as this:
            error = this
    raise ValueError("at the end") from error


def message():
    raise ValueError("at the start\n" + "a batch\n" * 1_000_000 + "at the end")


def many_lines():
    """A recursion through functions of which each is another line."""
    names = {}
    source = [f"def f{number}():\n    f{number + 1}()" for number in range(900)]
    exec(compile("\n".join(source), "train.py", "exec"), names)
    names["f0"]()


@pytest.mark.parametrize(
    ("raises", "kept"),
    [
        (recursion, ("RecursionError",)),
        (chain, ("number 0", "at the end")),
        (message, ("at the start", "at the end")),
        (many_lines, ("f900", "in f0")),
    ],
)
def test_the_record_of_an_exception_has_a_limit(raises, kept):
    files = RankFiles.create()
    try:
        raises()
    except Exception as error:
        rank_entry.record(RankTask(0, "script", "train.py", report=files.report), error)
    written = os.fstat(files.report).st_size
    (entry,) = files.entries(rank_files.FAILURE)
    files.close()
    assert 0 < written < MOST_BYTES
    assert len(entry["frames"]) <= 200
    assert all(word in json.dumps(entry) for word in kept)
