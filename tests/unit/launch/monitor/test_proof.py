"""When it is proven that ranks can never go on, and what looks alike and is not."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from paceline.launch.monitor.hang import judge_proven
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.monitor.proof import Call, HangProof, Stand, find
from paceline.text.plain_data import read_as

BOTH = {"0": [0, 1]}


def call(name, seq, *, group="0", elements=4, **more):
    return Call(group, seq, name, elements, record=seq, **more)


def stand(rank, *pending, before=(), **more):
    values = {"blocked": True, "members": BOTH, "whole": True, **more}
    return Stand(rank, pending=pending, recent=(*before, *pending), **values)


PROVEN = {
    "two operations": ([stand(0, call("all_reduce", 5)), stand(1, call("broadcast", 5))], {0, 1}),
    "two sizes": (
        [stand(0, call("all_reduce", 5)), stand(1, call("all_reduce", 5, elements=8))],
        {0, 1},
    ),
    "one has left the collective under which it called another": (
        [
            stand(0, call("all_reduce", 5)),
            stand(1, call("barrier", 6), before=[call("broadcast", 5)]),
        ],
        {0, 1},
    ),
    "two groups in turn": (
        [
            stand(0, call("all_reduce", 2, group="a"), members={"a": [0, 1], "b": [0, 1]}),
            stand(1, call("all_reduce", 3, group="b"), members={"a": [0, 1], "b": [0, 1]}),
        ],
        {0, 1},
    ),
    "three ranks in a circle": (
        [
            stand(0, call("barrier", 1, group="a"), members={"a": [0, 1], "c": [0, 2]}),
            stand(1, call("barrier", 1, group="b"), members={"a": [0, 1], "b": [1, 2]}),
            stand(2, call("barrier", 1, group="c"), members={"b": [1, 2], "c": [0, 2]}),
        ],
        {0, 1, 2},
    ),
    "an element that is larger": (
        [
            stand(0, call("all_reduce", 5, dtype="Float")),
            stand(1, call("all_reduce", 5, dtype="Long")),
        ],
        {0, 1},
    ),
    "two operations of which a rank waits for its work": (
        [stand(0, call("all_reduce", 5), in_work=True), stand(1, call("broadcast", 5))],
        {0, 1},
    ),
    "each receives from the other": ([stand(0, peer=1), stand(1, peer=0)], {0, 1}),
    "one receives from a rank in a barrier": (
        [stand(0, peer=1), stand(1, call("barrier", 5))],
        {0, 1},
    ),
    "one has destroyed the group": (
        [stand(0, call("barrier", 5)), Stand(1, whole=True, destroyed=("0",))],
        {0, 1},
    ),
    "one has a group no more, and waits in another": (
        [
            stand(0, call("barrier", 5, group="a"), members={"a": [0, 1], **BOTH}),
            stand(1, call("barrier", 5)),
        ],
        {0, 1},
    ),
    "one has ended": ([stand(0, call("barrier", 5)), Stand(1, ended=True)], {0, 1}),
    "one creates a group that the other has not come to": (
        [stand(0, groups=3, creates=2, needs=(0, 1)), stand(1, call("barrier", 5), groups=2)],
        {0, 1},
    ),
}
NOT_PROVEN = {
    "the same": [stand(0, call("all_reduce", 5)), stand(1, call("all_reduce", 5))],
    "one of them runs": [
        stand(0, call("all_reduce", 5)),
        stand(1, call("broadcast", 5), blocked=False),
    ],
    "the root of a broadcast is ahead": [
        stand(0, call("all_reduce", 6), before=[call("broadcast", 5)]),
        stand(1, call("broadcast", 5)),
    ],
    "one operation by two functions of torch": [
        stand(0, call("all_gather", 5)),
        stand(1, call("_all_gather_base", 5, elements=1)),
    ],
    "an element of another kind": [
        stand(0, call("all_reduce", 5, dtype="Float")),
        stand(1, call("all_reduce", 5, dtype="Int")),
    ],
    "the work that a rank waits for may be another": [
        stand(0, call("all_reduce", 2, group="a"), members={"a": [0, 1], **BOTH}, in_work=True),
        stand(1, call("all_reduce", 3), members={"a": [0, 1], **BOTH}),
    ],
    "one sends what the other receives": [stand(0, peer=1, sends=True), stand(1, peer=0)],
    "one has destroyed the group after its part": [
        stand(0, call("barrier", 5)),
        Stand(1, recent=(call("barrier", 5),), destroyed=("0",)),
    ],
    "a message is on its way": [stand(0, peer=1), stand(1, peer=0, queued=True)],
    "one receives from a rank at work": [stand(0, peer=1), stand(1, peer=0, blocked=False)],
    "the other has created the group, and the first is about to leave": [
        stand(0, groups=3, creates=2, needs=(0, 1)),
        stand(1, call("barrier", 5), groups=3),
    ],
    "the new group does without the other": [
        stand(0, groups=3, creates=2, needs=(0, 2)),
        stand(1, call("barrier", 5), groups=2),
    ],
    "the other is at work": [stand(0, call("all_reduce", 5)), Stand(1, members=BOTH)],
    "a gather, of which only the root has a place for all": [
        stand(0, call("gather", 5)),
        stand(1, call("gather", 5, elements=9)),
    ],
    "what was called long ago is not known any more": [
        stand(0, call("all_reduce", 2, group="a"), members={"a": [0, 1], "b": [0, 1]}, whole=False),
        stand(1, call("all_reduce", 3, group="b"), members={"a": [0, 1], "b": [0, 1]}, whole=False),
    ],
    "several calls under one number": [
        stand(0, call("all_reduce", 5), call("broadcast", 5)),
        stand(1, call("broadcast", 5), call("all_reduce", 5)),
    ],
    "groups of one name and other members": [
        stand(0, call("all_reduce", 5), members={"0": [0, 2]}),
        stand(1, call("broadcast", 5), members={"0": [1, 3]}),
    ],
    "one that has ended is in no group of the other": [
        stand(0, call("barrier", 5), members={"0": [0]}),
        Stand(1, ended=True),
    ],
    "a third rank is on its way to the second": [
        stand(0, call("barrier", 1, group="a"), members={"a": [0, 1]}),
        stand(1, call("barrier", 1, group="b"), members={"a": [0, 1], "b": [1, 2]}),
        Stand(2, members={"b": [1, 2]}),
    ],
}


@pytest.mark.parametrize("stands, ranks", PROVEN.values(), ids=PROVEN)
def test_what_is_proven(stands, ranks):
    assert find(stands).ranks == ranks


@pytest.mark.parametrize("stands", NOT_PROVEN.values(), ids=NOT_PROVEN)
def test_what_is_not(stands):
    assert find(stands) is None


def test_a_stand_travels_as_plain_data():
    one = stand(0, call("all_reduce", 5), destroyed=("1",))
    assert read_as(Stand, json.loads(json.dumps(asdict(one)))) == one


REDUCE = (
    Frame("/home/me/train.py", 41, "main", "dist.all_reduce(x)", user=True),
    Frame(
        "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"
    ),
)


def at(rank, *, name="all_reduce"):
    return Position(rank, frames=REDUCE, call=name, seq=5, group="0", flying=True, batches=6 + rank)


def test_sizes_that_differ_on_one_line_are_named():
    calls = {
        0: call("all_reduce", 5),
        1: call("all_reduce", 5, elements=8),
        2: call("all_reduce", 5),
    }
    finding = judge_proven([at(0), at(1), at(2)], HangProof(frozenset(calls), calls))
    assert finding.name == "collective-mismatch"
    assert (
        finding.what == "all_reduce #5 differs in size: 8 elements on rank 1, 4 elements on rank 0"
    )
    assert "ranks 0, 2 called all_reduce #5 of 4 elements" in finding.evidence


def test_two_operations_are_named_with_lines_and_batches():
    calls = {0: call("all_reduce", 5), 1: call("broadcast", 5)}
    finding = judge_proven([at(0), at(1, name="broadcast")], HangProof(frozenset(calls), calls))
    assert finding.name == "collective-mismatch"
    assert "rank 0: all_reduce #5, /home/me/train.py:41, after 6 batches" in finding.evidence
    assert (
        "rank 1: broadcast #5, all_reduce, /home/me/train.py:41, after 7 batches"
        in finding.evidence
    )
