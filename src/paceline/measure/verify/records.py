"""What the ranks have recorded, and what is known of one property on one number of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import Finding
from paceline.launch.probe.record_file import FAULT
from paceline.measure.verify import recorded_values
from paceline.measure.verify.recorded_values import Period
from paceline.rundir import files
from paceline.rundir.files import RunDir

KEPT, BROKEN, NOTE, NOT_JUDGED = "kept", "broken", "note", "not judged"
PROVEN = "proven"


@dataclass(frozen=True)
class ComparisonVerdict:
    """A property on one number of ranks."""

    state: str  # ``"kept"``, ``"proven"``, ``"broken"``, ``"note"`` or ``"not judged"``
    reason: str = ""  # what was compared, or why nothing could be
    finding: Finding | None = None  # what is wrong; None unless broken or a note

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data, with the name of its finding."""
        name = self.finding.name if self.finding is not None else None
        return {"state": self.state, "reason": self.reason, "finding": name}


def kept(reason: str) -> ComparisonVerdict:
    """Return that a property is kept."""
    return ComparisonVerdict(KEPT, reason)


def not_judged(reason: str) -> ComparisonVerdict:
    """Return that a property cannot be judged."""
    return ComparisonVerdict(NOT_JUDGED, reason)


def broken(finding: Finding) -> ComparisonVerdict:
    """Return that a property is broken; a finding that is only a hint is a note."""
    state = NOTE if finding.severity == "hint" else BROKEN
    return ComparisonVerdict(state, finding.what, finding)


_MOST_BYTES = 1 << 27


@dataclass
class LoopRecord:
    """A loop of a rank over a DataLoader."""

    place: str = ""  # the line of the script, as ``train.py:24``
    loader_place: str = ""  # the line that has constructed its loader; empty if unknown
    dataset: str = ""  # type of the dataset, or of that which it is a subset of
    dataset_length: int = 0  # length of that
    view_length: int = 0  # length of the dataset that the loader has
    is_stream: bool = False  # whether it has no indices
    is_session: bool = False  # whether paceline's Session divides its samples
    shuffles: bool = False  # whether its sampler is meant to shuffle
    num_batches: int = 0  # length of the loader in batches; 0 if unknown
    trains: bool = False  # whether a backward has followed
    has_ended: bool = False  # whether all batches were taken
    # whether it has no gradients, or has ended while a model evaluates and nothing is trained
    is_evaluation: bool = False
    # indices of each batch in the dataset; None where they are not integers
    batches: list[list[int] | None] = field(default_factory=list)
    samples: int = 0  # number of samples that were read
    # for an index, hashes of the sample's columns; only of the first samples
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # whether figures were combined over ranks after it, and not results of samples
    scored: bool = False
    # whether anything was combined over ranks after it began; None if unknown
    combined: bool | None = None
    # whether the script has dropped repeated results by a framework's function
    trimmed: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """What loops of different ranks over the same samples have in common."""
        return self.dataset, self.dataset_length

    @property
    def line_to_change(self) -> str:
        """The line with the settings of the loader, or else that of the loop."""
        return self.loader_place or self.place

    @property
    def amount(self) -> str:
        """What was read, in words."""
        total = max(self.num_batches, len(self.batches))
        return f"{len(self.batches):,} of {total:,} batches, {self.samples:,} samples"

    @property
    def indices(self) -> list[int] | None:
        """The indices of all batches in order; None if some are unknown."""
        with_indices = [batch for batch in self.batches if batch is not None]
        if self.is_stream or len(with_indices) < len(self.batches):
            return None
        return [index for batch in with_indices for index in batch]


@dataclass(frozen=True)
class RecordedStep:
    """A step of an optimizer."""

    number: int  # its number, from 1
    rates: tuple[float, ...]  # learning rate of each parameter group
    # losses of the backwards before it; None for one that is not a number
    losses: tuple[float | None, ...] = ()
    gradients: int | None = None  # checksum of the gradients that it has applied; None if unknown
    after: int | None = None  # checksum of all parameters when it had ended
    # elements of gradients or activations that ranks have exchanged for it; None if unknown
    exchanged: int | None = None
    loop: int = -1  # number of the loop whose batch was taken last, among those with gradients
    schedules: int = 0  # how often learning rate schedulers were stepped since the step before


@dataclass
class RecordedTraining:
    """An optimizer of a rank."""

    type: str = ""  # type of the optimizer
    place: str = ""  # line of its first step
    names: tuple[str, ...] = ()  # names of its parameters
    is_whole: bool = True  # whether no parameter is divided among ranks
    num_elements: int = 0  # of its parameters
    # ranks of the process group, if all that they exchange is recorded; 0 otherwise
    num_connected: int = 0
    is_parallel: bool = False  # whether DistributedDataParallel holds all of its parameters
    steps: list[RecordedStep] = field(default_factory=list)  # its steps
    # checksum of all parameters after each number of steps; None if unknown
    checksums: dict[int, int | None] = field(default_factory=dict)
    # checksum of each parameter, likewise; empty for many parameters
    sums: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedFigure:
    """A line with a figure that rank 0 has printed after an evaluation."""

    loop: int  # number of the evaluation's loop
    line: str  # the line
    place: str  # the line of the script
    combined: bool  # whether ranks had combined anything since the evaluation began


