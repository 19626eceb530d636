"""``paceline tune``: measure loader settings on a script while it trains, within a time limit.

``search`` decides what is measured next and ``answer`` puts it into words. This module runs the
script and fills in what was measured.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from paceline.errors import Finding, RunError
from paceline.launch.probe.loader_commands import CACHED, CHANGED, LoaderFacts, LoaderSetting
from paceline.machine.cpus import usable_cpus
from paceline.measure.tune import final, search
from paceline.measure.tune.answer import TuningAnswer, describe
from paceline.measure.tune.measured import Measured, TrialLimits, Windows
from paceline.measure.tune.trial_run import (
    MOST_WINDOW_S,
    MemoryIsShort,
    ScriptEnded,
    SettingFailed,
    TimeIsUp,
    TooSlow,
    TrialRun,
    TrialStart,
    shared_memory_bytes,
)
from paceline.text.wording import size

_SEARCH_S, _FINAL_S = 0.6, 1.0  # length of a window
_SEARCH_SHARE = 0.5  # of the time: what remains is for the finalists
_START_S = 300.0  # until the first loop: importing torch takes minutes on a busy machine
_MOST_STARTS = 8  # of scripts that end sooner than the measurement


@dataclass
class Tuning:
    """The measurement of one script."""

    start: TrialStart  # what is started
    name: str  # what it is called in messages
    seconds: float  # limit of the whole measurement
    has_steps: bool = True  # whether the script trains; else only its loader is measured
    measured: Measured = field(default_factory=Measured)
    facts: LoaderFacts | None = None
    limits: TrialLimits = field(default_factory=lambda: TrialLimits(1))
    num_ranks: int = 0
    worker_start_s: float | None = None
    _deadline_s: float = 0.0
    _search_end_s: float = 0.0
    _is_search_cut: bool = False

    def run(self, progress: TuningProgress) -> TuningAnswer:
        """Measure until nothing is left to learn or the time is up.

        Raises RunError if the script failed, ended or was too slow before its own settings were
        measured.
        """
        self._deadline_s = time.monotonic() + max(self.seconds, _START_S)
        cut_short = self._measure(progress)
        if self.facts is None or self.facts.setting not in self.measured.settings:
            raise RunError(self._nothing_measured())
        return TuningAnswer(
            name=self.name,
            facts=self.facts,
            num_ranks=self.num_ranks,
            limits=self.limits,
            cpus_reason=usable_cpus()[1],
            measured=self.measured,
            cut_short=cut_short,
            worker_start_s=self.worker_start_s,
        )

    def _measure(self, progress: TuningProgress) -> str:
        """Start the script, again if it ends early; return why not everything was measured."""
        time_is_up = (
            "the time was up before all settings were measured often enough:"
            f" --seconds {2 * self.seconds:.0f}"
        )
        for _ in range(_MOST_STARTS):
            with tempfile.TemporaryDirectory(prefix="paceline-tune-") as folder:
                run = TrialRun(
                    self.start, Path(folder), deadline_s=self._deadline_s, tick=progress.tick
                )
                try:
                    with run:
                        progress.show("starting the script")
                        self._take_facts(run, progress)
                        self._measure_all(run, progress)
                    return time_is_up if self._is_search_cut else ""
                except TimeIsUp:
                    return time_is_up
                except MemoryIsShort:
                    if self.facts is None:
                        raise RunError(self._without_memory(run)) from None
                except ScriptEnded as ended:
                    if self.facts is None or (ended.status and not self.measured.settings):
                        raise RunError(self._ended(ended.status, run)) from None
        return (
            f"the script was started {_MOST_STARTS} times, and ended before all settings were"
            " measured often enough: let it train longer"
        )

    def _take_facts(self, run: TrialRun, progress: TuningProgress) -> None:
        is_first = self.facts is None
        self.facts, self.num_ranks = run.facts()
        now_s = time.monotonic()
        if is_first:  # the start is over
            self._deadline_s = run.deadline_s = now_s + self.seconds
            progress.restart()
        if not self.measured.settings:
            self._search_end_s = now_s + _SEARCH_SHARE * (self._deadline_s - now_s)
        cpus, _ = usable_cpus()
        shm_bytes = shared_memory_bytes()
        self.limits = TrialLimits(
            cpus=max(1, cpus // self.num_ranks),
            shm_bytes=None if shm_bytes is None else shm_bytes // self.num_ranks,
        )

    def _measure_all(self, run: TrialRun, progress: TuningProgress) -> None:
        """Search, then let the finalists take turns until it is decided which one is best."""
        assert self.facts is not None, "the loader is known"
        while not self._has_nothing_to_tune() and not self.measured.final:
            setting = search.next_setting(self.facts, self.limits, self.measured)
            if setting is None:
                break
            is_late = time.monotonic() > self._search_end_s
            self._is_search_cut = is_late and self.facts.setting in self.measured.settings
            if self._is_search_cut:
                break
            self._search(run, setting, progress)
        while not self._has_nothing_to_tune():
            setting = final.next_setting(self.facts, self.measured)
            if setting is None:
                return
            round_number = self.measured.num_rounds(setting) + 1
            words = describe(setting, self.facts.setting)
            progress.show(f"{words}, round {round_number}")
            self._try(run, setting, self.measured.final, least_s=_FINAL_S)

    def _search(self, run: TrialRun, setting: LoaderSetting, progress: TuningProgress) -> None:
        """Measure a setting once, and one batch in memory with its threads."""
        assert self.facts is not None, "the loader is known"
        progress.show(describe(setting, self.facts.setting))
        self._try(run, setting, self.measured.settings, least_s=_SEARCH_S)
        memory = self.measured.memory.setdefault(setting.threads, [])
        most_windows = min(search.MOST_FIRST_WINDOWS, self.measured.num_windows(setting))
        if self.has_steps and len(memory) < most_windows:
            progress.show("one batch in memory")
            window = run.measure(CACHED, setting, least_s=_SEARCH_S)
            memory.append(list(window.seconds))

    def _has_nothing_to_tune(self) -> bool:
        """Return whether neither data nor threads hold the script back."""
        assert self.facts is not None, "the loader is known"
        first = search.first_settings(self.facts)
        if any(self.measured.num_windows(setting) < search.FIRST_WINDOWS for setting in first):
            return False
        if search.data_is_bottleneck(self.facts, self.measured) is not False:
            return False
        return not search.may_gain_from_threads(self.facts, self.measured)

    def _try(
        self,
        run: TrialRun,
        setting: LoaderSetting,
        windows: dict[LoaderSetting, Windows],
        *,
        least_s: float,
    ) -> None:
        """Measure a setting for a window; keep why, if it does not work."""
        try:
            window = run.measure(CHANGED, setting, least_s=least_s)
        except SettingFailed as failure:
            self._fail(setting, str(failure))
        except TooSlow:
            self._fail(setting, f"too few batches in {MOST_WINDOW_S:.0f} s")
        except MemoryIsShort:
            self._fail(setting, "the machine had less than a tenth of its memory left")
            raise
        else:
            windows.setdefault(setting, []).append(list(window.seconds))
            self.measured.busy[setting] = window.busy
            if setting.num_workers:
                self.worker_start_s = window.start_s

    def _fail(self, setting: LoaderSetting, message: str) -> None:
        """Keep why a setting does not work; raise the error of the script's own setting."""
        assert self.facts is not None, "the loader is known"
        if setting == self.facts.setting and setting not in self.measured.settings:
            raise RunError.of(
                "trial-too-slow",
                f"{self.name} could not be measured with its own loader settings",
                evidence=(message,),
                fix="use a smaller batch, or a part of the data",
            )
        if setting != self.facts.setting:
            self.measured.failures[setting] = message

    def _ended(self, status: int, run: TrialRun) -> Finding:
        own = run.finding()
        if own is not None and not self.has_steps:
            return own  # the dataset cannot be imported, or has no samples
        if status:
            return Finding(
                "trial-failed",
                f"{self.name} failed while its loader was measured",
                evidence=(f"paceline run ended with exit status {status}", *run.evidence()),
                fix=shlex.join(["paceline", "run", *self.start.options, *self.start.words]),
            )
        return Finding(
            "trial-without-steps",
            f"{self.name} ended without an optimizer step on a batch of a DataLoader",
            evidence=("counted: step() of optimizers of torch.optim, in the processes of ranks",),
            fix="name the script that trains, with the arguments that make it train",
        )

    def _without_memory(self, run: TrialRun) -> Finding:
        return Finding(
            "trial-failed",
            f"{self.name} was ended before it trained: the machine had less than a tenth of its"
            " memory left",
            evidence=(f"{size(run.least_free)} were free",),
            why="below that the kernel may end any program",
            fix="end other programs that use memory, or start the script with less data",
        )

    def _nothing_measured(self) -> Finding:
        seconds = max(self.seconds, _START_S)
        what = "made no optimizer step on a batch of a DataLoader"
        if self.facts is not None:
            seconds, what = self.seconds, "ended too soon or took too long to be measured"
        return Finding(
            "trial-too-slow",
            f"{self.name} {what} in {seconds:.0f} s",
            fix=f"give it more time (--seconds {5 * seconds:.0f}), or let it start with less data",
        )


_WORDS, _BAR = 38, 22  # columns: the bar stays in its place, and a line fits 80 columns


class TuningProgress:
    """The bar; a context that removes it at the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end_s = 0.0
        is_watched = sys.stderr.isatty()
        self._bar = Bar(
            TextColumn(f"{{task.description:{_WORDS}}}"),
            BarColumn(_BAR),
            TextColumn("{task.fields[left_s]:.0f} s at most"),
            console=Console(stderr=True),
            transient=True,
            disable=not is_watched,
        )
        self._task = TaskID(0)

    def __enter__(self) -> TuningProgress:
        self._end_s = time.monotonic() + self._seconds
        self._task = self._bar.add_task("", total=self._seconds, left_s=self._seconds)
        self._bar.start()
        return self

    def restart(self) -> None:
        """Count from now on."""
        self._end_s = time.monotonic() + self._seconds

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, words: str) -> None:
        """Say what is being measured."""
        self._bar.update(self._task, description=words)

    def tick(self) -> None:
        """Move the bar to the time that has passed."""
        left_s = max(0.0, self._end_s - time.monotonic())
        self._bar.update(self._task, completed=self._seconds - left_s, left_s=left_s)
