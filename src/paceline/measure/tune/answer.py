"""Put what ``paceline tune`` has measured into words, a line to paste, and data. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting
from paceline.measure import intervals
from paceline.measure.intervals import Interval
from paceline.measure.tune import final, search
from paceline.measure.tune.batches import BatchAnswer
from paceline.measure.tune.measured import LEAST_ROUNDS, Measured, TrialLimits

_COLUMN = 44
_WIDE = 0.15  # half of an interval as a share of its value
_NOTABLE_SHARE = 0.1  # of a step that still waits for data with the best setting
_MOSTLY_IDLE = 0.5  # share of busy CPUs below which most are idle


@dataclass(frozen=True)
class TrialRow:
    """One setting that was measured."""

    setting: LoaderSetting  # the setting
    samples_per_s: Interval  # samples per second of all ranks; batches if samples cannot be counted
    windows: int  # how often it was measured


@dataclass(frozen=True)
class TuningAnswer:
    """What ``paceline tune`` has found out about a script or a dataset."""

    name: str  # the script or dataset
    facts: LoaderFacts  # its loader
    num_ranks: int  # ranks on this node
    limits: TrialLimits  # what a rank's loader may use
    cpus_reason: str  # why there are so many CPUs
    measured: Measured  # what was measured
    cut_short: str = ""  # why not all settings were measured often enough; empty if they were
    # how long workers take to deliver their first batch; None if none started
    worker_start_s: float | None = None
    # what was found out about batch sizes; None if they were not measured
    batches: BatchAnswer | None = None

    @cached_property
    def best(self) -> LoaderSetting:
        """The setting to use."""
        if not self.is_worth_tuning:
            return self.facts.setting
        return self._best_measured

    @cached_property
    def _best_measured(self) -> LoaderSetting:
        return final.best_of(self.facts, self.measured)

    @cached_property
    def is_worth_tuning(self) -> bool:
        """Whether the loop waits for data with the script's settings, or may, or another number of
        threads is proven to be faster; true for a bare dataset.
        """
        if self.data_is_bottleneck is not False:
            return True
        return self._best_measured.threads != self.facts.setting.threads

    def waiting(self, setting: LoaderSetting) -> Interval | None:
        """Return the share of a step that waits for data; None for a bare dataset."""
        return search.waiting(setting, self.measured)

    def rate(self, blocks: intervals.Blocks) -> Interval:
        """Return samples per second of all ranks from seconds per batch."""
        seconds = intervals.median(blocks)
        samples = (self.facts.batch_samples or 1) * self.num_ranks
        return Interval(samples / seconds.value, samples / seconds.high, samples / seconds.low)

    def speed_up(self) -> Interval:
        """Return how many times as fast the best setting is as the script's."""
        return final.speed_up(self.facts, self.best, self.measured)

    @cached_property
    def rows(self) -> list[TrialRow]:
        """All settings that were measured, in the order of their numbers of workers."""
        rows = []
        for setting in self.measured.settings:
            windows = self.measured.windows(setting)
            rows.append(TrialRow(setting, self.rate(windows), len(windows)))
        return sorted(rows, key=_place_in_table)

    @property
    def data_is_bottleneck(self) -> bool | None:
        """Whether the loop waits for data with the script's settings; None if it is unknown."""
        return search.data_is_bottleneck(self.facts, self.measured)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        waiting = self.waiting(self.facts.setting)
        waiting_best = self.waiting(self.best)
        return {
            "name": self.name,
            "ranks": self.num_ranks,
            "loader": asdict(self.facts),
            "cpus_per_rank": self.limits.cpus,
            "unit": "samples/s" if self.facts.batch_samples else "batches/s",
            "in_memory": [
                {"threads": threads, **asdict(self.rate(blocks))}
                for threads, blocks in self._memory()
            ],
            "waiting_share": waiting and asdict(waiting),
            "data_is_bottleneck": self.data_is_bottleneck,
            "settings": [
                {**asdict(row.setting), **asdict(row.samples_per_s), "windows": row.windows}
                for row in self.rows
            ],
            "failures": [
                {**asdict(setting), "message": message}
                for setting, message in self.measured.failures.items()
            ],
            "best": asdict(self.best),
            "speed_up": asdict(self.speed_up()),
            "waiting_share_best": waiting_best and asdict(waiting_best),
            "paste": paste(self.facts, self.best),
            "complete": not self.cut_short,
            "batches": self.batches and self.batches.to_json(),
        }

    def render(self) -> str:
        """Return the answer as text."""
        lines = [self._head(), "", *self._table()]
        for setting, message in self.measured.failures.items():
            lines.append(f"  {describe(setting, self.facts.setting)}: {message}")
        lines += ["", *self._conclusion(), *self._notes()]
        if self.batches is not None:
            lines += ["", self.batches.render()]
        return "\n".join(lines)

    def _memory(self) -> list[tuple[int, list[list[float]]]]:
        """Return what was measured on one batch in memory, by threads, most of them first."""
        measured = [(count, blocks) for count, blocks in self.measured.memory.items() if blocks]
        return sorted(measured, reverse=True)

    def _head(self) -> str:
        ranks = f"{self.num_ranks} rank{'s' * (self.num_ranks != 1)}"
        batch = f"batches of {self.facts.batch_samples} samples a rank"
        if not self.facts.batch_samples:
            batch = "batches of an unknown number of samples"
        cpus = f"{self.limits.cpus} CPU{'s' * (self.limits.cpus != 1)} a rank"
        return f"{self.name} on {ranks}: {batch}, {cpus} ({self.cpus_reason})"

    def _table(self) -> list[str]:
        unit = "samples/s" if self.facts.batch_samples else "batches/s"
        lines = [f"{'':{_COLUMN}}{unit:>10}   95 % interval"]
        for threads, blocks in self._memory():
            words = "one batch in memory, no loading"
            if threads != self.facts.setting.threads:
                words += f", {threads} thread{'s' * (threads != 1)}"
            lines.append(_line(words, self.rate(blocks)))
        for row in self.rows:
            words = describe(row.setting, self.facts.setting)
            if row.setting == self.facts.setting:
                words += ", as written" if self._memory() else ", the defaults"
            mark = ""
            if row.setting == self.best and self.is_worth_tuning:
                mark = "  best"
            elif self.measured.num_rounds(row.setting) >= LEAST_ROUNDS:
                mark = "  side by side with the best"
            lines.append(_line(words, row.samples_per_s) + mark)
        return lines

    @property
    def _written(self) -> str:
        """What the settings are called from which the search begins."""
        return "the script's settings" if self._memory() else "the defaults"

    def _conclusion(self) -> list[str]:
        waiting = self.waiting(self.facts.setting)
        lines = []
        if waiting is not None:
            lines.append(f"waiting for data, as written: {_percent(waiting)} of a step")
        if not self.is_worth_tuning:
            return [*lines, "data is not what holds this script back: there is nothing to tune"]
        if waiting is not None and self.data_is_bottleneck is None:
            lines.append("that is uncertain after several tries: try again on an idle machine")
        if self.data_is_bottleneck is False:
            lines.append("data is not what holds this script back, but fewer threads are faster")
        if self.best == self.facts.setting:
            return [*lines, f"best: {self._written}; {self._reason()}"]
        speed_up = self.speed_up()
        lines.append(
            f"best: {describe(self.best, self.facts.setting)}, {speed_up.value:.2f} times"
            f" ({speed_up.low:.2f} to {speed_up.high:.2f}) as fast as {self._written}"
        )
        lines += [f"why: {self._reason()}", "", *placed(self.facts, self.best)]
        return lines

    def _reason(self) -> str:
        """Return why nothing is faster."""
        if self.best == self.facts.setting != self.measured.fastest:
            return "no other setting is proven to be clearly faster"
        if self.measured.keeps_up:
            return "the loop is then as fast as on a batch in memory"
        if self.best.threads != self.facts.setting.threads and not self.best.num_workers:
            if not self._tried_workers:
                return "other numbers of threads are not faster, and no workers were measured"
            return "neither workers nor other numbers of threads are faster"
        most, limit = search.most_workers(self.facts, self.limits, self.measured)
        if self.facts.is_stream and not self.facts.setting.num_workers:
            return (
                "the dataset is a stream: workers would each read all of it unless it divides"
                " itself (get_worker_info), so none were tried"
            )
        if self.best.num_workers >= most:
            verb = "allow" if limit == "CPUs" else "tries" if limit == "paceline tune" else "allows"
            return f"as many workers as {limit} {verb} ({most} a rank)"
        return "more workers are not faster" if self._tried_workers else "no workers were measured"

    @property
    def _tried_workers(self) -> bool:
        tried = (*self.measured.settings, *self.measured.failures)
        return any(setting.num_workers for setting in tried)

    def _notes(self) -> list[str]:
        notes: list[str] = []
        if self.worker_start_s is not None and self.best.num_workers and self.is_worth_tuning:
            notes.append(
                f"persistent_workers=True saves {self.worker_start_s:.1f} s for each epoch, until"
                " new workers have read a batch"
            )
        waiting = self.waiting(self.best)
        if waiting is not None and self.is_worth_tuning and waiting.low > _NOTABLE_SHARE:
            advice = "read cheaper samples, or give each rank more CPUs"
            is_idle = self.measured.busy_share(self.best.num_workers) < _MOSTLY_IDLE
            # One process without workers leaves CPUs idle whatever it waits for.
            if is_idle and self.best.num_workers:
                advice = "most CPUs are idle, so it is storage or a network that samples wait for"
            notes.append(
                f"with the best setting {_percent(waiting)} of a step still waits for data:"
                f" {advice}"
            )
        if any(self._is_wide(row) for row in self.rows):
            notes.append("intervals are wide: other programs may use the same CPUs")
        if self.cut_short:
            notes.append(self.cut_short)
        return [f"note: {note}" for note in notes]

    def _is_wide(self, row: TrialRow) -> bool:
        is_shown = row.setting in (self.best, self.facts.setting)
        return is_shown and row.samples_per_s.half_width > _WIDE


