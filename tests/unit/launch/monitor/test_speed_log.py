"""What a launcher writes of its ranks' speed, alone and with other nodes."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest

from paceline import counters
from paceline.launch.monitor import speed_log
from paceline.launch.monitor.attempt import Attempt
from paceline.launch.monitor.speed_log import SpeedLog
from paceline.launch.monitor.timed_steps import TimedSteps
from paceline.machine import gpus
from paceline.rundir.files import RunDir

STAGES_NS = [1_000_000, 0, 2_000_000, 3_000_000, 4_000_000, 5_000_000]


class Channel:
    """Carries what nodes say to node 0."""

    num_nodes = 2

    def __init__(self, node, said):
        self.node, self._said = node, said

    def tell(self, topic, value):
        self._said.setdefault(topic, {})[self.node] = json.loads(json.dumps(value))

    def hear(self, topic):
        return dict(self._said.get(topic, {}))


class Node:
    """Two ranks with counters, and their log."""

    def __init__(self, folder, node=0, channel=None, *, with_gpus=False):
        self.counters = counters.SharedCounters(counters.create(2), 2)
        ranks = {local: 2 * node + local for local in range(2)}
        group = SimpleNamespace(attempt=Attempt(0, ranks, 2))
        self.timed = TimedSteps(self.counters, ranks)
        self.run_dir = RunDir(folder)
        self.group, self.noticed = group, []
        self.log = SpeedLog(
            group,
            self.counters,
            self.timed,
            channel,
            run_dir=self.run_dir,
            with_gpus=with_gpus,
            notice=self.noticed.append,
        )

    def train(self, steps, *, loss=0.5):
        for local in range(2):
            slot = self.counters.slot(local)
            slot[counters.STEPS] = steps
            slot[counters.BATCH_SAMPLES] = 16
            for step in range(1, steps):
                counters.write_stages(slot, number=step, step=step, durations=STAGES_NS, loss=loss)
        self.timed.look()

    def written(self):
        return json.loads(self.run_dir.speed.read_text())


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.log.close()


def test_the_last_description_is_written_at_the_end(node):
    node.train(20)
    node.log.tick()
    assert not node.run_dir.speed.exists()  # it is due after five seconds
    node.log.close()
    speed = node.written()
    assert (speed["steps"], speed["loss"], speed["samples_per_batch"]) == (20, 0.5, 32)
    assert speed["step"]["seconds"] == pytest.approx(0.015)
    assert speed["step"]["stages"]["data"] == pytest.approx(0.002)
    assert [rank["rank"] for rank in speed["ranks"]] == [0, 1]


def test_a_run_without_steps_has_a_description(node):
    node.log.close()
    assert node.written()["step"] is None
    assert node.written()["steps_per_s"] == 0.0


def test_a_loss_that_is_unknown_is_null(node):
    node.train(20, loss=float("nan"))
    node.log.close()
    assert node.written()["loss"] is None


def test_the_rate_is_that_of_the_last_interval(node, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(speed_log.time, "monotonic", lambda: clock[0])
    assert node.log._rate(1, 0.0) == 0.0
    assert node.log._rate(11, 2.0) == 5.0  # of the whole attempt, until there is an interval
    clock[0] += 10
    assert node.log._rate(31, 12.0) == 2.0
    clock[0] += 0.1
    assert node.log._rate(32, 12.1) == 2.0  # an interval that is too short says nothing


def test_the_rate_falls_while_no_step_comes(node, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(speed_log.time, "monotonic", lambda: clock[0])
    node.log._rate(11, 2.0)
    clock[0] += 10
    assert node.log._rate(31, 12.0) == 2.0
    clock[0] += 50
    assert node.log._rate(31, 12.0) == pytest.approx(1 / 50)
    clock[0] += 5
    assert node.log._rate(32, 67.0) == pytest.approx(1 / 55)


def test_the_last_rate_is_that_of_the_whole_attempt(node):
    """As in the last lines of a run; how long the ranks needed to end is not in it."""
    node.log._rate(11, 2.0)
    node.log._rate(31, 12.0)
    node.log._is_closing = True
    assert node.log._rate(41, 20.0) == 2.0


def test_lines_of_the_log_have_no_ranks(node):
    node.train(20)
    for _ in range(3):
        node.log._share(node.timed.latest(64))
    lines = [json.loads(line) for line in node.run_dir.speed_log.read_text().splitlines()]
    assert len(lines) == 3
    assert lines[0]["steps"] == 20 and "ranks" not in lines[0]


def test_a_long_run_has_few_lines(node, monkeypatch):
    monkeypatch.setattr(speed_log, "_LINES", 4)
    for _ in range(64):
        node.log._write({"steps": 1})
    assert len(node.run_dir.speed_log.read_text().splitlines()) < 24


def test_node_0_describes_the_ranks_of_all_nodes(tmp_path):
    said = {}
    nodes = [
        Node(tmp_path / str(number), number, Channel(number, said)) for number in reversed(range(2))
    ]
    for node in nodes:
        node.run_dir.root.mkdir()
        node.train(20)
        node.log.close()
    other, first = nodes
    assert [rank["rank"] for rank in first.written()["ranks"]] == [0, 1, 2, 3]
    assert first.written()["step"]["timed_steps"] == 19
    assert not other.run_dir.speed.exists()


def test_the_load_of_gpus_is_asked_in_the_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "loads", lambda: [gpus.Load(0, 0.9, 10, 80)])
    node = Node(tmp_path, with_gpus=True)
    node.log.tick(at_once=True)
    while not node.log._gpus:
        time.sleep(0.01)
    node.log.close()
    (gpu,) = node.written()["gpus"]
    assert (gpu["index"], gpu["utilization"], gpu["memory_total"]) == (0, 0.9, 80)


def test_a_file_system_that_does_not_answer_holds_nobody_up(node, monkeypatch):
    monkeypatch.setattr(SpeedLog, "_write", lambda self, speed: time.sleep(1.5))
    start_s = time.monotonic()
    for _ in range(100):
        node.log.tick(at_once=True)
    assert time.monotonic() - start_s < 1
    node.log.close()
    assert time.monotonic() - start_s < 2.5


def test_the_thread_accounts_for_the_time_and_talks_to_other_nodes(tmp_path, monkeypatch):
    """The loop that watches the ranks would be busy for seconds with that of thousands."""
    by_loop = []

    def note(name, call):
        def noted(*args):
            if threading.get_ident() == loop:
                by_loop.append(name)
            return call(*args)

        return noted

    loop = threading.get_ident()
    channel = Channel(0, {"speed": {}})
    for owner, name in (
        *((channel, "tell"), (channel, "hear"), (speed_log.stage_times, "account")),
        *((speed_log.timed_steps, "to_json"), (SpeedLog, "_describe"), (SpeedLog, "_join")),
    ):
        monkeypatch.setattr(owner, name, note(name, getattr(owner, name)))
    node = Node(tmp_path, channel=channel)
    node.train(20)
    node.log.close()
    assert node.written()["step"]["timed_steps"] == 19
    assert by_loop == []


def test_the_more_a_description_costs_the_fewer_there_are(node, monkeypatch):
    clock, cpu, shared = [100.0], iter([0.0, 3.0, 3.0, 3.0]), []
    monkeypatch.setattr(speed_log.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(speed_log.time, "thread_time", lambda: next(cpu))
    monkeypatch.setattr(SpeedLog, "_share", lambda self, latest: shared.append(clock[0]))
    node.log.tick(at_once=True)
    while node.log._next_s != 160.0:  # 3 s of CPU are a twentieth of 60 s
        time.sleep(0.005)
    for clock[0] in (130.0, 159.0, 161.0):
        node.log.tick()
    node.log.close()
    assert shared[:2] == [100.0, 161.0]


def test_the_wait_for_a_cpu_is_counted_after_the_first_step_and_stays_at_the_end(
    tmp_path, monkeypatch
):
    waits = {1: 3.0, 2: 5.0}
    monkeypatch.setattr(speed_log.processes, "cpu_wait_s", waits.__getitem__)
    node = Node(tmp_path)
    node.group.attempt.pids.update({0: 1, 1: 2})
    for step, wait_s in ((0, 25.0), (1, 55.0), (2, 95.0), (3, 0.0)):
        node.train(step)
        waits[2] = wait_s
        node.log._share({})
    node.log.close()
    ranks = node.written()["ranks"]
    assert [rank["cpu_wait_s"] for rank in ranks] == [0.0, 40.0]
    assert 0 < ranks[1]["watched_s"] < 60


def test_memory_that_grows_is_said_once_by_the_loop(tmp_path, monkeypatch):
    grown = iter(range(1, 1000))
    monkeypatch.setattr(speed_log.processes, "own_bytes", lambda pid: (1 << 30) + next(grown) * pid)
    node = Node(tmp_path)
    monkeypatch.setattr(speed_log.processes, "available_bytes", lambda: 1 << 20)
    node.group.attempt.pids.update({0: 1, 1: 8 << 20})  # what each reading adds
    for step in range(1, 61):
        node.train(step)
        node.log._share({})
        assert not node.noticed  # the thread only finds it
        if node.log._finding is not None:
            break
    for _ in range(2):
        node.log.tick(at_once=True)
    node.log.close()
    (finding,) = node.noticed
    assert (finding.name, finding.where.split()[:2]) == ("memory-grows", ["rank", "1"])
    assert node.written()["memory_bytes"] == node.written()["ranks"][1]["memory_bytes"] > 1 << 30
