"""What ``paceline tune`` has measured so far, and what a rank's loader may use."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from paceline.launch.probe.loader_commands import LoaderSetting
from paceline.measure import intervals
from paceline.measure.intervals import Interval

_KEEPS_UP = 1.03  # of the time that a step takes on a batch in memory
LEAST_ROUNDS = 3  # of two settings side by side, before their pairs are trusted

Windows = list[list[float]]


@dataclass(frozen=True)
class TrialLimits:
    """What a rank's loader may use of this machine."""

    cpus: int  # CPUs of each rank
    shm_bytes: int | None = None  # free bytes of shared memory of each rank; None if it is unknown


@dataclass
class Measured:
    """What was measured so far, as seconds per batch by window."""

    # the loop gets the same batch again and again, for each number of threads
    memory: dict[int, Windows] = field(default_factory=dict)
    settings: dict[LoaderSetting, Windows] = field(default_factory=dict)  # windows of the search
    # windows of the finalists, which alternate: those of one place in the lists were measured
    # directly after each other
    final: dict[LoaderSetting, Windows] = field(default_factory=dict)
    failures: dict[LoaderSetting, str] = field(default_factory=dict)  # why settings do not work
    # share of the CPUs that were busy in the last window of each setting
    busy: dict[LoaderSetting, float] = field(default_factory=dict)

    def num_windows(self, setting: LoaderSetting) -> int:
        """Return how often the search has measured a setting."""
        return len(self.settings.get(setting, ()))

    def busy_share(self, num_workers: int) -> float:
        """Return the least share of the CPUs that was busy with so many workers; 1 if unknown."""
        settings = [setting for setting in self.busy if setting.num_workers == num_workers]
        return min((self.busy[setting] for setting in settings), default=1.0)

    def num_rounds(self, setting: LoaderSetting) -> int:
        """Return how often a setting was measured among the finalists."""
        return len(self.final.get(setting, ()))

    def windows(self, setting: LoaderSetting) -> Windows:
        """Return the windows of a setting that count: those among the finalists, if enough."""
        if self.num_rounds(setting) >= LEAST_ROUNDS:
            return self.final[setting]
        return self.settings[setting] + self.final.get(setting, [])

    def seconds(self, setting: LoaderSetting) -> float:
        """Return a setting's seconds per batch in the best window of the search.

        Other programs only ever slow a window down. The search goes by the best one, so that a bad
        one does not end it; what is reported is the median of all.
        """
        return min(statistics.median(window) for window in self.settings[setting])

    @property
    def fastest(self) -> LoaderSetting:
        """The setting with the best window of the search, of those that work."""
        working = [setting for setting in self.settings if setting not in self.failures]
        return min(working, key=self.seconds)

    @property
    def keeps_up(self) -> bool:
        """Whether the fastest setting is as fast as a batch in memory."""
        windows = self.memory.get(self.fastest.threads)
        if not windows:
            return False
        least = min(statistics.median(window) for window in windows)
        return self.seconds(self.fastest) <= _KEEPS_UP * least

    def ratio(self, setting: LoaderSetting, other: LoaderSetting) -> Interval:
        """Return how many times as long as another a setting takes.

        Two finalists are compared round by round, which leaves out what slows down both.
        """
        rounds = min(self.num_rounds(setting), self.num_rounds(other))
        if rounds < LEAST_ROUNDS:
            return intervals.ratio(self.windows(setting), self.windows(other))
        pairs = zip(self.final[setting][:rounds], self.final[other][:rounds], strict=True)
        return intervals.median(
            [[statistics.median(own) / statistics.median(others)] for own, others in pairs]
        )

    def ratio_of_totals(self, setting: LoaderSetting, other: LoaderSetting) -> Interval:
        """Return how many times as long as another a setting takes for all rounds together.

        A setting that is very slow in some rounds takes longer, even if it is faster in the others.
        """
        rounds = min(self.num_rounds(setting), self.num_rounds(other))
        if rounds < LEAST_ROUNDS:
            return self.ratio(setting, other)
        samples = [
            [[statistics.median(window)] for window in self.final[finalist][:rounds]]
            for finalist in (setting, other)
        ]
        return intervals.bootstrap(
            lambda drawn: (
                statistics.fmean(intervals.flat(drawn[0]))
                / statistics.fmean(intervals.flat(drawn[1]))
            ),
            samples,
        )


def waiting_share(memory: intervals.Blocks, loading: intervals.Blocks) -> Interval:
    """Return the share of a step in which the loop waits for data, from seconds per batch.

    In ``memory`` the loop gets the same batch again and again; in ``loading`` the loader's.
    """
    ratio = intervals.ratio(memory, loading)
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
