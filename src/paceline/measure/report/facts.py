"""What a report knows of a run: plain data, read from run folders by ``collect``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import Finding
from paceline.measure.intervals import Interval


@dataclass(frozen=True)
class Series:
    """The numbers of one name in the order of their steps. A number that is not finite is kept."""

    steps: tuple[int, ...]  # the steps
    values: tuple[float, ...]  # a value for each step


@dataclass(frozen=True)
class StepSplit:
    """Where the time of a step went."""

    seconds: float  # seconds of a step
    # seconds of each part of ``step_parts.PARTS`` that there is; they add up to the step
    parts: Mapping[str, float]
    late_rank: str = ""  # a sentence about the rank that is proven to be late; empty if none is
    timed_steps: int = 0  # number of steps that this was measured on
    mean_s: float = 0.0  # mean seconds of all steps, those that take long included; 0 if unknown
    # other sentences: steps that take longer than the usual one, what was not seen
    remarks: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """What is said beside the parts."""
        return [*([self.late_rank] if self.late_rank else []), *self.remarks]


@dataclass(frozen=True)
class SpeedPoint:
    """The speed of a run at one time."""

    attempt: int  # number of the attempt
    time_s: float  # the time, in seconds since the epoch
    steps: int  # optimizer steps since the attempt began
    # the loss that rank 0 called backward on last; None if it was not seen
    loss: float | None = None
    samples_per_step: float = 0.0  # samples of a step over all ranks; 0 if unknown
    # where the time of the latest steps went; None if too few were timed
    split: StepSplit | None = None
    # the rate that the launcher has measured before the ranks ended; 0 if unknown
    steps_per_s: float = 0.0
    # Of the rank that has most; 0 if unknown.
    memory_bytes: float = 0.0  # on its host
    gpu_memory_bytes: float = 0.0


@dataclass(frozen=True)
class RankTime:
    """What a step costs one rank."""

    rank: int  # the rank
    host: str  # its host
    own_s: float  # seconds of a step outside backward, in which ranks wait for each other
    data_s: float  # seconds of a step that it waits for its batches; part of ``own_s``


@dataclass(frozen=True)
class AttemptFacts:
    """One start of the ranks."""

    number: int  # its number
    start_s: float  # when it began, in seconds since the epoch
    end_s: float  # when it ended, or was last heard of


@dataclass(frozen=True)
class WorldFacts:
    """What a bench measured with one number of ranks."""

    ranks: int  # number of ranks
    num_nodes: int  # number of nodes
    # seconds of each step outside the gradient exchange, by rank
    own_s: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Scaling:
    """Throughput with one number of ranks, compared with the smallest number."""

    ranks: int  # number of ranks
    step_s: Interval  # seconds of a step
    samples_per_s: Interval  # samples per second over all ranks
    ideal_samples_per_s: float  # the same if each rank were as fast as in the smallest world
    efficiency: Interval  # ``samples_per_s`` as a share of the ideal


@dataclass(frozen=True)
class NetworkPoint:
    """An all-reduce of one size."""

    size_bytes: int  # its size
    seconds: float  # its time, the median
    low_s: float  # lower end of the interval of the time
    high_s: float  # upper end
    bus_bytes_per_s: float  # its bus bandwidth, as nccl-tests defines it


@dataclass(frozen=True)
class BenchFacts:
    """The measurement of ``paceline bench``."""

    command: tuple[str, ...]  # the script and its arguments
    scaling: str  # ``"weak"`` or ``"strong"``
    backend: str  # the backend of the process group
    warmup_steps: int  # number of steps at the start of each round that were left out
    worlds: tuple[WorldFacts, ...]  # what was measured, by number of ranks in ascending order
    network: tuple[NetworkPoint, ...] = ()  # all-reduces by size; empty if they were not measured
    # throughput by number of ranks in ascending order; empty if it is unknown
    figures: tuple[Scaling, ...] = ()


@dataclass(frozen=True)
class ForecastPoint:
    """A prediction for one number of ranks."""

    ranks: int  # number of ranks
    samples_per_s: float  # samples per second
    low: float  # lower end of its interval
    high: float  # upper end


@dataclass(frozen=True)
class ForecastFacts:
    """The result of ``paceline forecast``."""

    points: tuple[ForecastPoint, ...]  # predictions by number of ranks in ascending order
    # number of ranks from which another one brings less than half of itself; None if there is none
    half_worth_at: int | None = None
    notes: tuple[str, ...] = ()  # what the prediction cannot know


@dataclass(frozen=True)
class ReportedRun:
    """Everything that a report shows of one run."""

    name: str  # name of the run folder
    folder: str  # path of the run folder
    command: tuple[str, ...] = ()  # the script and its arguments; empty if unknown
    state: str = "unknown"  # state or outcome in one word
    world_size: int = 0  # number of ranks of the last start; 0 if unknown
    hosts: tuple[str, ...] = ()  # names of the hosts of the last start
    attempts: tuple[AttemptFacts, ...] = ()  # its starts
    steps: int | None = None  # optimizer steps of the last start; None if they were not counted
    metrics: Mapping[str, Series] = field(default_factory=dict)  # logged numbers by name
    speed: tuple[SpeedPoint, ...] = ()  # the speed over time
    # where the time of a step went in the last attempt; None if unknown
    split: StepSplit | None = None
    ranks: tuple[RankTime, ...] = ()  # what a step costs each rank
    findings: tuple[Finding, ...] = ()  # the findings of the last end
    bench: BenchFacts | None = None  # what ``paceline bench`` measured; None without a bench
    # what the bench says about scaling, by number of ranks in ascending order
    scaling: tuple[Scaling, ...] = ()
    forecast: ForecastFacts | None = None  # what ``paceline forecast`` predicted; None without one
    # facts of the environment, value by name
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is missing or could not be read, in sentences

    @property
    def seconds(self) -> float:
        """Seconds in which its ranks ran, over all attempts."""
        return sum(attempt.end_s - attempt.start_s for attempt in self.attempts)
