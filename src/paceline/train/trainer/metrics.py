"""Accumulate logged numbers by name, and compute exact means over all rows of an epoch and ranks.

A number is stored with the rows that it is the mean of. One collective computes the means of all
names.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from paceline.errors import UsageError, option_invalid
from paceline.train.session import Session
from paceline.train.trainer.ends import NO_END, LoggedNumber, mean_of_ends
from paceline.train.trainer.gathering import gathered
from paceline.train.trainer.meters import MeterPlace, found_at, place_of

EXTREMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"max": torch.max, "min": torch.min}
REDUCTIONS = ("mean", "sum", *EXTREMES)
FOLD_AT = 64  # numbers to add at once: adding each takes several tensor operations


class Sum:
    """Numbers put together in float64, and their rows; numbers over no rows are ignored.

    The others keep the greatest or the least number.
    """

    def __init__(
        self,
        fx: str,  # of ``REDUCTIONS``: "mean" adds up ``number * rows``, "sum" the numbers
    ) -> None:
        self.fx = fx
        self._waiting: list[tuple[Any, int]] = []
        self._total: torch.Tensor | float = 0.0
        self._rows = 0

    def begin(self, total: float, rows: int) -> None:
        """Begin with earlier sums."""
        self._total, self._rows = total, rows

    def add(self, number: Any, rows: int) -> None:
        """Add a number."""
        self._waiting.append((number, rows))
        if len(self._waiting) >= FOLD_AT:
            self.totals()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self._waiting and not self._rows

    def totals(self) -> tuple[torch.Tensor | float, int]:
        """Return the two sums of this rank."""
        waiting = [(number, rows) for number, rows in self._waiting if rows > 0]
        self._waiting = []
        if waiting:
            numbers = torch.stack(
                [torch.as_tensor(number, dtype=torch.float64) for number, _ in waiting]
            )
            self._total = self._with(numbers, [rows for _, rows in waiting])
            self._rows += sum(rows for _, rows in waiting)
        return self._total, self._rows

    def _with(self, numbers: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Return the total with more numbers."""
        if self.fx in EXTREMES:
            # Before the first number the total is 0, which is no value of any row.
            so_far = numbers.new_tensor([float(self._total)] if self._rows else [])
            return EXTREMES[self.fx](torch.cat([so_far, numbers]))
        weighted = numbers * numbers.new_tensor(rows) if self.fx == "mean" else numbers
        return self._total + weighted.sum()


class Values(NamedTuple):
    """Exact values of the logged numbers."""

    # values by logged name; if a name has both kinds of values, also by its name with ending
    of_all: dict[str, float]
    for_loggers: dict[str, float]  # one value for each name, except names that loggers do not get


class MetricEntry:
    """A logged name, its options, and its numbers."""

    def __init__(
        self,
        *,
        on_step: bool,  # its last number is reported every few steps
        on_epoch: bool,  # its mean over the epoch is reported
        prog_bar: bool,  # the progress bar shows it
        logger: bool,  # loggers get it
        fx: str,  # as for ``Sum``
        is_end: bool = False,  # logged after the last batch, as one number for all rows of a rank
    ) -> None:
        self.on_step, self.on_epoch = on_step, on_epoch
        self.prog_bar, self.logger = prog_bar, logger
        self._how: dict[str, Any] = {
            "on_step": on_step,
            "on_epoch": on_epoch,
            "prog_bar": prog_bar,
            "logger": logger,
            "fx": fx,
        }
        self.is_end = is_end
        self.last: tuple[Any, int] | None = None
        self.sum = Sum(fx)
        self.end: LoggedNumber | None = None
        self.meter: Any = None  # an object that computes its own value, as in torchmetrics

    def add(self, value: Any, rows: int) -> None:
        """Record a number."""
        if self.on_step:
            self.last = (value, rows)
        if self.on_epoch:
            self.sum.add(value, rows)

    @property
    def how(self) -> dict[str, Any]:
        """The options it was logged with, as arguments for another entry."""
        return {**self._how, "is_end": self.is_end}

    @property
    def takes_ends(self) -> bool:
        """Whether a number logged after the last batch is a separate mean."""
        return self.on_epoch and self.sum.fx == "mean" and self.sum.is_empty

    def add_end(self, value: Any, rows: int) -> None:
        """Record a number for all rows of this rank; the last one counts."""
        self.is_end = True
        is_tensor = isinstance(value, torch.Tensor)
        is_whole = not value.is_floating_point() if is_tensor else isinstance(value, int)
        self.end = LoggedNumber(float(value), rows, is_whole, is_tensor)


