"""The result of ``paceline bench`` as a file, and the throughput and efficiency that it shows.

``bench.json`` in a run folder; ``forecast`` and ``report`` read it. Steps of the warm-up are left
out of it.

Throughput is the median over windows of ``WINDOW`` consecutive steps, and not over steps: the
workers of a DataLoader deliver batches in bursts, so that most steps may be fast although data are
the bottleneck. The bootstrap draws rounds first and windows second (``measure.intervals``).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import SetupError
from paceline.launch.monitor import stage_times, step_parts, timed_steps
from paceline.launch.monitor.stage_times import StepTime
from paceline.launch.monitor.timed_steps import Durations
from paceline.measure import intervals
from paceline.measure.intervals import Blocks, Interval
from paceline.rundir import files, owned
from paceline.rundir.files import RunDir
from paceline.text.secret_texts import hidden

VERSION = 1
KIND = "bench"
SCALINGS = ("weak", "strong")
_MOST_BYTES = 1 << 28

Round = Mapping[int, Mapping[int, Durations]]


@dataclass(frozen=True)
class WorldBench:
    """The measured steps of one number of ranks."""

    num_nodes: int  # number of nodes
    samples_per_step: int  # samples of an optimizer step over all ranks; 0 if unknown
    hosts: Mapping[int, str]  # host by rank
    # durations of stages in nanoseconds by step and rank, for each start of the script
    rounds: Sequence[Round]
    # CPU time that the threads of a rank take in a step, in seconds; 0 if unknown
    cpu_s_per_step: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the steps as plain data, in microseconds."""
        return {
            "num_nodes": self.num_nodes,
            "samples_per_step": self.samples_per_step,
            "hosts": {str(rank): host for rank, host in self.hosts.items()},
            "rounds": [timed_steps.to_json(steps) for steps in self.rounds],
            "cpu_s_per_step": self.cpu_s_per_step,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WorldBench:
        """Return the steps from the data that ``to_json`` returned."""
        return cls(
            num_nodes=int(values["num_nodes"]),
            samples_per_step=int(values["samples_per_step"]),
            hosts={int(rank): str(host) for rank, host in values["hosts"].items()},
            rounds=[timed_steps.from_json(steps) for steps in values["rounds"]],
            cpu_s_per_step=float(values.get("cpu_s_per_step", 0.0)),
        )


@dataclass(frozen=True)
class BenchFile:
    """A bench."""

    command: tuple[str, ...]  # the script and its arguments
    scaling: str  # ``"weak"``: the batch of a rank stays; ``"strong"``: that of all ranks stays
    backend: str  # backend of the process group, ``"gloo"`` or ``"nccl"``
    warmup_steps: int  # optimizer steps that were left out at the start of each round
    worlds: Mapping[int, WorldBench]  # measured steps by number of ranks
    # bytes of gradients that are reduced in a step; None if unknown
    gradient_bytes: int | None = None
    # sizes of the buckets that they are reduced in; None if unknown
    bucket_bytes: tuple[int, ...] | None = None
    # what each setting is worth, as ``paceline bench --settings`` prints it
    settings: Sequence[Mapping[str, Any]] = ()
    # what ``paceline bench network`` printed; None if it was not measured
    network: Mapping[str, Any] | None = None
    oversubscribed: bool = False  # whether ranks shared CPUs or GPUs
    cpus: int = 0  # that the ranks of a node could use; 0 if unknown

    def to_json(self) -> dict[str, Any]:
        """Return the bench as plain data."""
        return {
            "version": VERSION,
            "kind": KIND,
            "command": list(hidden(self.command)),
            "scaling": self.scaling,
            "backend": self.backend,
            "warmup_steps": self.warmup_steps,
            "worlds": {str(size): world.to_json() for size, world in self.worlds.items()},
            "gradient_bytes": self.gradient_bytes,
            "bucket_bytes": None if self.bucket_bytes is None else list(self.bucket_bytes),
            "settings": [dict(setting) for setting in self.settings],
            "network": self.network,
            "oversubscribed": self.oversubscribed,
            "cpus": self.cpus,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BenchFile:
        """Return the bench from the data that ``to_json`` returned.

        Raises ValueError if the data are of another kind or version; KeyError if a field is
        missing.
        """
        if values["kind"] != KIND:
            raise ValueError(f"not a bench but {values['kind']!r}")
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r}, and not {VERSION}")
        if values["scaling"] not in SCALINGS:
            raise ValueError(f"unknown scaling {values['scaling']!r}")
        sizes = values["bucket_bytes"]
        return cls(
            command=hidden(values["command"]),
            scaling=values["scaling"],
            backend=str(values["backend"]),
            warmup_steps=int(values["warmup_steps"]),
            worlds={
                int(size): WorldBench.from_json(world) for size, world in values["worlds"].items()
            },
            gradient_bytes=values["gradient_bytes"],
            bucket_bytes=None if sizes is None else tuple(sizes),
            settings=tuple(values["settings"]),
            network=values["network"],
            oversubscribed=bool(values.get("oversubscribed", False)),
            cpus=int(values.get("cpus", 0)),
        )


def read(run_dir: RunDir) -> BenchFile:
    """Return the bench of a run folder."""
    try:
        return BenchFile.from_json(files.read_json(run_dir.bench, most_bytes=_MOST_BYTES))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        place = files.display_path(run_dir.bench)
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise SetupError.of(
            "input-unreadable",
            f"{place} cannot be read as the result of a bench",
            evidence=(reason,),
            fix="paceline bench train.py writes one into its run folder",
        ) from None


def write(bench: BenchFile, run_dir: RunDir) -> None:
    """Write a bench into its run folder; raise OSError if the folder cannot be written."""
    owned.write_whole(run_dir.bench, json.dumps(bench.to_json()) + "\n")


WINDOW = 8


@dataclass(frozen=True)
class WorldFigures:
    """How fast one number of ranks is."""

    num_ranks: int  # number of ranks
    samples_per_step: int  # samples of a step over all ranks; 0 if unknown
    step_s: Interval  # seconds of a step
    # samples per second over all ranks; None if the batch is unknown
    samples_per_s: Interval | None
    speedup: Interval  # samples per second as a multiple of those of the smallest number of ranks
    efficiency: Interval  # ``speedup`` divided by the multiple of ranks; 1 is ideal
    # seconds of a step by part: data, compute, other code, communication, waiting. They are means
    # over the steps that took about as long as most.
    parts: Mapping[str, float]
    # the rank that the others wait for, if the evidence suffices: rank, host, stage, seconds; else
    # None
    slow_rank: Mapping[str, Any] | None
    # number of windows that were measured. A single one has no spread, so that its intervals have
    # no width.
    windows: int = 0


def figures(bench: BenchFile) -> list[WorldFigures]:
    """Return the figures of each number of ranks, the smallest first."""
    sizes = sorted(bench.worlds)
    base = sizes[0]
    return [_figures(bench, size, base) for size in sizes]


def _figures(bench: BenchFile, size: int, base: int) -> WorldFigures:
    world, smallest = bench.worlds[size], bench.worlds[base]
    times, base_times = window_times(world.rounds), window_times(smallest.rounds)
    step_time = account(world)
    speedup = _scaled(_ratio(base_times, times), _work(size, world) / _work(base, smallest))
    step_s = intervals.median(times)
    return WorldFigures(
        num_ranks=size,
        samples_per_step=world.samples_per_step,
        step_s=step_s,
        samples_per_s=_rate(world.samples_per_step, step_s),
        speedup=speedup,
        efficiency=_scaled(speedup, base / size),
        parts=parts_of(step_time, step_s.value),
        slow_rank=_slow_rank(step_time, world.hosts),
        windows=len(intervals.flat(times)),
    )


def _work(size: int, world: WorldBench) -> float:
    """Return the work of a step: its samples, or the ranks where batches are unknown."""
    return float(world.samples_per_step or size)


def _ratio(numerator: Blocks, denominator: Blocks) -> Interval:
    """Return the ratio of two medians; exactly 1 for the same measurement."""
    if numerator is denominator or list(numerator) == list(denominator):
        return Interval(1.0, 1.0, 1.0)
    return intervals.ratio(numerator, denominator)


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def _rate(amount: int, seconds: Interval) -> Interval | None:
    """Return an amount per second; None without an amount."""
    if not amount:
        return None
    return Interval(amount / seconds.value, amount / seconds.high, amount / seconds.low)


def window_times(rounds: Sequence[Round]) -> list[list[float]]:
    """Return the mean seconds of a step in windows of consecutive steps, for each round.

    The steps that do not fill the last window are left out; a round of fewer is one window.
    """
    return [_windows([step_seconds(steps[step]) for step in sorted(steps)]) for steps in rounds]


def _windows(times: Sequence[float]) -> list[float]:
    size = min(WINDOW, len(times))
    starts = range(0, len(times) - size + 1, size)
    return [statistics.fmean(times[start : start + size]) for start in starts]


def step_seconds(step: Mapping[int, Durations]) -> float:
    """Return the seconds of a step: the median of the ranks, which leave the exchange together."""
    return statistics.median(sum(durations) for durations in step.values()) * 1e-9


def account(world: WorldBench) -> StepTime | None:
    """Return where the time of a step goes, over all rounds; None with too few steps."""
    return stage_times.account(steps[step] for steps in world.rounds for step in sorted(steps))


def parts_of(step_time: StepTime | None, step_s: float) -> dict[str, float]:
    """Return the seconds of a step by part; all of it is compute if the parts are unknown."""
    if step_time is None:
        return {"compute": step_s}
    return step_parts.coarse(stage_times.describe(step_time, {}), step_time.ranks)


def _slow_rank(step_time: StepTime | None, hosts: Mapping[int, str]) -> Mapping[str, Any] | None:
    suspect = step_time.proven if step_time is not None else None
    if suspect is None:
        return None
    return {
        "rank": suspect.rank,
        "host": hosts.get(suspect.rank, ""),
        "stage": suspect.stage,
        "seconds": suspect.seconds,
    }
