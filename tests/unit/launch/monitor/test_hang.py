"""From where ranks stand to what the run waits for."""

from __future__ import annotations

import pytest

from paceline.errors import Finding
from paceline.launch.monitor.hang import hangs, judge, limit_s
from paceline.launch.monitor.position import (
    BACKWARD,
    CODE,
    COLLECTIVE,
    DATA,
    START,
    Frame,
    Position,
    classify,
    parse,
)

LIB = "/venv/lib/python3.11/site-packages/torch"


def user(line, file="/home/me/train.py", code="work()"):
    return Frame(file, line, "main", code, user=True)


def lib(file, function, line=1):
    return Frame(f"{LIB}/{file}", line, function)


REDUCE = (
    user(41),
    lib("distributed/c10d_logger.py", "wrapper"),
    lib("distributed/distributed_c10d.py", "all_reduce"),
)
BACK = (user(91), lib("_tensor.py", "backward"), lib("autograd/graph.py", "_engine_run_backward"))
NEXT = (user(33), lib("utils/data/dataloader.py", "__next__"), user(40, file="/home/me/data.py"))
QUEUE = (
    user(33),
    lib("utils/data/dataloader.py", "__next__"),
    Frame("/usr/lib/python3.11/queue.py", 180, "get"),
)
SLEEP = (user(50, code="time.sleep(600)"),)
FORWARD = (user(60), lib("nn/parallel/distributed.py", "_sync_buffers"))
INIT = (user(5), lib("distributed/distributed_c10d.py", "init_process_group"))
WRAP = (
    user(9),
    lib("nn/parallel/distributed.py", "__init__"),
    lib("distributed/utils.py", "_verify_param_shape"),
)

KINDS = {
    "a collective": (REDUCE, COLLECTIVE, "all_reduce"),
    "backward": (BACK, BACKWARD, "backward"),
    "the dataset": (NEXT, DATA, "next(loader)"),
    "a loader with workers": (QUEUE, DATA, "next(loader)"),
    "the user's code": (SLEEP, CODE, ""),
    "DDP's buffers": (FORWARD, COLLECTIVE, "the forward of DistributedDataParallel"),
    "the group's start": (INIT, START, "init_process_group"),
    "DDP's start": (WRAP, START, "DistributedDataParallel(...)"),
    "a step of the user's inside DDP's forward": ((*FORWARD, user(7)), CODE, ""),
    "a hook of the user's inside backward": ((*BACK, user(7)), CODE, ""),
    "a collective inside DDP's forward": ((*FORWARD, *REDUCE), COLLECTIVE, "all_reduce"),
    "nothing": ((), CODE, ""),
}


@pytest.mark.parametrize("frames, kind, words", KINDS.values(), ids=KINDS)
def test_the_kind_of_a_place(frames, kind, words):
    assert classify(frames) == (kind, words)


def at(rank, frames, *, idle=20.0, **more):
    late = {"late": idle > 10, "late_alone": idle > 10, **more}
    return Position(
        rank=rank, host="node-a" if rank < 3 else "node-b", frames=frames, idle_s=idle, **late
    )


def flying(rank, frames, call, seq, **more):
    return at(rank, frames, call=call, seq=seq, flying=True, **more)


def test_what_a_rank_does_in_words():
    assert (
        flying(0, BACK, "all_reduce", 812).doing
        == "all_reduce #812, backward, /home/me/train.py:91"
    )
    assert flying(0, REDUCE, "all_reduce", 3).doing == "all_reduce #3, /home/me/train.py:41"
    assert at(0, REDUCE).doing == "all_reduce, /home/me/train.py:41"
    assert at(0, NEXT).doing == "next(loader), /home/me/data.py:40"
    assert at(0, QUEUE, worker="data.py:12").doing == "next(loader), data.py:12"
    assert at(0, SLEEP).doing == "time.sleep(600), /home/me/train.py:50"
    assert at(0, ()).doing == "not visible"


WAITS = [flying(rank, BACK, "all_reduce", 812) for rank in range(3)]


def test_what_a_rank_has_printed_is_evidence_of_a_hang_and_of_its_end():
    stuck = at(3, NEXT, idle=118, printed="its log shows OSError: x")
    for ended_after_s in (0.0, 30.0):
        finding = judge([*WAITS, stuck], ended_after_s=ended_after_s)
        assert finding.evidence[0] == "in rank 3, its log shows OSError: x"


VERDICTS = {
    "a rank in its data": (
        [*WAITS, at(3, NEXT, idle=118)],
        "rank-stuck-in-data",
        "rank 3 (node-b) has been stuck for 118 s in next(loader) at /home/me/data.py:40; ranks 0-2 wait for it",
    ),
    "a rank in its code": (
        [*WAITS, at(3, SLEEP)],
        "rank-stuck-in-code",
        "has been stuck for 20 s in time.sleep(600) at /home/me/train.py:50",
    ),
    "all in their data": (
        [at(0, NEXT, still=True), at(1, NEXT, still=True)],
        "rank-stuck-in-data",
        "ranks 0-1 (node-a)",
    ),
    "a rank-0 block": (
        [at(0, REDUCE, guard="if rank == 0:"), *WAITS[1:]],
        "conditional-collective",
        "under if rank == 0:",
    ),
    "the others wait for the busy one, in a block": (
        [at(0, SLEEP), at(1, REDUCE, guard="if rank != 0:"), at(2, REDUCE, guard="if rank != 0:")],
        "rank-stuck-in-code",
        "rank 0 (node-a)",
    ),
    "different collectives": (
        [at(0, REDUCE), *WAITS[1:]],
        "collective-mismatch",
        "rank 0 in all_reduce, /home/me/train.py:41",
    ),
    "both in blocks": (
        [at(0, REDUCE, guard="if rank == 0:"), at(1, BACK, guard="if rank == 0:")],
        "collective-mismatch",
        "ranks are in different collectives",
    ),
    "one has ended, with fewer steps": (
        [at(0, BACK, steps=9), at(1, (), ended=True, steps=7)],
        "uneven-inputs",
        "rank 1 (node-a) has ended after 7 steps",
    ),
    "one has ended": (
        [at(0, REDUCE, steps=7), at(1, (), ended=True, steps=7)],
        "rank-ended-early",
        "rank 1",
    ),
    "all in the same": (
        WAITS,
        "collective-timeout",
        "all ranks wait in the same collective for 20 s",
    ),
}