class Metrics:
    """The names logged in one epoch or evaluation."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.entries: dict[str, MetricEntry] = {}  # logged names with their numbers
        self.has_rows = True  # whether this rank had any rows
        # numbers that the ranks logged after the last batch, by name
        self.ends: dict[str, list[LoggedNumber]] = {}

    def of_step(self) -> Values:
        """Return the values, over all ranks, of ``on_step`` numbers since the last call."""
        names = sorted(name for name, entry in self.entries.items() if entry.last is not None)
        sums = []
        for name in names:
            entry = self.entries[name]
            sums.append(Sum(entry.sum.fx))
            sums[-1].add(*entry.last or (0.0, 0))
            entry.last = None
        return self._named(self._over_ranks(names, sums), ending="_step")

    def of_epoch(self) -> Values:
        """Return the values, over all rows and ranks, of ``on_epoch`` numbers so far."""
        names, meters = self._epoch_names()
        ends = [name for name in names if self.entries[name].is_end]
        names = [name for name in names if name not in ends]
        sums = [self.entries[name].sum for name in names]
        values = self._over_ranks(names, sums, also=(*ends, *meters))
        values |= self._ends_over_ranks(ends)
        values |= self._computed(meters)
        return self._named(values, ending="_epoch")

    def end(self) -> None:
        """Reset objects that compute their own value."""
        for entry in self.entries.values():
            if entry.meter is not None:
                entry.meter.reset()

    def in_bar(self, values: Values) -> dict[str, float]:
        """Return the values that the progress bar shows."""
        names = [
            name for name, entry in self.entries.items() if entry.prog_bar and name in values.of_all
        ]
        return {name: values.of_all[name] for name in names}

    def names(
        self, parts: Sequence[tuple[str, Any]]
    ) -> dict[str, tuple[dict[str, Any], MeterPlace | None]]:
        """Return each name's options and the location of its object, if it has one that computes.

        An object that is not among the task's parts cannot be located on another rank, and is left
        out.
        """
        places = {name: place_of(entry.meter, parts) for name, entry in self.entries.items()}
        return {
            name: (entry.how, places[name])
            for name, entry in self.entries.items()
            if entry.meter is None or places[name] is not None
        }

    def take_names(
        self,
        names: Mapping[str, tuple[dict[str, Any], MeterPlace | None]],
        parts: Sequence[tuple[str, Any]],
    ) -> None:
        """Record the names of another rank's ``names`` here too, over no rows."""
        for name, (how, place) in names.items():
            entry = self.entries.setdefault(name, MetricEntry(**how))
            if place is not None:
                entry.meter = found_at(place, parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, over all ranks; objects with ``compute`` save their state."""
        names, _ = self._epoch_names()
        names = [name for name in names if not self.entries[name].is_end]
        totals = self._totals(names, [self.entries[name].sum for name in names])
        return {
            name: (self.entries[name].how, *pair) for name, pair in zip(names, totals, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from sums over all ranks; rank 0 holds them from now on."""
        for name, (how, total, rows) in state.items():
            entry = self.entries[name] = MetricEntry(**_of_older(how))
            if self._session.is_main:
                entry.sum.begin(total, rows)

    def _epoch_names(self) -> tuple[list[str], dict[str, Any]]:
        names = sorted(name for name, entry in self.entries.items() if entry.on_epoch)
        meters = {
            name: entry.meter for name in names if (entry := self.entries[name]).meter is not None
        }
        return [name for name in names if name not in meters], meters

    def _named(self, values: Mapping[str, float], *, ending: str) -> Values:
        named = Values({}, {})
        for name, value in values.items():
            entry = self.entries[name]
            last_name = f"{name}{ending}" if entry.on_step and entry.on_epoch else name
            named.of_all.update({name: value, last_name: value})
            if entry.logger:
                named.for_loggers[last_name] = value
        return named

    def _over_ranks(
        self, names: list[str], sums: list[Sum], *, also: tuple[str, ...] = ()
    ) -> dict[str, float]:
        totals = self._totals(names, sums, also=also)
        return {
            name: _value(partial.fx, total, rows)
            for name, partial, (total, rows) in zip(names, sums, totals, strict=True)
        }

    def _computed(self, meters: Mapping[str, Any]) -> dict[str, float]:
        """Return the values that objects compute; each communicates with its counterparts."""
        with warnings.catch_warnings():
            if not self.has_rows:  # other ranks have rows, so the warning does not apply
                warnings.filterwarnings(
                    "ignore", r"The ``compute`` method of metric \w+ was called before"
                )
            return {name: float(meter.compute()) for name, meter in meters.items()}

    def _ends_over_ranks(self, names: Sequence[str]) -> dict[str, float]:
        """Return the values of numbers logged after the last batch; ranks have equal names."""
        if not names:
            return {}
        mine = [self.entries[name].end or NO_END for name in names]
        ends = torch.tensor(mine, dtype=torch.float64, device=self._session.device)
        table = gathered(self._session, ends).view(-1, *ends.shape)
        of_ranks = {
            name: [
                LoggedNumber(value, int(rows), bool(whole), bool(tensor))
                for value, rows, whole, tensor in column
            ]
            for name, column in zip(names, table.transpose(0, 1).tolist(), strict=True)
        }
        self.ends |= of_ranks
        return {name: mean_of_ends(ends) for name, ends in of_ranks.items()}

    def _totals(
        self, names: list[str], sums: list[Sum], *, also: tuple[str, ...] = ()
    ) -> list[tuple[float, int]]:
        self._check_names([*names, *also])
        if not names:
            return []
        device = self._session.device
        mine = [
            torch.as_tensor(part, dtype=torch.float64, device=device)
            for partial in sums
            for part in partial.totals()
        ]
        pairs = torch.stack(mine).view(-1, 2)
        whole = self._session.reduce(pairs).tolist()
        # Sums have added up the extremes of ranks too: these are gathered and put in their place.
        extremes = [number for number, partial in enumerate(sums) if partial.fx in EXTREMES]
        if extremes:
            of_ranks = gathered(self._session, pairs[extremes]).view(-1, len(extremes), 2)
            for number, column in zip(extremes, of_ranks.unbind(1), strict=True):
                values = column[column[:, 1] > 0, 0]  # of ranks with rows
                if len(values):
                    whole[number][0] = EXTREMES[sums[number].fx](values).item()
        return [(total, int(rows)) for total, rows in whole]

    def _check_names(self, names: Sequence[str]) -> None:
        # Ranks with different names would add up different numbers, or hang. Sum and sum of squares
        # detect a difference on all ranks at once.
        session = self._session
        if session.world_size == 1:
            return
        mine = zlib.crc32("\n".join(names).encode())
        total, squares = session.reduce((mine, mine * mine))
        if squares * session.world_size == total * total:
            return
        raise UsageError.of(
            "collective-mismatch",
            f"rank {session.rank} logged other names than the other ranks:"
            f" {', '.join(names) or 'none'}",
            where=f"rank {session.rank}, self.log(...)",
            why="a mean over all rows needs the rows of every rank",
            fix="call self.log on every rank, with batch_size=0 where it has no value",
        )


def _value(fx: str, total: float, rows: int) -> float:
    if fx == "sum":
        return total
    if not rows:
        return math.nan
    return total / rows if fx == "mean" else total


def _of_older(how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a name in a checkpoint, which once had means and sums only."""
    options = dict(how)
    if "mean" in options:
        options["fx"] = "mean" if options.pop("mean") else "sum"
    return options


def number_of(name: str, value: Any) -> Any:
    """Return a number as it is stored: detached, and copied if it can change in place."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        number = value.detach().clone()
        return number.reshape(()) if number.dim() else number
    if isinstance(value, int | float):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a NumPy number
        return value.item()
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise option_invalid(
        f"{name} is a {type(value).__name__}{shape} and not a number",
        where=f"self.log({name!r}, ...)",
        fix=f"self.log({name!r}, {'value.mean()' if shape else 'float(value)'})",
    )
