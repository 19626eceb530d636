"""Decide which settings are tried, and what each is worth. Pure.

Settings of DistributedDataParallel are applied from outside (``launch.probe.ddp_settings``), others
are environment variables. A setting is compared with trials without it that took turns with its
own. Beside one that changes arithmetic stands the loss after the same number of samples.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline import env
from paceline.errors import closest, option_invalid
from paceline.launch.monitor.timed_steps import Durations
from paceline.launch.probe.ddp_settings import AUTOCAST, HOOK
from paceline.measure import bench_file, intervals
from paceline.measure.bench_file import WorldBench
from paceline.measure.intervals import Interval
from paceline.measure.trial import TrialResult

ALL = "all"
ACCUMULATED = 4  # batches of a step
LOSS_STEPS = 10  # the last steps of a trial, over which the loss is averaged
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=\S*")


@dataclass(frozen=True)
class TriedSetting:
    """Something to try."""

    name: str  # its name in ``--settings`` and in the table
    line: str  # how a user sets it
    ddp: Mapping[str, Any] = field(default_factory=dict)  # settings of DistributedDataParallel
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables
    changes_arithmetic: bool = False  # whether results differ by more than the order of sums

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of its trials."""
        ddp = {env.TRY_DDP: json.dumps(dict(self.ddp))} if self.ddp else {}
        return {**self.variables, **ddp}


@dataclass(frozen=True)
class Worth:
    """What a setting is worth."""

    name: str  # name of the setting
    line: str  # how a user sets it
    ranks: int  # number of ranks
    # samples per second as a multiple of those without it; None if it was not judged
    gain: Interval | None = None
    reason: str = ""  # why it was not judged; empty if it was
    changes_arithmetic: bool = False  # whether results differ by more than the order of sums
    loss: float | None = None  # mean loss of the last steps over all rounds; None if unknown
    loss_without: float | None = None  # the same without the setting
    # whether the gain was calculated from other steps, and not measured
    is_calculated: bool = False


def offered(*, backend: str, cpus: int, ranks: int) -> list[TriedSetting]:
    """Return the settings that ``--settings all`` tries."""
    algorithms = ("Ring", "Tree") if backend == "nccl" else ()
    thread_counts = sorted({1, max(1, cpus // ranks), cpus})
    return [
        *_of_ddp(),
        *(variable(f"NCCL_ALGO={algorithm}") for algorithm in algorithms),
        *(variable(f"{env.OMP_THREADS}={threads}") for threads in thread_counts),
    ]


def _of_ddp() -> Iterator[TriedSetting]:
    for megabytes in (5, 100):
        yield TriedSetting(
            f"bucket-{megabytes}mb",
            f"DistributedDataParallel(bucket_cap_mb={megabytes})",
            {"bucket_cap_mb": megabytes},
        )
    for name in ("static_graph", "gradient_as_bucket_view"):
        line = f"DistributedDataParallel({name}=True)"
        yield TriedSetting(name.replace("_", "-"), line, {name: True})
    for short, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        line = f"model.register_comm_hook(None, default_hooks.{short}_compress_hook)"
        yield TriedSetting(f"{short}-hook", line, {HOOK: dtype}, changes_arithmetic=True)
    line = "with torch.autocast(device, torch.bfloat16): around the forward"
    yield TriedSetting("bf16-autocast", line, {AUTOCAST: "bfloat16"}, changes_arithmetic=True)


def variable(text: str) -> TriedSetting:
    """Return the setting of an environment variable, ``NAME=VALUE``."""
    name, _, value = text.partition("=")
    return TriedSetting(text, f"export {text}", variables={name: value})


def choose(text: str, offers: Sequence[TriedSetting]) -> list[TriedSetting]:
    """Return the settings that ``--settings`` names: ``all``, or names and ``VARIABLE=VALUE``.

    Raises UsageError if a name is unknown.
    """
    if text == ALL:
        return list(offers)
    by_name = {setting.name: setting for setting in offers}
    return [_named(word.strip(), by_name) for word in text.split(",")]


def _named(word: str, by_name: Mapping[str, TriedSetting]) -> TriedSetting:
    if word in by_name:
        return by_name[word]
    if _VARIABLE.fullmatch(word):
        return variable(word)
    near = closest(word, by_name) or ALL
    raise option_invalid(
        f"--settings has no setting {word!r}",
        where="--settings",
        evidence=(f"there are: {', '.join(by_name)}", "or VARIABLE=VALUE"),
        fix=f"--settings {near}",
    )


def judge(
    setting: TriedSetting,
    results: Sequence[TrialResult],  # its trials
    without: Sequence[TrialResult],  # the trials without it, all of which went well
    *,
    first: int,  # the first step that counts, after the warm-up
) -> Worth:
    """Return what a setting is worth."""
    worth = Worth(
        setting.name,
        setting.line,
        len(without[0].hosts),
        changes_arithmetic=setting.changes_arithmetic,
    )
    reason = _why_not(setting, results)
    if reason:
        return _replaced(worth, reason=reason)
    times = bench_file.window_times([_after(result, first) for result in results])
    times_without = bench_file.window_times([_after(result, first) for result in without])
    return _replaced(
        worth,
        gain=intervals.ratio(times_without, times),
        loss=_loss(results),
        loss_without=_loss(without),
    )


def _replaced(worth: Worth, **values: Any) -> Worth:
    return Worth(**{**worth.__dict__, **values})


def _why_not(setting: TriedSetting, results: Sequence[TrialResult]) -> str:
    """Return why a setting cannot be judged; empty if it can."""
    for result in results:
        if result.finding is not None:
            lines = (*result.finding.evidence, result.finding.what)
            return f"the script fails with it: {lines[0]}"
        if set(setting.ddp) - set(result.applied):
            return "the script's framework does not construct DistributedDataParallel"
    return ""


def _after(result: TrialResult, first: int) -> Mapping[int, Any]:
    return {step: ranks for step, ranks in result.steps.items() if step >= first}


def _loss(results: Sequence[TrialResult]) -> float | None:
    """Return the mean loss of the last steps of all rounds; None if it is unknown."""
    losses = [loss for result in results for _, loss in sorted(result.losses.items())[-LOSS_STEPS:]]
    return statistics.fmean(losses) if losses else None


def accumulation(world: WorldBench) -> Worth | None:
    """Return what accumulating gradients over ``ACCUMULATED`` batches would be worth.

    It cannot be tried in a script that makes a step with each batch. Exchanging once instead of
    ``ACCUMULATED`` times saves the other exchanges, as far as no computing hides them. None for a
    single rank, which exchanges nothing.
    """
    size = len(world.hosts)
    if size < 2:
        return None
    gains = [[_accumulated(steps[step]) for step in sorted(steps)] for steps in world.rounds]
    return Worth(
        f"accumulate-{ACCUMULATED}",
        f"with model.no_sync(): around the backward of all but each {ACCUMULATED}th batch",
        size,
        gain=intervals.median(gains),
        changes_arithmetic=True,
        is_calculated=True,
    )


def _accumulated(step: Mapping[int, Durations]) -> float:
    """Return the gain of one step, from the exchange of the rank that came last to it."""
    last = max(step, key=lambda rank: sum(step[rank][:-1]))
    total, exchange = sum(step[last]), step[last][-1]
    return total / (total - exchange * (1 - 1 / ACCUMULATED))
