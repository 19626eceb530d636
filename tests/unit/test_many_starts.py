"""What starts, trials and looks leave open in the process that repeats them: nothing."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from paceline import counters
from paceline.launch.in_rank.rank_files import RankFiles
from paceline.launch.monitor import stacks
from paceline.launch.monitor.attempt import Attempt, Ended
from paceline.launch.monitor.speed_log import SpeedLog
from paceline.launch.monitor.timed_steps import TimedSteps
from paceline.launch.plan.parsing import parse
from paceline.launch.run.console import Console
from paceline.launch.run.ranks import RankGroup
from paceline.launch.run.supervision import Supervision
from paceline.measure import trial
from paceline.measure.trial import Trial
from paceline.measure.tune.trial_run import TrialRun, TrialStart
from paceline.rundir.files import RunDir
from paceline.why import look as why_look
from paceline.why.identity import RankIdentity
from paceline.why.processes import RankProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def short_launches(monkeypatch):
    """Launchers of trials are processes that end at once."""

    def start(words, *, environ, output):
        return subprocess.Popen(["true"], stdout=output)

    monkeypatch.setattr(trial, "start", start)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def held():
    own = psutil.Process()
    return own.num_fds(), len(own.children()), threading.active_count()


def assert_leaves_nothing(repeat, times):
    for number in range(2):
        repeat(number)
    before = held()
    for number in range(2, times):
        repeat(number)
    deadline_s = time.monotonic() + 10
    while holds_more(before) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # a thread that was told to end may still do so
    assert not holds_more(before)


def holds_more(before):
    return [(now, then) for now, then in zip(held(), before, strict=True) if now > then]


def test_trials(short_launches, tmp_path):
    """As `bench` and `verify` run them."""
    assert_leaves_nothing(
        lambda number: trial.run(Trial(("train.py",), 2, 20, tmp_path / str(number))), 20
    )


def test_trials_of_a_loader(short_launches, tmp_path):
    """As `tune` runs them."""

    def run(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        deadline_s = time.monotonic() + 60
        with TrialRun(TrialStart(["train.py"]), folder, deadline_s=deadline_s, tick=lambda: None):
            pass

    assert_leaves_nothing(run, 20)


def test_looks_at_ranks(sleeper):
    """As at a hang, and as `why` looks at them."""
    rank = RankProcess(sleeper, RankIdentity("torchrun", 0, 1), os.getpid(), "torchrun", "train.py")
    files = {0: Path(os.devnull)}
    assert_leaves_nothing(lambda number: stacks.look({0: sleeper}, {}, files, quiet=number % 2), 50)
    assert_leaves_nothing(lambda number: why_look.watch_ranks([rank], seconds=0), 5)


def test_attempts(tmp_path):
    """As restarts follow each other: how the ranks ended is still known."""
    options = parse("train.py", (), typed={}, inherited={})
    shared = counters.SharedCounters(counters.create(1), 1)
    console = Console()
    context = SimpleNamespace(console=console, counters=shared, options=options)

    def attempt(number):
        ranks = RankGroup.__new__(RankGroup)
        vars(ranks).update(_context=context, _run_dir=RunDir(tmp_path), _lock=threading.Lock())
        vars(ranks).update(_kept=None, attempt=Attempt(number, {0: 0}, 1))
        ranks.attempt.ended[0] = Ended(0, 1, 7, 1)
        ranks.attempt.error_paths[0] = str(tmp_path / "error.json")
        ranks.attempt.files[0] = RankFiles.create()
        ranks.attempt.log_paths[0] = str(tmp_path / f"{number}.out")
        console._log_file(ranks.attempt.log_paths[0]).close()
        supervision = Supervision(
            context, ranks, run_dir=RunDir(tmp_path), saves=None, is_first=True
        )
        timed = TimedSteps(shared, {0: 0})
        supervision._speed_log = SpeedLog(
            ranks,
            shared,
            timed,
            None,
            run_dir=RunDir(tmp_path),
            with_gpus=False,
            notice=lambda finding: None,
        )
        supervision._speed_log.tick(at_once=True)  # starts its thread
        supervision.release()
        assert [end.code for end in ranks.ends()] == [7]
        assert not console._files  # nor the last lines of its log

    assert_leaves_nothing(attempt, 50)
