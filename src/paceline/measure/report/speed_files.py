"""Read the files in which a launcher keeps the speed of a run: ``speed.jsonl``, ``speed.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from paceline.launch.monitor import step_parts
from paceline.measure.report.facts import RankTime, SpeedPoint, StepSplit
from paceline.measure.report.untrusted import OTHER_CONTENT, finite, positive
from paceline.rundir import files
from paceline.rundir.files import RunDir

_MOST_BYTES = 1 << 26


def read_log(run_dir: RunDir, num_ranks: int) -> tuple[list[SpeedPoint], list[str]]:
    """Return the speed of a run over time, and sentences about what could not be read."""
    try:
        lines = files.read_bytes(run_dir.speed_log, most_bytes=_MOST_BYTES).splitlines()
    except FileNotFoundError:
        reason = "the run was shorter than 5 s, or was started with --no-probe"
        return [], [f"no speed over time: {reason}"]
    except (OSError, ValueError) as error:
        return [], [f"{run_dir.speed_log.name} cannot be read: {error}"]
    points = [point for line in lines if (point := _point(line, num_ranks)) is not None]
    num_unreadable = len(lines) - len(points)
    notes = [f"speed.jsonl: {num_unreadable} of {len(lines)} lines are not readable"]
    return points, notes if num_unreadable else []


def _point(line: bytes, num_ranks: int) -> SpeedPoint | None:
    """Return the speed of a line; None if it is cut off or of another form."""
    try:
        values = json.loads(line)
        loss = values.get("loss")
        samples = finite(values["samples_per_batch"]) * finite(values["batches_per_step"])
        return SpeedPoint(
            attempt=int(values["attempt"]),
            time_s=finite(values["time_s"]),
            steps=int(values["steps"]),
            loss=None if loss is None else float(loss),
            samples_per_step=samples,
            split=split_of(values.get("step"), num_ranks),
            steps_per_s=finite(values.get("steps_per_s", 0.0)),
        )
    except OTHER_CONTENT:
        return None


def split_of(step: Mapping[str, Any] | None, num_ranks: int) -> StepSplit | None:
    """Return the split of a step that a launcher described; None if there is none. Pure.

    Args:
        step: What ``stage_times.describe`` returned.
        num_ranks: Number of ranks.
    """
    try:
        if not step:
            return None
        parts = step_parts.parts(step, num_ranks)
        named = step.get("named")
        return StepSplit(
            seconds=positive(step["seconds"]),
            parts={name: finite(seconds) for name, seconds in parts.items()},
            late_rank=step_parts.late_rank(named) if named else "",
            timed_steps=int(step["timed_steps"]),
        )
    except OTHER_CONTENT:
        return None


def read_ranks(run_dir: RunDir) -> tuple[list[RankTime], Mapping[str, int]]:
    """Return what a step costs each rank, and the number of GPUs by host.

    Both are empty if the run has written no ``speed.json``, or one of another form.
    """
    try:
        speed = files.read_json(run_dir.speed, most_bytes=_MOST_BYTES)
        ranks = [_rank(values) for values in speed["ranks"] if values["steps"] > 1]
        gpus = Counter(str(gpu["host"]) for gpu in speed["gpus"])
    except (OSError, *OTHER_CONTENT):
        return [], {}
    return ranks, gpus


def _rank(values: Mapping[str, Any]) -> RankTime:
    num_intervals = int(values["steps"]) - 1  # the first step has no beginning
    return RankTime(
        rank=int(values["rank"]),
        host=str(values["host"]),
        own_s=finite(values["own_s"]) / num_intervals,
        data_s=finite(values["data_s"]) / num_intervals,
    )