@dataclass
class Rank:
    """What a rank has recorded."""

    loops: dict[int, LoopRecord] = field(default_factory=dict)  # its loops by number
    trainings: dict[int, RecordedTraining] = field(default_factory=dict)  # its optimizers by number
    # figures that it has printed after evaluations
    printed: list[RecordedFigure] = field(default_factory=list)
    schedule: str = ""  # line of the script that steps a scheduler; empty without one
    schedule_type: str = ""  # type of that scheduler
    # checksums of what DistributedDataParallel holds, on a rank whose optimizers make no step
    unstepped: list[int] = field(default_factory=list)
    fault: str = ""  # why its records are incomplete; empty if they are complete

    @property
    def epochs(self) -> list[LoopRecord]:
        """The loops that train, in order."""
        return [self.loops[number] for number in sorted(self.loops) if self.loops[number].trains]

    @property
    def evaluations(self) -> list[LoopRecord]:
        """The loops that evaluate, in order."""
        loops = (self.loops[number] for number in sorted(self.loops))
        return [loop for loop in loops if loop.is_evaluation and not loop.trains]


@dataclass(frozen=True)
class RecordedWorld:
    """What a number of ranks has recorded."""

    size: int  # number of ranks
    ranks: tuple[Rank, ...]  # each rank's records
    findings: tuple[Finding, ...] = ()  # what the launcher has found
    is_apart: bool = False  # whether ranks train apart on purpose
    values: tuple[Mapping[int, Period], ...] = ()  # of each rank, by period
    is_repeatable: bool = True  # whether it comes to the same values again; known of 1 rank only

    def found(self, name: str) -> Finding | None:
        """Return the launcher's finding of a name; None if there is none."""
        return next((finding for finding in self.findings if finding.name == name), None)

    @property
    def name(self) -> str:
        """The number of ranks in words."""
        return "1 rank" if self.size == 1 else f"{self.size} ranks"


def read(run_dir: RunDir, size: int, findings: tuple[Finding, ...] = ()) -> RecordedWorld:
    """Return what the ranks of a run have recorded; a rank without a file has recorded nothing."""
    ranks = tuple(parse(_lines(run_dir.observed(rank))) for rank in range(size))
    values = tuple(recorded_values.parse(_lines(run_dir.values(rank))) for rank in range(size))
    return RecordedWorld(size, ranks, findings, values=values)


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        text = files.read_bytes(path, most_bytes=_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last line of a rank that was killed
        if isinstance(record, dict):
            yield record


def parse(records: Iterable[Mapping[str, Any]]) -> Rank:
    """Return a rank's records in order. Pure."""
    rank = Rank()
    for record in records:
        _add(rank, record)
    return rank


def _add(rank: Rank, record: Mapping[str, Any]) -> None:
    """Add a record to what is known of a rank; records of other versions are left out."""
    match record["kind"]:
        case "loop":
            rank.loops[record["loop"]] = _made(LoopRecord, record)
        case "batch":
            _add_batch(rank.loops[record["loop"]], record)
        case "trains":
            rank.loops[record["loop"]].trains = True
        case "end":
            loop = rank.loops[record["loop"]]
            loop.has_ended, loop.is_evaluation = True, record["is_evaluation"]
        case "settled":
            loop = rank.loops[record["loop"]]
            loop.scored, loop.combined = record["scored"], record["combined"]
            loop.trimmed = record["trimmed"]
        case "optimizer":
            rank.trainings[record["optimizer"]] = _made(RecordedTraining, record)
        case "parameters":
            training = rank.trainings[record["optimizer"]]
            training.checksums[record["step"]] = record["checksum"]
            training.sums[record["step"]] = tuple(record["sums"])
        case "step":
            step = _made(RecordedStep, {**record, "number": record["step"]})
            rank.trainings[record["optimizer"]].steps.append(step)
        case "printed":
            rank.printed.append(_made(RecordedFigure, record))
        case "schedule":
            rank.schedule = rank.schedule or record["place"]
            rank.schedule_type = rank.schedule_type or record["type"]
        case "unstepped":
            rank.unstepped.append(record["checksum"])
        case kind if kind == FAULT:
            rank.fault = record["what"]


def _add_batch(loop: LoopRecord, record: Mapping[str, Any]) -> None:
    indices = record["indices"]
    loop.batches.append(indices)
    loop.samples += record["samples"]
    columns = record["rows"]
    # Without a value for each sample, as in a batch of another layout, none can be compared.
    if indices is None or not columns or any(len(column) != len(indices) for column in columns):
        return
    loop.rows.update(zip(indices, zip(*columns, strict=True), strict=True))


def _made(kind: Any, record: Mapping[str, Any]) -> Any:
    """Return an object of a dataclass from what a record has of its fields, lists as tuples."""
    known = {name: record[name] for name in kind.__dataclass_fields__ if name in record}
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in known.items()})
