"""Format the result of a bench as text of at most 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from paceline.errors import Finding
from paceline.measure.bench.brake import Brake
from paceline.measure.bench.settings import LOSS_STEPS, Worth
from paceline.measure.bench_file import WINDOW, BenchFile, WorldFigures

COLUMNS = 80
_FEWEST_WINDOWS = 2  # a single window has no spread
_PARTS = ("data", "compute", "other code", "communication", "waiting")


@dataclass(frozen=True)
class BenchResult:
    """A bench that is to be shown."""

    bench: BenchFile  # what was measured
    figures: Sequence[WorldFigures]  # the figures of each number of ranks
    brake: Brake  # what holds scaling back
    findings: Sequence[Finding]  # why some numbers of ranks could not be measured
    steps: int  # optimizer steps of a trial, with those of the warm-up
    # threads of a rank, if they were set to be the same at every size; else None
    threads: int | None
    has_settled: bool  # whether the times of steps had settled after the warm-up
    folder: str  # the run folder, for people
    worths: Sequence[Worth] = ()  # what each setting is worth


def render(result: BenchResult) -> str:
    """Return the result as text."""
    lines = [
        *_head(result),
        "",
        *_speeds(result.figures),
        *_unknown_samples(result.figures),
        *_few_windows(result),
        "",
        *_splits(result.figures),
        "",
        *_brake(result.brake),
    ]
    if result.worths:
        lines += ["", *_settings(result.worths)]
    lines += [line for finding in result.findings for line in ("", finding.render())]
    return "\n".join([*lines, f"run folder {result.folder}"])


def _brake(brake: Brake) -> Iterator[str]:
    """Return what holds scaling back, what to try, and the page that explains it."""
    named = f" [{brake.code} {brake.finding}]" if brake.finding else ""
    yield from _wrapped(f"what holds it back: {brake.sentence}{named}")
    if brake.advice:
        yield from _wrapped(f"try: {brake.advice}")
    if brake.finding:
        yield f"more: paceline explain {brake.code}"


def _head(result: BenchResult) -> Iterator[str]:
    bench = result.bench
    rounds = max(len(world.rounds) for world in bench.worlds.values())
    times = "1 round" if rounds == 1 else f"{rounds} interleaved rounds"
    yield from _wrapped(
        f"{bench.command[0]}: {bench.scaling} scaling ({_batch(bench)}), {bench.backend}, {times}"
        f" of {result.steps} steps"
    )
    yield from _wrapped(_warmup(result))
    if result.threads is not None:
        yield from _wrapped(
            f"threads: OMP_NUM_THREADS={result.threads} at every size, so that ranks are alike"
        )
    if bench.oversubscribed:
        yield from _wrapped(
            "oversubscribed: ranks take turns on the devices of this node; ranks that have their"
            " own are faster"
        )


def _warmup(result: BenchResult) -> str:
    warmup = result.bench.warmup_steps
    text = f"warm-up: the first {warmup} steps of each round are left out"
    if result.has_settled:
        return f"{text}; after them, times of steps have settled"
    more = 2 * result.steps
    return f"{text}, and times of steps have not settled by then; try --steps {more}"


def _batch(bench: BenchFile) -> str:
    """Return the batch that stays the same."""
    size, world = min(bench.worlds.items())
    if not world.samples_per_step:
        return "batch unknown"
    if bench.scaling == "strong":
        return f"{world.samples_per_step} samples a step"
    return f"{world.samples_per_step / size:g} samples a rank"


def _speeds(figures: Sequence[WorldFigures]) -> Iterator[str]:
    """Return the table of speeds; intervals of 95 % are in parentheses."""
    yield f"{'ranks':>5}  {'samples/s (95 %)':>24}  {'step ms':>8}  {'speed-up':>8}  efficiency"
    for row in figures:
        step = f"{row.step_s.value * 1000:.3g}"
        yield (
            f"{row.num_ranks:>5}  {_rate(row):>24}  {step:>8}  {row.speedup.value:>7.2f}x"
            f"  {_efficiency(row, figures[0])}"
        )


def _unknown_samples(figures: Sequence[WorldFigures]) -> Iterator[str]:
    """Return why samples are unknown, and what the speed-up is then."""
    if any(row.samples_per_s is None for row in figures):
        yield from _wrapped(
            "samples/s are unknown, because the batches do not come from a DataLoader of torch;"
            " the speed-up counts the batch of each rank as one"
        )


def _few_windows(result: BenchResult) -> Iterator[str]:
    """Return why figures have no interval, if they have none."""
    if min(row.windows for row in result.figures) < _FEWEST_WINDOWS:
        yield from _wrapped(
            f"no intervals: they need more than {WINDOW} steps after the warm-up; try --rounds 3"
            f" or --steps {2 * result.steps}"
        )


def _has_interval(row: WorldFigures) -> bool:
    return row.windows >= _FEWEST_WINDOWS


def _rate(row: WorldFigures) -> str:
    """Return the samples per second with their interval, where both are known."""
    interval = row.samples_per_s
    if interval is None:
        return "unknown"
    value = _rounded(interval.value)
    if not _has_interval(row):
        return value
    return f"{value} ({_rounded(interval.low)}-{_rounded(interval.high)})"


def _rounded(value: float) -> str:
    """Return a number with four digits, without an exponent."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.4g}"


