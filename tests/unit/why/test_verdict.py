"""From looks at ranks to a verdict: what hangs is named, and what may be healthy is accused by nobody."""

from __future__ import annotations

import json
import re

import pytest

from paceline.launch.monitor.position import Frame, Position
from paceline.launch.monitor.proof import Call, Stand
from paceline.launch.monitor.stacks import Look
from paceline.text.plain_data import read_as
from paceline.why import rank_state, report, verdict
from paceline.why.loops import left_loop, nest
from paceline.why.rank_state import IN_PLACE, RUNNING, STILL, Account, motion

LIB = "/venv/lib/python3.11/site-packages/torch"


def user(line, code="work()", function="main"):
    return Frame("/home/me/train.py", line, function, code, user=True)


REDUCE = (user(41), Frame(f"{LIB}/distributed/distributed_c10d.py", 1, "all_reduce"))
BARRIER = (user(60), Frame(f"{LIB}/distributed/distributed_c10d.py", 1, "barrier"))
NEXT = (user(33), Frame(f"{LIB}/utils/data/dataloader.py", 1, "__next__"))
SLEEP = (user(50, "time.sleep(600)"),)
ITEM = (user(70, "loss.item()"),)


def rank(number, frames=(), how=STILL, *, world_size=2, places=(), stand=None, error="", **more):
    position = Position(
        number, "node-a", idle_s=5, late_alone=True, still=how == STILL, frames=frames, **more
    )
    return Account(
        "run",
        world_size,
        seconds=5,
        position=position,
        stand=stand or Stand(number),
        motion=how,
        places=places,
        facts=("sleeps, 9 s old, 0.0 s of CPU in 5 s",),
        error=error,
    )


HANGS = {
    "a rank sleeps": ([rank(0, REDUCE), rank(1, SLEEP)], "rank-stuck-in-code", "rank 1"),
    "a rank waits for its data": ([rank(0, REDUCE), rank(1, NEXT)], "rank-stuck-in-data", "rank 1"),
    "other collectives": (
        [rank(0, REDUCE), rank(1, BARRIER)],
        "collective-mismatch",
        "rank 0 in all_reduce",
    ),
    "for some ranks only": (
        [rank(0, REDUCE, guard="if rank == 0: (train.py:40)"), rank(1, BARRIER)],
        "conditional-collective",
        "if rank == 0",
    ),
    "a rank has ended": (
        [rank(0, REDUCE), rank(1, ended=True)],
        "rank-ended-early",
        "rank 1 .*has ended",
    ),
    "all are in one": ([rank(0, REDUCE), rank(1, REDUCE)], "collective-timeout", "all ranks wait"),
    "others keep a CPU busy while they wait for the GPU": (
        [rank(0, ITEM, IN_PLACE, call="waits for its GPU", flying=True), rank(1, SLEEP)],
        "rank-stuck-in-code",
        "rank 1",
    ),
    "a rank is stopped": (
        [rank(0, REDUCE), rank(1, SLEEP, state="T", pid=7)],
        "rank-stuck-in-code",
        "rank 1",
    ),
}
HEALTHY = {
    "all run": ([rank(0, REDUCE, RUNNING), rank(1, SLEEP, RUNNING)], verdict.MOVING),
    "one runs, the other receives": (
        [rank(0, REDUCE, RUNNING), rank(1, REDUCE, IN_PLACE, moving=True)],
        verdict.MOVING,
    ),
    "rank 0 validates": ([rank(0, SLEEP, RUNNING), rank(1, REDUCE)], verdict.WAITS),
    "rank 0 polls in one line": ([rank(0, SLEEP, IN_PLACE), rank(1, REDUCE)], verdict.WAITS),
    "rank 0 downloads": ([rank(0, SLEEP, IN_PLACE, moving=True), rank(1, REDUCE)], verdict.WAITS),
    "a large all_reduce over a slow network": (
        [rank(0, REDUCE, IN_PLACE, moving=True), rank(1, REDUCE, IN_PLACE, moving=True)],
        verdict.WAITS,
    ),
    "a long step on GPUs": (
        [rank(each, ITEM, IN_PLACE, call="waits for its GPU", flying=True) for each in (0, 1)],
        verdict.BUSY,
    ),
    "a rank on another host": ([rank(0, REDUCE)], verdict.WAITS),
    "servers that wait for requests": ([rank(0, SLEEP), rank(1, SLEEP)], verdict.STANDS),
    "one rank alone computes in one line": ([rank(0, SLEEP, IN_PLACE, world_size=1)], verdict.BUSY),
    "one rank alone computes": ([rank(0, SLEEP, RUNNING, world_size=1)], verdict.MOVING),
    "one rank computes, and nobody waits for it": (
        [rank(0, SLEEP, RUNNING), rank(1, SLEEP)],
        verdict.MOVING,
    ),
    "nobody may read the stacks": (
        [rank(0), rank(1, error="py-spy: Permission Denied")],
        verdict.UNSEEN,
    ),
    "all have ended meanwhile": ([rank(0, ended=True), rank(1, ended=True)], verdict.MOVING),
}


