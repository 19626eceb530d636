"""How a measurement is led through its time, with a script whose speed is a formula."""

from types import SimpleNamespace

import pytest

from loader_facts import facts_of
from paceline.errors import RunError
from paceline.launch.probe.loader_commands import CACHED, LoaderSetting
from paceline.measure.tune import final, tuning
from paceline.measure.tune.trial_run import MemoryIsShort, ScriptEnded, TimeIsUp, TrialStart, Window
from paceline.measure.tune.tuning import Tuning
from refusals import refusal

WRITTEN = LoaderSetting(0, 0, False, 1)
FACTS = facts_of(WRITTEN, batch_bytes=1 << 10)
STEP_S, READ_S = 0.01, 0.09


class Script:
    """What stands in for a script that trains: its windows take time on a clock of their own."""

    def __init__(self, *, window_s=1.0, windows=1000, start_s=1.0, status=0):
        self.now_s, self.starts = 0.0, 0
        self._window_s, self._windows, self._start_s = window_s, windows, start_s
        self.least_free, self._status = 10**9, status

    def __call__(self, start, folder, *, deadline_s, tick):
        self.starts += 1
        self.deadline_s, self._left = deadline_s, self._windows
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def monotonic(self):
        return self.now_s

    def facts(self):
        self.now_s += self._start_s
        return FACTS, 1

    def measure(self, source, setting, *, least_s):
        self.now_s += self._window_s
        if self.now_s > self.deadline_s:
            raise TimeIsUp
        if not self._left:
            raise ScriptEnded(self._status, None)
        self._left -= 1
        read_s = 0.0 if source == CACHED else READ_S
        if setting.num_workers:
            read_s = max(0.0, read_s / setting.num_workers - STEP_S)
        return Window([STEP_S + read_s] * 5, least_s, 0.1)


@pytest.fixture
def tuned(monkeypatch):
    progress = SimpleNamespace(show=lambda words: None, tick=lambda: None, restart=lambda: None)

    def run(script, seconds=60.0):
        monkeypatch.setattr(tuning, "TrialRun", script)
        monkeypatch.setattr(tuning, "time", script)
        monkeypatch.setattr(tuning, "usable_cpus", lambda: (16, "a test"))
        monkeypatch.setattr(tuning, "shared_memory_bytes", lambda: None)
        return Tuning(TrialStart(["train.py"]), "train.py", seconds).run(progress)

    return run


def test_all_is_measured_within_the_time(tuned):
    script = Script()
    answer = tuned(script)
    assert answer.cut_short == ""
    assert answer.best.num_workers == 12  # 9 would do; 8, 12 and 16 are tried
    assert answer.measured.num_rounds(answer.best) == final.ROUNDS
    assert script.starts == 1


def test_half_of_the_time_is_kept_for_the_finalists(tuned):
    answer = tuned(Script(window_s=3.5))
    assert answer.cut_short.startswith("the time was up before all settings were measured often")
    assert answer.measured.num_rounds(WRITTEN) >= 3
    assert answer.best.num_workers


def test_more_time_is_asked_for_than_there_was(tuned):
    assert tuned(Script(window_s=10.0), seconds=200.0).cut_short.endswith("--seconds 400")


def test_a_slow_start_does_not_end_the_search_before_it_has_begun(tuned):
    answer = tuned(Script(start_s=40.0))
    assert len(answer.measured.settings) > 3
    # Importing torch on a busy machine took longer than --seconds.
    assert tuned(Script(start_s=90.0)).cut_short == ""


@pytest.mark.parametrize("status", [0, 1])
def test_a_script_that_ends_is_started_again(tuned, status):
    """One that cannot train longer than planned ends with an error."""
    script = Script(windows=10, status=status)
    assert tuned(script).cut_short == ""
    assert script.starts > 2


def test_a_script_that_ends_again_and_again_is_not_said_to_lack_time(tuned):
    script = Script(windows=1, start_s=0.1, window_s=0.1)
    answer = tuned(script)
    assert answer.cut_short.startswith("the script was started 8 times, and ended before")


def test_a_script_that_fails_before_it_was_measured_is_reported(tuned, monkeypatch):
    script = Script(windows=0, status=1)
    monkeypatch.setattr(script, "finding", lambda: None, raising=False)
    monkeypatch.setattr(script, "evidence", lambda: ("ValueError: no data",), raising=False)
    assert refusal(RunError, tuned, script).name == "trial-failed"
    assert script.starts == 1


def test_a_machine_without_memory_is_no_script_without_steps(tuned, monkeypatch):
    script = Script()

    def facts():
        raise MemoryIsShort

    monkeypatch.setattr(script, "facts", facts)
    finding = refusal(RunError, tuned, script)
    assert finding.name == "trial-failed"
    assert "less than a tenth of its memory" in finding.what
    assert script.starts == 1
