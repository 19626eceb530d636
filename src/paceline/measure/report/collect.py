"""Collect what a report shows of a run from its folder, whatever state that is in.

A run may have crashed, may still run, may be older than a file that is read here. What is not there
is left out, and a sentence says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.errors import Finding, SetupError
from paceline.launch.monitor.stage_times import MIN_STEPS
from paceline.machine import processes
from paceline.measure import speed
from paceline.measure.report import measured_files, metrics
from paceline.measure.report.facts import AttemptFacts, ReportedRun, SpeedPoint, StepSplit
from paceline.measure.report.measured_files import OTHER_CONTENT
from paceline.measure.report.speed import mean_split
from paceline.rundir import events, files, identity, sweeps
from paceline.rundir.events import History
from paceline.rundir.files import RunDir

_EVENTS, _BENCH = "events.jsonl", "bench.json"
_TRIALS = f"trials/*/{_EVENTS}"
_SOFTWARE = {"python": "Python", "torch_cuda": "CUDA of torch", "nccl": "NCCL"}


def collect(
    # run folders or sweeps, or names of such in ``paceline-runs``. Of a sweep, all elements that
    # have started; of a verify, its trials
    names: Sequence[str],
) -> list[ReportedRun]:
    """Return the runs that a user names; without names the latest one.

    Raises SetupError if a folder does not exist, or there is nothing of a run in it.
    """
    if not names:
        what = "no run in paceline-runs has been started"
        latest = speed.latest(_EVENTS, _BENCH, _TRIALS, advice=_no_run(what))
        return [read(run_dir) for run_dir in _run_dirs(latest, latest.root.name)]
    named = [(speed.named(name, advice=_no_run("")), name) for name in names]
    run_dirs = [run_dir for folder, name in named for run_dir in _run_dirs(folder, name)]
    # A run may be named twice, by itself and as an element of its sweep.
    return [read(run_dir) for run_dir in dict.fromkeys(run_dirs)]


def _run_dirs(run_dir: RunDir, name: str) -> list[RunDir]:
    """Return the folder of a run, or those of the elements of a sweep, or of verify's trials."""
    sweep_record = sweeps.read(run_dir.root)
    if sweep_record is None:
        # The folder of a verify has no events of its own: each of its trials is a run.
        is_run = any((run_dir.root / file).exists() for file in (_EVENTS, _BENCH))
        trials = [] if is_run else sorted(run_dir.root.glob(_TRIALS))
        return [RunDir(path.parent) for path in trials] or [run_dir]
    folders = (sweeps.folder_of(run_dir.root, index) for index in sorted(sweep_record.elements))
    started = [RunDir(folder) for folder in folders if (folder / _EVENTS).exists()]
    if not started:
        raise SetupError(_no_run(f"no element of the sweep {name} has started"))
    return started


def _no_run(what: str) -> Finding:
    return Finding(
        "input-unreadable",
        what,
        evidence=("a run folder has events.jsonl, metrics.csv or bench.json",),
        fix="paceline report RUN, with the run folder that the launcher printed",
    )


def read(run_dir: RunDir) -> ReportedRun:
    """Return what the folder of a run says.

    Raises SetupError if there is nothing of a run in it.
    """
    records, event_notes = _events(run_dir.root)
    history = events.history_of(records)
    every_start = _starts(records)
    # Nodes may have changed from one start to the next: ranks and hosts are those of the last.
    last = max((start["attempt"] for start in every_start), default=0)
    starts = [start for start in every_start if start["attempt"] == last]
    world_size = max((int(start["world_size"]) for start in starts), default=0)
    numbers, metric_notes = metrics.read(run_dir)
    speed, speed_notes = measured_files.read_log(run_dir, world_size)
    file_notes: list[str] = []
    ranks, gpus = measured_files.read_ranks(run_dir, file_notes)
    bench = measured_files.read_bench(run_dir, file_notes)
    run = ReportedRun(
        name=run_dir.root.absolute().name,
        folder=files.display_path(run_dir.root),
        command=_command(run_dir) or (bench.command if bench else ()),
        state=_state(history),
        world_size=world_size,
        hosts=tuple(sorted({str(start["host"]) for start in starts})),
        attempts=tuple(_attempts(records, speed)),
        steps=_steps(history, speed),
        metrics=numbers,
        speed=tuple(speed),
        split=_split(records, speed, world_size),
        ranks=tuple(ranks),
        findings=history.outcome.findings if history.outcome else (),
        bench=bench,
        scaling=bench.figures if bench is not None else (),
        forecast=measured_files.read_forecast(run_dir, file_notes),
        environment=_environment(run_dir, gpus),
    )
    has_content = any((records, numbers, speed, run.bench, run.forecast, run.environment))
    if not has_content:
        raise SetupError(_no_run(f"{run.folder} holds no run"))
    # A bench trains nothing, so a training run's files are not missing from it.
    is_training = bool(records) or run.bench is None
    training_notes = [*metric_notes, *speed_notes, *_step_notes(run)] if is_training else []
    return replace(run, notes=(*event_notes, *training_notes, *file_notes))


