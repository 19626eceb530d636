"""The watch of one node and of two, with ranks that are told where to stand and a clock that is told the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

from paceline import pulse
from paceline.errors import Finding
from paceline.launcher import watch as watches
from paceline.launcher.position import Frame, Position
from paceline.launcher.stacks import Look
from paceline.launcher.watch import Watch

BACK = Frame("/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward")


def user(line):
    return Frame("/home/me/train.py", line, "main", "work()", user=True)


WAITING = Look((user(9), BACK), cpu_s=5.0)


class Group:
    """Ranks that are said to stand somewhere."""

    def __init__(self, *ranks):
        self.attempt = SimpleNamespace(ranks=dict(enumerate(ranks)), living=set(range(len(ranks))))
        self.at = dict.fromkeys(range(len(ranks)), WAITING)
        self.beat = dict.fromkeys(range(len(ranks)), pulse.NOTHING)
        self.looked = 0

    def look(self):
        self.looked += 1
        return {local: self.at[local] for local in self.attempt.living}

    def counted(self, local):
        return self.beat[local]

    def position(self, local, look):
        ended = local not in self.attempt.living
        recorded = look.recorded if look else {}
        return Position(rank=self.attempt.ranks[local], frames=look.frames if look else (), ended=ended, **recorded)

    def figures(self):
        return [{"rank": rank, **vars(self.beat[local])} for local, rank in self.attempt.ranks.items()]


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=1000.0)
    fake = SimpleNamespace(monotonic=lambda: now.s, monotonic_ns=lambda: int(now.s * 1e9))
    monkeypatch.setattr(watches, "time", fake)
    return now


def stepped(clock, *, steps=5, step_s=0.1):
    """What a rank has counted that makes a step now."""
    return pulse.Pulse(
        pulse.RUNNING,
        steps=steps,
        batches=steps,
        seconds=1.0,
        data_s=0,
        own_s=0,
        beat_ns=int(clock.s * 1e9),
        step_s=step_s,
    )


def until_told(watch, clock, *, within_s):
    """Tick twice a second; return what is said and after how long."""
    start = clock.s
    while clock.s - start <= within_s:
        found = watch.tick()
        if found is not None:
            return found.name, clock.s - start
        clock.s += 0.5
    return None


def watched(clock, *, asked_s=None, ranks=2):
    group = Group(*range(ranks))
    group.beat = {local: stepped(clock) for local in range(ranks)}
    return group, Watch(group, None, asked_s=asked_s, give_up=bool)


def test_ranks_that_make_progress_are_not_looked_at(clock):
    group, watch = watched(clock, asked_s=4)
    for _ in range(100):
        group.beat = {local: stepped(clock) for local in range(2)}
        assert until_told(watch, clock, within_s=2) is None
    assert not group.looked


def test_a_sleeper_is_told_after_the_time_that_was_asked_for(clock):
    group, watch = watched(clock, asked_s=4)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    name, after_s = until_told(watch, clock, within_s=20)
    assert name == "rank-stuck-in-code"
    assert 4 < after_s < 6


def test_by_default_a_sleeper_is_told_after_two_minutes(clock):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    name, after_s = until_told(watch, clock, within_s=300)
    assert name == "rank-stuck-in-code"
    assert 120 < after_s < 130


def test_before_the_first_step_after_ten(clock):
    group, watch = watched(clock)
    group.beat = dict.fromkeys(range(2), pulse.NOTHING)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    _, after_s = until_told(watch, clock, within_s=900)
    assert 600 < after_s < 610


def test_ten_usual_steps_may_be_longer(clock):
    group, watch = watched(clock)
    group.beat = {local: stepped(clock, step_s=40.0) for local in range(2)}
    group.at[1] = Look((user(5),), cpu_s=1.0)
    _, after_s = until_told(watch, clock, within_s=900)
    assert 400 < after_s < 410


class Working(dict):
    """A rank in its own code whose stack changes with every look."""

    def __getitem__(self, local):
        self.looks = getattr(self, "looks", 0) + 1
        return Look((user(self.looks),), cpu_s=float(self.looks)) if local == 1 else WAITING


def test_one_that_others_wait_for_but_that_moves_has_ten_minutes_by_default(clock):
    group, watch = watched(clock)
    group.at = Working()
    name, after_s = until_told(watch, clock, within_s=900)
    assert name == "rank-stuck-in-code"
    assert 600 < after_s < 620


def test_who_asks_for_a_time_gets_it(clock):
    group, watch = watched(clock, asked_s=30)
    group.at = Working()
    _, after_s = until_told(watch, clock, within_s=900)
    assert 30 < after_s < 40


def test_all_at_work_on_their_own_is_no_hang(clock):
    group, watch = watched(clock, asked_s=5)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}

    def work():
        group.at = {local: Look(look.frames, cpu_s=look.cpu_s + 1) for local, look in group.at.items()}
        return {local: group.at[local] for local in group.attempt.living}

    group.look = work
    assert until_told(watch, clock, within_s=60) is None


def test_all_that_stand_still_on_their_own_are(clock):
    group, watch = watched(clock, asked_s=5)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}
    name, _ = until_told(watch, clock, within_s=60)
    assert name == "rank-stuck-in-code"


def test_a_hang_is_told_once_until_there_is_progress(clock):
    group, watch = watched(clock, asked_s=4)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    assert until_told(watch, clock, within_s=20)
    assert until_told(watch, clock, within_s=60) is None
    group.beat = {local: stepped(clock) for local in range(2)}
    assert until_told(watch, clock, within_s=20)


def test_what_nccl_says_is_evidence(clock):
    group, _ = watched(clock)
    watch = Watch(group, None, asked_s=4, give_up=bool, ask_nccl=lambda: ["NCCL RAS: 1 rank INCOMPLETE"])
    clock.s += 5
    assert watch.tick().evidence[-1] == "NCCL RAS: 1 rank INCOMPLETE"


class Calling(dict):
    """Ranks without a DataLoader or an optimizer, which begin another collective now and then."""

    def __getitem__(self, local):
        self.looks = getattr(self, "looks", 0) + 1
        recorded = {"call": "all_reduce", "seq": self.looks // 2, "group": "0", "flying": True}
        return Look(WAITING.frames if local else (user(5),), recorded, cpu_s=1.0)


@pytest.mark.parametrize("asked_s", [None, 5])
def test_another_collective_is_progress(clock, asked_s):
    group, watch = watched(clock, asked_s=asked_s)
    group.beat = dict.fromkeys(range(2), pulse.NOTHING)
    group.at = Calling()
    assert until_told(watch, clock, within_s=3000) is None


def test_servers_that_wait_for_requests_are_left_alone(clock):
    group, watch = watched(clock)
    group.beat = dict.fromkeys(range(2), pulse.NOTHING)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}
    assert until_told(watch, clock, within_s=3000) is None


def test_a_script_that_lets_its_group_wait_for_hours_is_taken_at_its_word(clock):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), {"call": "all_reduce", "seq": 3, "timeout_s": 7200.0}, cpu_s=1.0)
    assert until_told(watch, clock, within_s=7000) is None


def test_a_rank_whose_children_work_has_ten_minutes(clock):
    group, watch = watched(clock)
    copied = iter(range(10**6))
    group.look = lambda: {0: WAITING, 1: Look((user(5),), cpu_s=1.0, io_bytes=next(copied) << 20)}
    _, after_s = until_told(watch, clock, within_s=900)
    assert 600 < after_s < 620


class Board:
    """The two ends of a board in one process: what is posted is there at once."""

    kept: ClassVar[dict] = {}

    def __init__(self, node):
        self.node, self.num_nodes, self.remote = node, 2, SimpleNamespace(look=0)

    def call_look(self, number):
        for board in self.boards:
            board.remote.look = max(board.remote.look, number)

    def post(self, kind, content):
        self.kept[kind, self.node] = content

    def collect(self, kind, *, until_s, give_up):
        return {node: content for (name, node), content in self.kept.items() if name == kind}

    def await_head(self, kind, *, until_s, give_up):
        return self.kept.get((kind, 0))


def test_what_the_head_makes_of_all_is_said_by_all(clock, monkeypatch):
    boards = Board.boards = [Board(0), Board(1)]
    Board.kept = {}
    groups = [Group(0), Group(1)]
    groups[1].at[0] = Look((user(5),), cpu_s=1.0)
    head, other = (Watch(group, board, asked_s=4, give_up=bool) for group, board in zip(groups, boards, strict=True))
    groups[0].position = lambda local, look: Position(rank=0, frames=look.frames)
    clock.s += 4.5
    other.tick()  # it is the first to be late, and calls for a look; the head has not answered yet
    assert boards[0].remote.look == 1
    found = head.tick()
    assert found.name == "rank-stuck-in-code"
    assert Finding.from_json(Board.kept["verdict/1", 0]) == found
