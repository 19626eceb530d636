"""What a report knows of a run: plain data, read from run folders by ``collect``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import Finding
from paceline.measure.intervals import Interval


@dataclass(frozen=True)
class Series:
    """The numbers of one name in the order of their steps. A number that is not finite is kept.

    Attributes:
        steps: The steps.
        values: A value for each step.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class StepSplit:
    """Where the time of a step went.

    Attributes:
        seconds: Seconds of a step.
        parts: Seconds of each part of ``step_parts.PARTS`` that there is; they add up to the step.
        late_rank: A sentence about the rank that is proven to be late; empty if none is.
        timed_steps: Number of steps that this was measured on.
    """

    seconds: float
    parts: Mapping[str, float]
    late_rank: str = ""
    timed_steps: int = 0


@dataclass(frozen=True)
class SpeedPoint:
    """The speed of a run at one time.

    Attributes:
        attempt: Number of the attempt.
        time_s: The time, in seconds since the epoch.
        steps: Optimizer steps since the attempt began.
        loss: The loss that rank 0 called backward on last; None if it was not seen.
        samples_per_step: Samples of a step over all ranks; 0 if unknown.
        split: Where the time of the latest steps went; None if too few were timed.
        steps_per_s: The rate that the launcher has measured before the ranks ended; 0 if unknown.
    """

    attempt: int
    time_s: float
    steps: int
    loss: float | None = None
    samples_per_step: float = 0.0
    split: StepSplit | None = None
    steps_per_s: float = 0.0


@dataclass(frozen=True)
class RankTime:
    """What a step costs one rank.

    Attributes:
        rank: The rank.
        host: Its host.
        own_s: Seconds of a step outside backward, in which ranks wait for each other.
        data_s: Seconds of a step that it waits for its batches; part of ``own_s``.
    """

    rank: int
    host: str
    own_s: float
    data_s: float


@dataclass(frozen=True)
class Attempt:
    """One start of the ranks.

    Attributes:
        number: Its number.
        start_s: When it began, in seconds since the epoch.
        end_s: When it ended, or was last heard of.
    """

    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class World:
    """What a bench measured with one number of ranks.

    Attributes:
        ranks: Number of ranks.
        num_nodes: Number of nodes.
        own_s: Seconds of each step outside the gradient exchange, by rank.
    """

    ranks: int
    num_nodes: int
    own_s: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Scaling:
    """Throughput with one number of ranks, compared with the smallest number.

    Attributes:
        ranks: Number of ranks.
        step_s: Seconds of a step.
        samples_per_s: Samples per second over all ranks.
        ideal_samples_per_s: The same if each rank were as fast as in the smallest world.
        efficiency: ``samples_per_s`` as a share of the ideal.
    """

    ranks: int
    step_s: Interval
    samples_per_s: Interval
    ideal_samples_per_s: float
    efficiency: Interval


@dataclass(frozen=True)
class NetworkPoint:
    """An all-reduce of one size.

    Attributes:
        size_bytes: Its size.
        seconds: Its time, the median.
        low_s: Lower end of the interval of the time.
        high_s: Upper end.
        bus_bytes_per_s: Its bus bandwidth, as nccl-tests defines it.
    """

    size_bytes: int
    seconds: float
    low_s: float
    high_s: float
    bus_bytes_per_s: float


@dataclass(frozen=True)
class Bench:
    """The measurement of ``paceline bench``.

    Attributes:
        command: The script and its arguments.
        scaling: ``"weak"`` or ``"strong"``.
        backend: The backend of the process group.
        warmup_steps: Number of steps at the start of each round that were left out.
        worlds: What was measured, by number of ranks in ascending order.
        network: All-reduces by size; empty if they were not measured.
        figures: Throughput by number of ranks in ascending order; empty if it is unknown.
    """

    command: tuple[str, ...]
    scaling: str
    backend: str
    warmup_steps: int
    worlds: tuple[World, ...]
    network: tuple[NetworkPoint, ...] = ()
    figures: tuple[Scaling, ...] = ()


@dataclass(frozen=True)
class ForecastPoint:
    """A prediction for one number of ranks.

    Attributes:
        ranks: Number of ranks.
        samples_per_s: Samples per second.
        low: Lower end of its interval.
        high: Upper end.
    """

    ranks: int
    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """The result of ``paceline forecast``.

    Attributes:
        points: Predictions by number of ranks in ascending order.
        half_worth_at: Number of ranks from which another one brings less than half of itself; None
            if there is none.
        notes: What the prediction cannot know.
    """

    points: tuple[ForecastPoint, ...]
    half_worth_at: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """Everything that a report shows of one run.

    Attributes:
        name: Name of the run folder.
        folder: Path of the run folder.
        command: The script and its arguments; empty if unknown.
        state: State or outcome in one word.
        world_size: Number of ranks of the last start; 0 if unknown.
        hosts: Names of the hosts of the last start.
        attempts: Its starts.
        steps: Optimizer steps of the last start; None if they were not counted.
        metrics: Logged numbers by name.
        speed: The speed over time.
        split: Where the time of a step went in the last attempt; None if unknown.
        ranks: What a step costs each rank.
        findings: The findings of the last end.
        bench: What ``paceline bench`` measured; None without a bench.
        scaling: What the bench says about scaling, by number of ranks in ascending order.
        forecast: What ``paceline forecast`` predicted; None without one.
        environment: Facts of the environment, value by name.
        notes: What is missing or could not be read, in sentences.
    """

    name: str
    folder: str
    command: tuple[str, ...] = ()
    state: str = "unknown"
    world_size: int = 0
    hosts: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    steps: int | None = None
    metrics: Mapping[str, Series] = field(default_factory=dict)
    speed: tuple[SpeedPoint, ...] = ()
    split: StepSplit | None = None
    ranks: tuple[RankTime, ...] = ()
    findings: tuple[Finding, ...] = ()
    bench: Bench | None = None
    scaling: tuple[Scaling, ...] = ()
    forecast: Forecast | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds in which its ranks ran, over all attempts."""
        return sum(attempt.end_s - attempt.start_s for attempt in self.attempts)