def _step_notes(run: ReportedRun) -> list[str]:
    """Return what is not known about the steps of a run."""
    if not run.steps:
        return []
    notes = []
    if run.split is None:
        notes.append(f"no split of a step: fewer than {MIN_STEPS} steps were timed")
    if run.speed and not any(point.samples_per_step for point in run.speed):
        notes.append(f"no samples/s: {measured_files.UNKNOWN_SAMPLES}")
    return notes


def _events(folder: Path) -> tuple[list[list[dict[str, Any]]], list[str]]:
    """Return the events of all nodes, that of node 0 first, and what could not be read of them."""
    try:
        paths = events.paths(folder)
    except OSError as error:
        return [], [f"events cannot be read: {error}"]
    records, notes = [], []
    for path in paths:
        try:
            record, num_lines = events.read_counted(path)
        except OSError as error:
            notes.append(f"{path.name} cannot be read: {error}")
            continue
        records.append(record)
        # The last line of a run that lives may be half written.
        num_unreadable = num_lines - len(record)
        if num_unreadable:
            notes.append(f"{path.name}: {num_unreadable} of {num_lines} lines are not readable")
    return [record for record in records if record], notes


def _starts(records: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Return the start events that have the fields which are read here."""
    fields = {"attempt", "time_ns", "world_size", "host"}
    return [
        event
        for record in records
        for event in record
        if event.get("kind") == "start"
        and fields <= set(event)
        and isinstance(event["world_size"], int)
    ]


def _state(history: History) -> str:
    if history.outcome is not None:
        return history.outcome.word
    return events.state_by_processes(history, processes.is_alive)


def _command(run_dir: RunDir) -> tuple[str, ...]:
    training = identity.read(run_dir)
    return (training.script, *training.arguments) if training is not None else ()


def _attempts(
    records: Sequence[Sequence[Mapping[str, Any]]], speed: Sequence[SpeedPoint]
) -> list[AttemptFacts]:
    """Return the starts of a run, from its events and the times at which its speed was written."""
    times: dict[int, list[float]] = {}
    for point in speed:
        times.setdefault(point.attempt, []).append(point.time_s)
    for record in records:
        for event in record:
            if event.get("kind") in ("start", "end") and "time_ns" in event:
                times.setdefault(event.get("attempt", 0), []).append(event["time_ns"] / 1e9)
    return [
        AttemptFacts(number, min(values), max(values)) for number, values in sorted(times.items())
    ]


def _steps(history: History, speed: Sequence[SpeedPoint]) -> int | None:
    """Return the steps of the last start: recorded at its end, or last counted."""
    if history.steps is not None:
        return history.steps
    return speed[-1].steps if speed else None


def _split(
    records: Sequence[Sequence[Mapping[str, Any]]], speed: Sequence[SpeedPoint], num_ranks: int
) -> StepSplit | None:
    """Return where the time of a step went in the last attempt.

    The log of the speed has all times of the attempt; which steps took long is said by the summary
    of the run, whose steps are from all of it.
    """
    logged = mean_split(speed)
    of_run = _split_of_summary(records, num_ranks)
    if logged is None or of_run is None:
        return logged or of_run
    return replace(logged, mean_s=of_run.mean_s, remarks=of_run.remarks)


def _split_of_summary(
    records: Sequence[Sequence[Mapping[str, Any]]], num_ranks: int
) -> StepSplit | None:
    outcomes = [event for record in records for event in record if event.get("kind") == "outcome"]
    last_start_ns = max((start["time_ns"] for start in _starts(records)), default=0)
    for outcome in outcomes:
        summary = outcome.get("summary")
        # The outcome of an earlier start is about other steps.
        if isinstance(summary, dict) and outcome.get("time_ns", 0) >= last_start_ns:
            split = measured_files.split_of(summary.get("step"), num_ranks)
            if split is not None:
                return split
    return None


def _environment(run_dir: RunDir, gpus: Mapping[str, int]) -> dict[str, str]:
    """Return what the latest plan says of the environment, with the reason of each choice."""
    values: dict[str, str] = {}
    if gpus:
        values["GPUs"] = ", ".join(f"{number} on {host}" for host, number in gpus.items())
    try:
        plan = files.read_json(_latest_plan(run_dir))
        for name, label in (("nproc", "ranks on node 0"), ("threads", "threads of a rank")):
            choice = plan[name]
            if choice["value"] is not None:  # paceline leaves the threads as they are
                values[label] = f"{choice['value']} ({choice['reason']})"
        values["backend"] = str(plan["backend"])
        values["start method"] = str(plan["start_method"]["value"])
        versions = plan.get("software", {})  # not in plans of earlier versions
        values |= {_SOFTWARE.get(name, name): str(version) for name, version in versions.items()}
    except (OSError, *OTHER_CONTENT):
        return values
    return {name: value for name, value in values.items() if value}


def _latest_plan(run_dir: RunDir) -> Path:
    """Return the plan that was written last; a path that does not exist if there is none."""
    plans = [path for path in run_dir.root.glob("plan*.json") if path.is_file()]
    return max(plans, key=lambda path: path.stat().st_mtime, default=run_dir.plan())
