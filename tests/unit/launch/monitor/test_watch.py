"""The watch of one node and of two, with ranks that are told where to stand and a clock that is told the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

from paceline import counters
from paceline.launch.monitor import watch as watches
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.monitor.stacks import Look
from paceline.launch.monitor.watch import Watch, WatchVerdict
from paceline.text.plain_data import read_as

BACK = Frame(
    "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"
)


def user(line):
    return Frame("/home/me/train.py", line, "main", "work()", user=True)


WAITING = Look((user(9), BACK), cpu_s=5.0)


class Group:
    """Ranks that are said to stand somewhere."""

    def __init__(self, *ranks):
        self.attempt = SimpleNamespace(
            ranks=dict(enumerate(ranks)), living=set(range(len(ranks))), world_size=2, ended={}
        )
        self.at = dict.fromkeys(range(len(ranks)), WAITING)
        self.beat = dict.fromkeys(range(len(ranks)), counters.NOTHING)
        self.looked = self.signalled = 0
        self.threads = ()  # exceptions in rank 1

    def look(self, *, quiet=False):
        self.looked += 1
        self.signalled += not quiet
        return {local: self.at[local] for local in self.attempt.living}

    def counted(self, local):
        return self.beat[local]

    def position(self, local, look):
        ended = local not in self.attempt.living
        recorded = look.recorded if look else {}
        frames, state = (look.frames, look.state) if look else ((), "")
        return Position(
            rank=self.attempt.ranks[local],
            frames=frames,
            ended=ended,
            pid=4711,
            state=state,
            threads=self.threads if local == 1 else (),
            printed=look.printed if look else "",
            **recorded,
        )

    def figures(self):
        return [
            {"rank": rank, **vars(self.beat[local])} for local, rank in self.attempt.ranks.items()
        ]


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=1000.0)
    fake = SimpleNamespace(monotonic=lambda: now.s, monotonic_ns=lambda: int(now.s * 1e9))
    monkeypatch.setattr(watches, "time", fake)
    return now


def stepped(clock, *, steps=5, step_s=0.1):
    """What a rank has counted that makes a step now."""
    return counters.Counters(
        counters.RUNNING,
        steps=steps,
        batches=steps,
        seconds=1.0,
        data_s=0,
        own_s=0,
        beat_ns=int(clock.s * 1e9),
        step_s=step_s,
    )


def until_noticed(group, watch, clock, *, within_s):
    """Tick twice a second; return the first notice and after how long it came; the run must not be ended."""
    start, before = clock.s, len(group.notices)
    while clock.s - start <= within_s:
        assert watch.tick() is None
        if len(group.notices) > before:
            return group.notices[-1], clock.s - start
        clock.s += 0.5
    return None


def until_told(watch, clock, *, within_s):
    """Tick twice a second; return what is said and after how long."""
    start = clock.s
    while clock.s - start <= within_s:
        found = watch.tick()
        if found is not None:
            return found.name, clock.s - start
        clock.s += 0.5
    return None


def watched(clock, *, requested_s=None, ranks=2):
    group = Group(*range(ranks))
    group.beat = {local: stepped(clock) for local in range(ranks)}
    group.notices = []
    inform = group.notices.append
    return group, Watch(group, None, requested_s=requested_s, give_up=bool, inform=inform)


def test_ranks_that_make_progress_are_not_looked_at(clock):
    group, watch = watched(clock, requested_s=4)
    for _ in range(100):
        group.beat = {local: stepped(clock) for local in range(2)}
        assert until_told(watch, clock, within_s=2) is None
    assert not group.looked


def test_a_sleeper_is_told_after_the_time_that_was_asked_for(clock):
    group, watch = watched(clock, requested_s=4)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    name, after_s = until_told(watch, clock, within_s=20)
    assert name == "rank-stuck-in-code"
    assert 4 < after_s < 6


def test_by_default_a_sleeper_is_noticed_after_two_minutes_and_left_alone(clock):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    notice, after_s = until_noticed(group, watch, clock, within_s=300)
    assert notice.what.startswith("rank 0 has been waiting for rank 1 for 12")
    assert "(hang?): rank 1 is in work() (main, " in notice.what
    assert "--hang-timeout 300" in notice.advice
    assert 120 < after_s < 130
    assert until_told(watch, clock, within_s=3000) is None
    assert len(group.notices) == 1
    assert watch.cause.name == "rank-stuck-in-code"


def test_no_signal_is_sent_before_the_notice(clock):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    assert until_noticed(group, watch, clock, within_s=115) is None
    assert group.looked > 2
    assert not group.signalled


def test_a_picture_that_changes_is_noticed_again_and_progress_forgets_it(clock):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    assert until_noticed(group, watch, clock, within_s=300)
    group.at[1] = Look((user(50),), cpu_s=1.0)
    notice, _ = until_noticed(group, watch, clock, within_s=300)
    assert ":50" in notice.what
    clock.s += 1
    group.beat = {local: stepped(clock) for local in range(2)}
    assert watch.tick() is None
    assert watch.cause is None
    assert until_noticed(group, watch, clock, within_s=300)


def test_ten_usual_steps_may_be_longer(clock):
    group, watch = watched(clock)
    group.beat = {local: stepped(clock, step_s=40.0) for local in range(2)}
    group.at[1] = Look((user(5),), cpu_s=1.0)
    _, after_s = until_noticed(group, watch, clock, within_s=900)
    assert 400 < after_s < 410


def test_a_stopped_rank_is_called_stopped_within_ten_seconds(clock):
    group, watch = watched(clock)
    group.at[1] = Look(state="T")
    notice, after_s = until_noticed(group, watch, clock, within_s=60)
    assert "rank 1 is stopped (state T); rank 0 has been waiting" in notice.what
    assert notice.advice == "to let it continue: kill -CONT 4711"
    assert after_s < 10


LOG = {"printed": "its log shows OSError: x", "printed_ns": int(1e12)}


class Working(dict):
    """A rank in its own code whose stack changes with every look."""

    def __getitem__(self, local):
        self.looks = getattr(self, "looks", 0) + 1
        return Look((user(self.looks),), cpu_s=float(self.looks), **LOG) if local == 1 else WAITING


def test_one_that_others_wait_for_and_that_works_is_noticed_once(clock):
    group, watch = watched(clock)
    group.at = Working()
    notice, after_s = until_noticed(group, watch, clock, within_s=900)
    assert notice.what.endswith(", and is active")
    assert 120 < after_s < 140
    assert until_noticed(group, watch, clock, within_s=900) is None


def test_who_asks_for_a_time_gets_it(clock):
    group, watch = watched(clock, requested_s=30)
    group.at = Working()
    _, after_s = until_told(watch, clock, within_s=900)
    assert 30 < after_s < 40


def test_all_at_work_on_their_own_is_no_hang(clock):
    group, watch = watched(clock, requested_s=5)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}

    def work(*, quiet):
        group.at = {
            local: Look(look.frames, cpu_s=look.cpu_s + 1) for local, look in group.at.items()
        }
        return {local: group.at[local] for local in group.attempt.living}

    group.look = work
    assert until_told(watch, clock, within_s=60) is None


def test_all_that_stand_still_on_their_own_are(clock):
    group, watch = watched(clock, requested_s=5)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}
    name, _ = until_told(watch, clock, within_s=60)
    assert name == "rank-stuck-in-code"


def test_a_hang_is_told_once_until_there_is_progress(clock):
    group, watch = watched(clock, requested_s=4)
    group.at[1] = Look((user(5),), cpu_s=1.0)
    assert until_told(watch, clock, within_s=20)
    assert until_told(watch, clock, within_s=60) is None
    group.beat = {local: stepped(clock) for local in range(2)}
    assert until_told(watch, clock, within_s=20)


def test_what_nccl_says_is_evidence(clock):
    group, _ = watched(clock)
    watch = Watch(
        group,
        None,
        requested_s=4,
        give_up=bool,
        inform=print,
        ask_nccl=lambda: ["NCCL RAS: 1 rank INCOMPLETE"],
    )
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
    group, watch = watched(clock, requested_s=asked_s)
    group.beat = dict.fromkeys(range(2), counters.NOTHING)
    group.at = Calling()
    assert until_told(watch, clock, within_s=3000) is None


@pytest.mark.parametrize(("wakes", "found"), [(4, None), (0, "rank-stuck-in-code")])
def test_a_rank_that_wakes_often_works_and_is_not_ended_where_nobody_waits(clock, wakes, found):
    group, watch = watched(clock, requested_s=4)
    group.look = lambda quiet: dict.fromkeys(
        (0, 1), Look((user(5),), switches=int(wakes * clock.s))
    )
    told = until_told(watch, clock, within_s=60)
    assert (told and told[0]) == found


def test_servers_that_wait_for_requests_are_left_alone(clock):
    group, watch = watched(clock)
    group.beat = dict.fromkeys(range(2), counters.NOTHING)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}
    assert until_noticed(group, watch, clock, within_s=3000) is None


def test_a_server_after_training_is_a_notice(clock):
    group, watch = watched(clock)
    group.at = {0: Look((user(1),), cpu_s=1.0), 1: Look((user(2),), cpu_s=1.0)}
    notice, after_s = until_noticed(group, watch, clock, within_s=3000)
    assert notice.what.startswith("no rank has made progress for 60")
    assert 600 < after_s < 620


def test_torchs_own_end_of_a_wait_is_said(clock):
    group, watch = watched(clock)
    group.at[0] = Look(
        WAITING.frames, {"call": "all_reduce", "seq": 3, "timeout_s": 7200.0, "flying": True}
    )
    group.at[1] = Look((user(5),), cpu_s=1.0)
    notice, _ = until_noticed(group, watch, clock, within_s=300)
    assert notice.advice == "torch ends this wait after 2 h, `--hang-timeout 300` sooner"


@pytest.mark.parametrize("moves", [True, False])
def test_a_first_step_over_a_slow_link_is_no_matter_for_a_notice(clock, moves):
    group, watch = watched(clock)
    sent = iter(range(10**6))
    recorded = {"call": "all_reduce", "seq": 1, "group": "0", "flying": True}
    group.look = lambda *, quiet: {
        local: Look(WAITING.frames, recorded, socket_bytes=next(sent) if moves else 5)
        for local in range(2)
    }
    assert (until_noticed(group, watch, clock, within_s=900) is None) == moves


def in_call(name, *, seq=7, elements=3, record=1, switches=9, socket_bytes=100, **more):
    """A look at a rank that waits in a collective."""
    call = ["0", seq, name, elements, record]
    recorded = {"call": name, "seq": seq, "group": "0", "timeout_s": 1800.0, "flying": True}
    answer = {
        "pending": [call],
        "recent": [call],
        "whole": True,
        "members": {"0": [0, 1]},
        "p2p": 0,
    }
    return Look(
        WAITING.frames,
        recorded,
        answer=answer,
        state="S",
        switches=switches,
        socket_bytes=socket_bytes,
        **{"others_idle": True, **more},
    )


def test_two_operations_under_one_number_end_the_run_within_ten_seconds(clock):
    group, watch = watched(clock)
    group.at = {0: in_call("all_reduce"), 1: in_call("broadcast")}
    name, after_s = until_told(watch, clock, within_s=60)
    assert name == "collective-mismatch"
    assert 5 < after_s < 10
    assert not group.signalled


class Moving(dict):
    """Two operations under one number, but something of rank 1 changes with every look."""

    def __init__(self, name):
        self.name, self.looks = name, 0

    def __getitem__(self, local):
        self.looks += 1
        return in_call("broadcast", **{self.name: self.looks}) if local else in_call("all_reduce")


@pytest.mark.parametrize("name", ["switches", "socket_bytes", "record"])
def test_nothing_is_proven_as_long_as_something_moves(clock, name):
    group, watch = watched(clock)
    group.at = Moving(name)
    assert until_told(watch, clock, within_s=600) is None


UNKNOWN = {"switches": -1, "socket_bytes": -1, "others_idle": False}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_proven_where_something_is_not_known(clock, name):
    group, watch = watched(clock)
    group.at = {0: in_call("all_reduce"), 1: in_call("broadcast", **{name: UNKNOWN[name]})}
    assert until_told(watch, clock, within_s=600) is None


def test_long_steps_are_looked_at_late(clock):
    group, watch = watched(clock)
    group.beat = {local: stepped(clock, step_s=20.0) for local in range(2)}
    assert until_told(watch, clock, within_s=38) is None
    assert not group.looked


def test_where_the_ranks_stand_is_known_as_soon_as_they_make_no_progress(clock):
    group, watch = watched(clock)
    assert watch.standing() == {}
    assert until_told(watch, clock, within_s=9) is None
    stands = watch.standing()
    assert stands[1].still and stands[1].place == "/home/me/train.py:9" and stands[1].idle_s > 9
    group.attempt.living = {0}  # a signal to all processes has ended it
    assert watch.standing()[1].place == stands[1].place
    group.beat[0] = stepped(clock)
    assert watch.standing() == {}


class ControlChannel:
    """The two ends of a channel in one process: what is posted is there at once."""

    kept: ClassVar[dict] = {}

    def __init__(self, node):
        self.node, self.num_nodes, self.remote = node, 2, SimpleNamespace(look=0)

    def call_look(self, number):
        for channel in self.channels:
            channel.remote.look = max(channel.remote.look, number)

    def post(self, kind, content):
        self.kept[kind, self.node] = content

    def collect(self, kind, *, until_s, give_up):
        return {node: content for (name, node), content in self.kept.items() if name == kind}

    def await_head(self, kind, *, until_s, give_up):
        return self.kept.get((kind, 0))


def test_what_the_head_makes_of_all_is_said_by_all(clock, monkeypatch):
    channels = ControlChannel.channels = [ControlChannel(0), ControlChannel(1)]
    ControlChannel.kept = {}
    groups = [Group(0), Group(1)]
    groups[1].at[0] = Look((user(5),), cpu_s=1.0)
    head, other = (
        Watch(group, channel, requested_s=4, give_up=bool, inform=print)
        for group, channel in zip(groups, channels, strict=True)
    )
    groups[0].position = lambda local, look: Position(rank=0, frames=look.frames)
    clock.s += 4.5
    other.tick()  # it is the first to be late, and calls for a look; the head has not answered yet
    assert channels[0].remote.look == 1
    found = head.tick()
    assert found.name == "rank-stuck-in-code"
    assert read_as(WatchVerdict, ControlChannel.kept["verdict/1", 0]).finding == found


def test_a_script_of_collectives_alone_is_looked_at_ever_less_often(clock):
    group, watch = watched(clock)
    group.beat = dict.fromkeys(range(2), counters.NOTHING)
    group.at = Calling()
    assert until_told(watch, clock, within_s=600) is None
    first = group.looked
    assert until_told(watch, clock, within_s=600) is None
    assert group.looked - first < 30


@pytest.mark.parametrize(
    ("threads", "log", "said", "seconds"),
    [
        (("thread feeder raised OSError: x",), {}, "in rank 1, thread feeder", (5, 8)),
        ((), LOG, "in rank 1, its log shows OSError: x", (10, 16)),
    ],
)
def test_an_exception_of_a_rank_that_others_wait_for_is_said_soon_and_once(
    clock, threads, log, said, seconds
):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), cpu_s=1.0, **log)
    group.threads = threads
    notice, after_s = until_noticed(group, watch, clock, within_s=60)
    assert notice.details[-1].startswith(said)
    assert seconds[0] <= after_s <= seconds[1]
    clock.s += 1
    group.beat = {local: stepped(clock) for local in range(2)}
    assert until_noticed(group, watch, clock, within_s=115) is None
    assert not group.signalled


def test_what_a_rank_has_printed_before_its_last_collective_or_while_it_works_is_not_said(clock):
    group, watch = watched(clock)
    group.at[1] = Look((user(5),), recorded={"seq": 1, "group": "0"}, **LOG)
    assert until_noticed(group, watch, clock, within_s=8) is None
    group.at[1] = Look((user(5),), recorded={"seq": 2, "group": "0"}, **LOG)
    assert until_noticed(group, watch, clock, within_s=100) is None
    group, watch = watched(clock)
    group.at = Working()
    assert until_noticed(group, watch, clock, within_s=100) is None
