"""The sums of values that ranks have recorded, and those of several ranks beside one process.

``launch.probe.value_sums`` says what the five sums of a tensor are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Sums = tuple[float, ...]  # number of values; sums of x, of its magnitude, square and cube
_SCALED = 2e-3  # relative difference of what is still called a multiple
_WHOLE = 1e-6  # how far the number of values may be from a multiple


@dataclass(frozen=True)
class RecordedCall:
    """The calls of a module in a period."""

    name: str
    parent: str  # the module within whose forward it was called; empty if there is none
    type: str
    is_training: bool
    place: str  # line of the script
    inputs: Sums
    sums: Sums  # of its outputs
    precision: float  # of the type of its outputs


@dataclass
class Period:
    """Forwards of a rank, and the optimizer steps that follow them."""

    inputs: dict[str, Sums] = field(default_factory=dict)  # by outermost module
    calls: tuple[RecordedCall, ...] = ()  # in the order of their last calls
    loss: Sums = ()  # of all backwards
    is_random: bool = False  # whether it draws random numbers for something else than dropout
    is_idle: bool = False  # whether its last backward has changed no gradient
    masks: tuple[tuple[str, Sums, str], ...] = ()  # module, its input, and mask of each dropout
    parameters: dict[str, Sums] = field(default_factory=dict)  # before the step
    gradients: dict[str, Sums] = field(default_factory=dict)
    raw: dict[str, Sums] = field(default_factory=dict)  # gradients as the backward leaves them
    buffers: dict[str, Sums] = field(default_factory=dict)  # after the forward
    updates: dict[str, Sums] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)  # learning rates of all optimizers
    copies: dict[str, Sums] = field(default_factory=dict)  # averaged weights, before the step
    precision: float = 0.0  # of the coarsest type
    place: str = ""  # line of the script that makes the step


_BY_PARAMETER = ("parameters", "gradients", "raw", "updates")


def parse(records: Iterable[Mapping[str, Any]]) -> dict[int, Period]:
    """Return the periods that a rank has recorded, by number. Pure."""
    periods: dict[int, Period] = {}
    for record in records:
        kind = record["kind"]
        if "period" not in record:
            continue
        period = periods.setdefault(record["period"], Period())
        period.precision = max(period.precision, record.get("precision", 0.0))
        if kind == "forward":
            _add_forward(period, record)
        elif kind == "copy":
            names = [f"{record['copy']}: {name}" for name in record["names"]]
            period.copies.update(_named(names, record["sums"]))
        elif kind == "rates":
            period.rates += record["rates"]
        elif kind in _BY_PARAMETER:
            period.place = period.place or record["place"]
            getattr(period, kind).update(_named(record["names"], record["sums"]))
    return periods


def _add_forward(period: Period, record: Mapping[str, Any]) -> None:
    period.inputs = {name: tuple(sums) for name, sums in record["inputs"].items()}
    period.calls = tuple(
        RecordedCall(**{**call, "inputs": tuple(call["inputs"]), "sums": tuple(call["sums"])})
        for call in record["calls"]
    )
    period.loss, period.is_random = tuple(record["loss"]), record["is_random"]
    period.is_idle = record["is_idle"]
    period.buffers = {name: tuple(sums) for name, sums in record["buffers"].items()}
    period.masks = tuple((name, tuple(sums), mask) for name, sums, mask in record["masks"])
    period.precision = max([period.precision, *(call.precision for call in period.calls)])


def _named(names: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, Sums]:
    return {name: tuple(sums) for name, sums in zip(names, rows, strict=True)}


@dataclass(frozen=True)
class Compared:
    """A tensor of one process beside its parts and copies on several ranks."""

    name: str
    copies: int  # how often all ranks together hold it
    total: Sums  # over all ranks
    expected: Sums  # what this is if every part is right
    error: float  # the largest relative difference of a sum
    parts: tuple[Sums, ...]  # of each rank
    one: Sums

    @property
    def is_whole(self) -> bool:
        """Whether every rank has as many values as one process."""
        return all(part[0] == self.one[0] for part in self.parts)

    @property
    def are_alike(self) -> bool:
        """Whether all ranks have the same sums."""
        return len(set(self.parts)) == 1

    @property
    def are_copies(self) -> bool:
        """Whether each part is held as often as the others."""
        return all(count % self.copies == 0 for count in Counter(self.parts).values())

    @property
    def factor(self) -> float:
        """Magnitude as a multiple of what is expected; 0 if nothing is."""
        return self.total[2] / self.expected[2] if self.expected[2] else 0.0

    @property
    def is_scaled(self) -> bool:
        """Whether values differ by a factor, on each rank its own, as far as sums can show it."""
        if self.is_whole:
            return all(_is_multiple(part, self.one) for part in self.parts)
        return _is_multiple(self.total, self.expected)

    @property
    def is_mean(self) -> bool:
        """Whether ranks hold different values, whose mean is what is expected."""
        near = abs(self.total[1] - self.expected[1]) <= 1e-3 * self.expected[2]
        return not self.are_alike and near and self.total[2] > self.expected[2]


def _is_multiple(sums: Sums, others: Sums) -> bool:
    if not others[2]:
        return not sums[2]
    factor = sums[2] / others[2]
    square = factor**2 * others[3]
    is_square = abs(sums[3] - square) <= _SCALED * square
    return is_square and abs(sums[1] - factor * others[1]) <= _SCALED * sums[2]


def compare(name: str, ranks: Sequence[Sums], one: Sums, *, floor: float = 0.0) -> Compared | None:
    """Compare the parts of ranks with a tensor of one process; None if they cannot be parts of it.

    ``floor`` is a magnitude of a value, relative to which differences are never larger.
    """
    if not one or not one[0] or not all(ranks) or not any(sums[0] for sums in ranks):
        return None
    number = sum(sums[0] for sums in ranks)
    copies = round(number / one[0])
    if copies < 1 or abs(number / one[0] - copies) > _WHOLE * copies:
        return None
    total = tuple(sum(column) for column in zip(*ranks, strict=True))
    expected = tuple(copies * value for value in one)
    magnitude = expected[2] + floor * expected[0]
    square = expected[3] + floor**2 * expected[0]
    cube = max(abs(expected[4]), magnitude * square / expected[0])
    # a relative difference grows with the power
    scales = [magnitude, magnitude, 2 * square, 3 * cube]
    if one[0] == 1 or number == len(ranks):  # of single numbers, as losses, only the mean is known
        scales = scales[:1]
    differences = zip(total[1:], expected[1:], scales, strict=False)
    error = max(abs(value - other) / (scale or 1.0) for value, other, scale in differences)
    return Compared(name, copies, total, expected, error, tuple(ranks), one)