@pytest.mark.parametrize(("accounts", "name", "words"), HANGS.values(), ids=HANGS)
def test_a_hang_is_likely_and_never_more_than_a_warning(accounts, name, words):
    found = report.make(accounts)
    (run,) = found.runs
    assert (run.verdict.kind, run.verdict.finding.name) == (verdict.STANDS, name)
    assert run.verdict.finding.severity == "warning"
    assert found.exit_status == 0
    assert "--hang-timeout" not in found.render(), "an option of paceline run"
    assert all(len(line) <= 300 for line in found.render().splitlines())
    assert re.search(words, found.render())


@pytest.mark.parametrize(("accounts", "kind"), HEALTHY.values(), ids=HEALTHY)
def test_what_may_be_healthy_is_accused_by_nobody(accounts, kind):
    found = report.make(accounts)
    (run,) = found.runs
    assert (run.verdict.kind, run.verdict.finding) == (kind, None)
    assert found.exit_status == 0


def test_a_proof_is_an_error():
    calls = [Call("0", 5, "barrier", 0, 5), Call("0", 5, "all_reduce", 3, 5)]
    stands = [
        Stand(
            number, blocked=True, pending=(call,), recent=(call,), whole=True, members={"0": [0, 1]}
        )
        for number, call in enumerate(calls)
    ]
    found = report.make([rank(0, BARRIER, stand=stands[0]), rank(1, REDUCE, stand=stands[1])])
    assert found.runs[0].verdict.kind == verdict.PROVEN
    assert found.runs[0].verdict.finding.name == "collective-mismatch"
    assert found.exit_status == 1
    assert "proven: " in found.render()


def test_what_to_do_is_said_where_no_stack_is_visible():
    missing = report.make(
        [rank(0, error="py-spy is not installed"), rank(1, error="py-spy is not installed")]
    ).render()
    assert 'pip install "paceline[why]"' in missing
    assert "sleeps, 9 s old" in missing
    refused = report.make(
        [rank(0, error="py-spy: Permission Denied: Try running again with elevated permissions")]
    )
    assert "sudo" in refused.render() and "--cap-add SYS_PTRACE" in refused.render()


def test_a_healthy_run_without_a_stack_is_not_accused():
    found = report.make([rank(number, how=RUNNING, moving=True) for number in range(2)])
    assert found.runs[0].verdict.kind == verdict.MOVING
    assert "all ranks run, and bytes move on their sockets\n  in which line" in found.render()


def test_a_stopped_rank_is_seen_without_a_stack():
    text = report.make([rank(0), rank(1, state="T", pid=77)]).render()
    assert "rank 1 is stopped (state T)" in text
    assert "kill -CONT 77" in text


def test_two_runs_get_a_verdict_each():
    other = Account(**{**rank(0, SLEEP, world_size=1).__dict__, "run": "another"})
    found = report.make([rank(0, REDUCE, RUNNING), rank(1, REDUCE, RUNNING), other])
    assert [len(run.accounts) for run in found.runs] == [1, 2]