def _place_in_table(row: TrialRow) -> tuple[int, int, int]:
    return row.setting.num_workers, row.setting.prefetch_factor, -row.setting.threads


def _line(words: str, rate: Interval) -> str:
    return (
        f"{words:{_COLUMN}}{_number(rate.value):>10}   {_number(rate.low)} to {_number(rate.high)}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: Interval) -> str:
    low, value, high = (max(0.0, end) for end in (share.low, share.value, share.high))
    return f"{value:.0%} ({low:.0%} to {high:.0%})"


_MOST_COLUMNS = 80


def describe(setting: LoaderSetting, written: LoaderSetting) -> str:
    """Return a setting in words: what differs from the usual one and from the script's."""
    count = setting.num_workers
    words = [f"{count or 'no'} worker{'s' * (count != 1)}"]
    if setting.prefetch_factor not in (0, 2):
        words.append(f"prefetch {setting.prefetch_factor}")
    if setting.pin_memory and not written.pin_memory:
        words.append("pinned memory")
    if setting.threads != written.threads:
        words.append(f"{setting.threads} thread{'s' * (setting.threads != 1)}")
    return ", ".join(words)


def paste(facts: LoaderFacts, setting: LoaderSetting) -> list[str]:
    """Return the lines by which a script uses a setting; empty if they are its own."""
    written = facts.setting
    if setting == written:
        return []
    lines = []
    if replace(setting, threads=written.threads) != written:
        values = _loader_arguments(facts, setting)
        lines.append(_CALLS[facts.maker].format(_arguments(values, _PREFIXES[facts.maker])))
    if setting.threads != written.threads:
        lines.append(f"torch.set_num_threads({setting.threads})")
    return lines


def _loader_arguments(facts: LoaderFacts, setting: LoaderSetting) -> dict[str, Any]:
    """Return the arguments of a loader that differ from torch's defaults or from the script's.

    torch refuses ``persistent_workers`` and ``prefetch_factor`` without workers, so they are reset
    where the script has them.
    """
    values: dict[str, Any] = {"num_workers": setting.num_workers}
    if setting.num_workers or facts.persistent_workers:
        values["persistent_workers"] = setting.num_workers > 0
    written_ahead = facts.setting.prefetch_factor or 2
    if not setting.num_workers and written_ahead != 2:
        values["prefetch_factor"] = None
    elif setting.num_workers and (setting.prefetch_factor != 2 or written_ahead != 2):
        values["prefetch_factor"] = setting.prefetch_factor
    if setting.pin_memory and not facts.setting.pin_memory:
        values["pin_memory"] = True
    return values


_CALLS = {
    "": "DataLoader(..., {})",
    "paceline": "session.loader(..., {})",
    "transformers": "TrainingArguments(..., {})",
}
_PREFIXES = {"": "", "paceline": "", "transformers": "dataloader_"}


def _arguments(values: dict[str, Any], prefix: str) -> str:
    return ", ".join(f"{prefix}{name}={value}" for name, value in values.items())


def placed(facts: LoaderFacts, setting: LoaderSetting) -> list[str]:
    """Return the lines to paste after their place in the script, on lines of 80 columns.

    Threads are set at the begin of a script, and TrainingArguments elsewhere than the place of the
    loader, which is where the Trainer of transformers starts. The setting is not the script's.
    """
    call, *further = paste(facts, setting)
    is_call_there = call.startswith(("DataLoader", "session"))
    if not facts.place or not is_call_there:
        return [call, *further]
    if len(f"{facts.place}: {call}") > _MOST_COLUMNS:
        return [f"{facts.place}:", f"  {call}", *(f"  {line}" for line in further)]
    return [f"{facts.place}: {call}", *further]
