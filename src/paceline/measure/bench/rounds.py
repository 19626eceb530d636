"""Start a script on each number of ranks, round after round, and collect its steps.

The sizes take turns, in the opposite order in every other round: what changes on the machine
meanwhile (temperature, other users) then meets all of them.

The first steps allocate memory, connect ranks, fill the page cache and compile. They end where the
times of steps have come down to those of the last third, within three standard deviations from
the median absolute deviation, which single slow steps do not pull along.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.errors import Finding
from paceline.measure import bench_file, trial
from paceline.measure.bench import request as requests
from paceline.measure.bench.request import BenchRequest
from paceline.measure.bench_file import BenchFile, Round, WorldBench
from paceline.measure.trial import Say, Trial, TrialResult
from paceline.rundir import files
from paceline.rundir.files import RunDir
from paceline.train import checkpoint

WINDOW = 5  # the median of so many steps is compared, so that one slow step says nothing
_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826  # for normally distributed values
_LEAST_SHARE = 0.02  # of a step; smaller differences are not a warm-up


def slow_steps(times: Sequence[float]) -> int:
    """Return the number of steps at the start that are slower than the last third, at most half."""
    half = len(times) // 2
    if half < WINDOW:
        return 0
    settled = times[-max(WINDOW, len(times) // 3) :]
    median = statistics.median(settled)
    deviation = statistics.median(abs(time - median) for time in settled)
    # A median of five normally distributed values has 0.54 of their standard deviation; the whole
    # of it is allowed, because times of steps have longer tails.
    most = median + max(_SIGMAS * _MAD_TO_SIGMA * deviation, _LEAST_SHARE * median)
    for start in range(half):
        if statistics.median(times[start : start + WINDOW]) <= most:
            return _without_single(times, start, most)
    return half


def _without_single(times: Sequence[float], start: int, most: float) -> int:
    """Return where the steps of a window become usual: its first ones may still be slow."""
    while times[start] > most and start < len(times) // 2:
        start += 1
    return start


UNTIMED = 2  # steps at the start of a trial


@dataclass
class MeasuredRounds:
    """The trials of a bench."""

    # those that went well, by number of ranks
    results: dict[int, list[TrialResult]] = field(default_factory=dict)
    # why a number of ranks could not be measured
    findings: dict[int, Finding] = field(default_factory=dict)
    # samples of a step over all ranks, for strong scaling; None if unknown yet
    global_batch: int | None = None
    backend: str = ""  # the backend that ranks use; empty before the first trial


def measure(
    request: BenchRequest, folder: Path, *, variables: Mapping[str, str], say: Say
) -> MeasuredRounds:
    """Run all trials of a bench; their run folders are created in ``folder``.

    ``say`` takes what is measured now, and returns what moves the progress bar. Raises UsageError
    if the script does not follow ``--batch-option``.
    """
    measured = MeasuredRounds(global_batch=request.global_batch)
    for number, size in _turns(request):
        if size in measured.findings:
            continue
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        one = make(request, measured, size, folder / f"{ranks.replace(' ', '-')}-round-{number}")
        tick = say(f"{ranks}, round {number} of {request.rounds}")
        result = run(replace(one, variables=variables), tick)
        _add(measured, request, one, result)
    return measured


def make(request: BenchRequest, measured: MeasuredRounds, size: int, run_dir: Path) -> Trial:
    """Return the trial of a number of ranks."""
    return Trial(
        command=request.command_for(size, measured.global_batch),
        world_size=size,
        steps=request.steps,
        run_dir=run_dir,
        options=request.options,
        timeout_s=request.timeout_s,
    )


def run(one: Trial, tick: Callable[[], None]) -> TrialResult:
    """Run a trial, and delete what a script that uses paceline's Session has saved in it."""
    result = trial.run(one, tick)
    checkpoint.remove(RunDir(one.run_dir).checkpoints)
    return result


def _turns(request: BenchRequest) -> Iterator[tuple[int, int]]:
    """Yield the number of the round, from 1, and the number of ranks of each trial."""
    for number in range(1, request.rounds + 1):
        sizes = request.worlds if number % 2 else tuple(reversed(request.worlds))
        yield from ((number, size) for size in sizes)


def _add(measured: MeasuredRounds, request: BenchRequest, one: Trial, result: TrialResult) -> None:
    size = one.world_size
    if result.finding is not None:
        measured.findings[size] = result.finding
        measured.results.pop(size, None)
        return
    if request.scaling == "strong":
        _check_batch(measured, request, one, result)
    if not measured.backend:
        measured.backend = str(files.read_json(RunDir(one.run_dir).plan())["backend"])
    measured.results.setdefault(size, []).append(result)


def _check_batch(
    measured: MeasuredRounds, request: BenchRequest, one: Trial, result: TrialResult
) -> None:
    """Take the global batch from the first trial, and compare that of the others with it."""
    samples, expected = result.samples_per_step, measured.global_batch
    if expected is None:
        if not samples:
            raise requests.batch_unknown()
        requests.check_division(request, samples)
        measured.global_batch = samples
    elif samples and samples != expected:
        raise requests.no_effect(request, one.world_size, measured=samples, expected=expected)


def to_bench(request: BenchRequest, measured: MeasuredRounds, *, oversubscribed: bool) -> BenchFile:
    """Return what was measured, without the steps of the warm-up. Pure.

    At least one trial went well. ``oversubscribed``: ranks share devices.
    """
    slow = warmup_steps(measured)
    first = UNTIMED + slow
    largest = measured.results[max(measured.results)][0]
    return BenchFile(
        command=request.command,
        scaling=observed_scaling(request.scaling, measured),
        backend=measured.backend,
        warmup_steps=first,
        worlds={size: _world(results, first) for size, results in sorted(measured.results.items())},
        gradient_bytes=largest.gradient_bytes,
        bucket_bytes=largest.bucket_bytes,
        oversubscribed=oversubscribed,
    )


def warmup_steps(measured: MeasuredRounds) -> int:
    """Return how many timed steps belong to the warm-up: the most that a number of ranks needs.

    Of the rounds of one number of ranks the median counts: a single one may have been disturbed.
    """
    return max(
        round(statistics.median(slow_steps(_times(result)) for result in results))
        for results in measured.results.values()
    )


def has_settled(measured: MeasuredRounds) -> bool:
    """Return whether the times of steps had settled before half of them were over."""
    shortest = min(len(result.steps) for results in measured.results.values() for result in results)
    return warmup_steps(measured) < shortest // 2


def _times(result: TrialResult) -> list[float]:
    return [bench_file.step_seconds(result.steps[step]) for step in sorted(result.steps)]


def _world(results: list[TrialResult], first: int) -> WorldBench:
    return WorldBench(
        num_nodes=1,
        samples_per_step=results[0].samples_per_step,
        hosts=results[0].hosts,
        rounds=[_after(result, first) for result in results],
        cpu_s_per_step=statistics.fmean(result.cpu_s_per_step for result in results),
    )


def _after(result: TrialResult, first: int) -> Round:
    return {step: ranks for step, ranks in result.steps.items() if step >= first}


def observed_scaling(requested: str, measured: MeasuredRounds) -> str:
    """Return ``"strong"`` if the script itself divides a global batch among its ranks.

    Scripts of ``paceline.Session`` do, and those that compute the batch from the world size.
    """
    batches = {results[0].samples_per_step for results in measured.results.values()}
    is_same = len(measured.results) > 1 and len(batches) == 1 and 0 not in batches
    return "strong" if is_same else requested