def _efficiency(row: WorldFigures, base: WorldFigures) -> str:
    efficiency = row.efficiency
    if row is base:
        return "-"
    if not (_has_interval(row) and _has_interval(base)):
        return f"{efficiency.value:.0%}"
    return f"{efficiency.value:.0%} ({efficiency.low:.0%}-{efficiency.high:.0%})"


def _splits(figures: Sequence[WorldFigures]) -> Iterator[str]:
    """Return the table of the parts of a step, as shares."""
    yield f"{'ranks':>5}  " + "".join(f"{part:>14}" for part in _PARTS)
    for row in figures:
        yield f"{row.num_ranks:>5}  " + "".join(f"{_share(row.parts, p):>14}" for p in _PARTS)


def _settings(worths: Sequence[Worth]) -> Iterator[str]:
    """Return the table of settings, the fastest first, and those that were not judged."""
    yield f"settings on {worths[0].ranks} ranks, loss over the last {LOSS_STEPS} steps"
    yield f"{'':2}{'setting':26}{'samples/s (95 %)':>24}{'loss':>12}{'without':>12}"
    judged = [worth for worth in worths if worth.gain is not None]
    for worth in sorted(judged, key=_gain, reverse=True):
        yield _setting_row(worth)
    yield from _wrapped(_fastest([worth for worth in judged if not worth.is_calculated]))
    for worth in worths:
        if worth.is_calculated:
            yield from _wrapped(f"calculated, not measured: {worth.name}, {worth.line}")
        if worth.gain is None:
            yield from _wrapped(f"not judged: {worth.name}, {worth.reason}")


def _fastest(measured: Sequence[Worth]) -> str:
    """Return how the fastest setting is set, if it is faster for certain.

    Of many settings that do nothing, one may look faster.
    """
    best = max(measured, key=_gain, default=None)
    if best is None or best.gain is None or best.gain.low <= 1:
        return "no setting is faster beyond the noise of these steps"
    again = f"; measure it alone before you keep it: --settings {best.name}"
    return f"the fastest: {best.line}{again if len(measured) > 1 else ''}"


def _gain(worth: Worth) -> float:
    return worth.gain.value if worth.gain is not None else 0.0


def _setting_row(worth: Worth) -> str:
    gain = worth.gain
    assert gain is not None, "only settings that were judged have a row"
    change = f"{gain.value - 1:+.0%} ({gain.low - 1:+.0%} to {gain.high - 1:+.0%})"
    losses = f"{'-':>12}{'-':>12}"
    if worth.changes_arithmetic:
        losses = f"{_loss(worth.loss):>12}{_loss(worth.loss_without):>12}"
    return f"{'':2}{worth.name:26}{change:>24}{losses}".rstrip()


def _loss(loss: float | None) -> str:
    return "unknown" if loss is None else f"{loss:.4g}"


def _share(parts: Mapping[str, float], part: str) -> str:
    if part not in parts:
        return "-"
    return f"{parts[part] / sum(parts.values()):.0%}"


def _wrapped(text: str) -> list[str]:
    return wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