def test_an_account_survives_the_way_through_a_file():
    stand = Stand(1, blocked=True, pending=(Call("0", 5, "barrier"),), members={"0": [0, 1]})
    there = rank(1, SLEEP, places=("a", "b"), stand=stand)
    assert read_as(Account, json.loads(json.dumps(there.to_json()))) == there


def look(frames=SLEEP, **more):
    return Look(frames, **{"socket_bytes": 5, "switches": 10, **more})


MOTIONS = {
    "nothing": ([look(), look()], STILL),
    "it wakes to see whether its worker lives": ([look(), look(switches=12)], STILL),
    "another line": ([look(), look(REDUCE), look()], RUNNING),
    "another collective in the same line": (
        [
            look(REDUCE, recorded={"seq": 1, "group": "0"}),
            look(REDUCE, recorded={"seq": 2, "group": "0"}),
        ],
        RUNNING,
    ),
    "CPU": ([look(), look(cpu_s=1.0)], IN_PLACE),
    "bytes on a socket": ([look(), look(socket_bytes=6)], IN_PLACE),
    "bytes of a file": ([look(), look(io_bytes=1 << 20)], IN_PLACE),
    "it wakes often": ([look(), look(switches=20)], IN_PLACE),
    "no stack, and no CPU": ([look(()), look(())], STILL),
    "no stack, and bytes on a socket": ([look(()), look((), socket_bytes=6)], RUNNING),
    "no stack, and CPU": ([look(()), look((), cpu_s=1.0)], RUNNING),
}


@pytest.mark.parametrize(("looks", "expected"), MOTIONS.values(), ids=MOTIONS)
def test_what_has_moved(looks, expected):
    assert motion(looks, seconds=5) == expected


def test_lines_that_wait_for_the_gpu():
    assert rank_state.waits_for_gpu(ITEM)
    assert rank_state.waits_for_gpu((user(1), Frame(f"{LIB}/cuda/__init__.py", 9, "synchronize")))
    assert not rank_state.waits_for_gpu(SLEEP)
    assert not rank_state.waits_for_gpu(())


SOURCE = """\
def main():
    for epoch in epochs:
        for x, y in loader:
            step(x)
        validate()
    save()


def step(x):
    while True:
        reduce(x)
"""


def places(*lines):
    return [nest(SOURCE, file="train.py", line=line) for line in lines]


@pytest.mark.parametrize(
    ("inside", "after", "expected"),
    [
        ([4], [5], (3, 4)),
        ([4], [6], (3, 4)),
        ([5], [6], (2, 5)),
        ([4, 11], [6], (3, 4)),
        ([4, 11], [5, 11], None),
        ([4], [4], None),
        ([5], [4], None),
        ([11], [5], None),
    ],
)
def test_a_loop_that_one_has_left_and_another_has_not(inside, after, expected):
    assert left_loop(places(*inside), places(*after)) == (expected and ("train.py", *expected))


def test_a_file_that_is_no_python_has_no_loops():
    assert nest("not (python", file="train.py", line=1) is None


def test_ranks_that_left_a_loop_have_fewer_batches():
    accounts = [
        Account(**{**rank(0, REDUCE).__dict__, "loops": tuple(places(4))}),
        Account(**{**rank(1, BARRIER).__dict__, "loops": tuple(places(6))}),
    ]
    (run,) = report.make(accounts).runs
    assert run.verdict.finding.name == "uneven-inputs"
    assert (
        "rank 1 left the loop of train.py:3-4, and rank 0 is still in it"
        in run.verdict.finding.what
    )
    assert read_as(Account, json.loads(json.dumps(accounts[0].to_json()))) == accounts[0]


def test_what_a_terminal_would_obey_is_not_printed():
    named = Account(**{**rank(0, SLEEP).__dict__, "script": "train.py \x1b[2J\n"})
    assert "\x1b" not in report.make([named], ["node-b: \x07"]).render()
    assert "\x07" not in report.make([named], ["node-b: \x07"]).render()