@pytest.mark.parametrize("positions, name, words", VERDICTS.values(), ids=VERDICTS)
def test_the_verdict(positions, name, words):
    assert hangs(positions)
    finding = judge(positions)
    assert finding.name == name
    assert words in finding.what


@pytest.mark.parametrize(
    ("file", "contents", "name"),
    [
        ("/other/train.py", ("one", "one"), "collective-timeout"),  # nodes without a shared disk
        ("/other/train.py", ("one", "two"), "collective-mismatch"),
        ("/home/me/train.py", ("one", "two"), "collective-timeout"),  # it was edited meanwhile
    ],
)
def test_ranks_in_copies_of_a_script_are_in_the_same_line(file, contents, name):
    frames = (user(41, file=file), *REDUCE[1:])
    places = [at(0, REDUCE, content=contents[0]), at(3, frames, content=contents[1])]
    assert judge(places, ended_after_s=1800.0).name == name


ADVICE = [
    ((0, 1), "nccl", "NCCL_P2P_DISABLE=1"),
    ((0, 1), "gloo", "src or dst"),
    ((0, 3), "", "let all TCP ports pass between the hosts"),
]


@pytest.mark.parametrize(("ranks", "backend", "words"), ADVICE)
def test_advice_about_nccl_is_for_nccl(ranks, backend, words):
    finding = judge([flying(rank, BACK, "broadcast", 3, backend=backend) for rank in ranks])
    assert words in finding.fix
    assert ("NCCL" in f"{finding.fix}{finding.why}") == (backend == "nccl")


def test_each_group_of_ranks_has_a_line():
    finding = judge([*WAITS, at(3, NEXT, idle=118)])
    assert finding.evidence == (
        "rank 3 (node-b): next(loader), /home/me/data.py:40, for 118 s",
        "ranks 0-2 (node-a): all_reduce #812, backward, /home/me/train.py:91, for 20 s",
    )


def test_uneven_batches_explain_ranks_in_different_collectives():
    uneven = Finding("uneven-inputs", "rank 1's loader ended after 40 batches")
    finding = judge([at(0, BACK), at(1, REDUCE)], uneven=uneven)
    assert finding.what == uneven.what
    assert len(finding.evidence) == 2


QUIET = {
    "one computes": [*WAITS, at(3, SLEEP, idle=1)],
    "nobody waits, one computes": [at(0, SLEEP), at(1, SLEEP, idle=1)],
    "nobody waits, all compute": [at(0, SLEEP, still=False), at(1, SLEEP, still=False)],
    "nobody has waited for long": [at(0, BACK, idle=1), at(1, SLEEP)],
    "all have ended": [at(0, (), ended=True), at(1, (), ended=True)],
}


@pytest.mark.parametrize("positions", QUIET.values(), ids=QUIET)
def test_what_is_no_hang(positions):
    assert not hangs(positions)


def test_all_stand_still_in_their_own_code():
    assert hangs([at(0, NEXT, still=True), at(1, SLEEP, still=True)])


def test_a_broken_collective_is_no_matter_of_time():
    assert judge([at(0, REDUCE, idle=0), at(1, SLEEP, idle=0)], broken=True) is None
    finding = judge([at(0, REDUCE, idle=0), at(1, BACK, idle=0)], broken=True)
    assert finding.name == "collective-mismatch"


LIMITS = [
    ((None, 0.0), 120),
    ((None, 1.0), 120),
    ((None, 30.0), 300),
    ((7.0, 0.0), 7),
    ((7.0, 2.0), 7),
]


@pytest.mark.parametrize("given, expected", LIMITS)
def test_how_long_a_rank_may_be_without_progress(given, expected):
    asked, step_s = given
    assert limit_s(asked, step_s=step_s) == expected


DUMP = """Thread 0x01 (most recent call first):
  File "/x/threading.py", line 5 in wait
  File "/x/threading.py", line 7 in _bootstrap

Current thread 0x02 (most recent call first):
  File "/x/b.py", line 2 in inner
  File "/x/a.py", line 1 in <module>

Thread 0x03 (most recent call first):
  File "/x/c.py", line 9 in other
  File "/x/threading.py", line 7 in _bootstrap
"""


def test_a_dump_is_read_from_the_outside_in():
    assert parse(DUMP) == (("/x/a.py", 1, "<module>"), ("/x/b.py", 2, "inner"))
    assert parse("") == ()


def test_where_a_thread_of_a_library_has_crashed_the_main_one_is_read():
    dump = """Fatal Python error: Aborted

Current thread 0x01 (most recent call first):
  <no Python frame>

Thread 0x02 (most recent call first):
  File "/x/witness.py", line 5 in _answer
  File "/x/threading.py", line 1002 in _bootstrap

Thread 0x03 (most recent call first):
  File "/x/train.py", line 9 in <module>
"""
    assert parse(dump) == (("/x/train.py", 9, "<module>"),)
