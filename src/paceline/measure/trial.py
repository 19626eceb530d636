"""Try a user's script for some optimizer steps, and return how long their stages took.

A trial is ``paceline run`` in a child process, with its own run folder and ``PACELINE_STOP_AFTER``:
each rank times all steps, and leaves after the last of them without the script's own end
(``launch.probe.trial_end``). The working directory, the arguments and the environment are the
user's, so that paths to data hold.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from paceline import env
from paceline.errors import EXIT_FAILED, Finding, SetupError, option_invalid
from paceline.launch.monitor import timed_steps
from paceline.launch.monitor.timed_steps import Durations
from paceline.launch.plan import folder_errors
from paceline.machine import own_process, system
from paceline.measure import files_as_before
from paceline.rundir import events, files
from paceline.rundir.files import RUNS, RunDir

_MOST_LINES = 4  # of what a failed launcher printed
_END_S = 15.0  # how long a launcher may take to end its ranks


def start(
    words: Sequence[str], *, environ: Mapping[str, str], output: IO[Any]
) -> subprocess.Popen[bytes]:
    """Start ``paceline`` in the working folder."""
    return subprocess.Popen(
        own_process.command(*words),
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  # imports nothing and takes no lock
    )


def end(child: subprocess.Popen[bytes]) -> None:
    """End a launcher and its ranks; return when it has ended."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)
        return
    child.kill()
    child.wait()


def reason(finding: Finding | None, output: str) -> tuple[str, ...]:
    """Return why a launcher failed: its first finding, or else the end of what it printed. Pure."""
    if finding is None:
        return tuple(output.strip().splitlines()[-_MOST_LINES:])
    head = f"{finding.code} {finding.name}: {finding.what}"
    return (head, *finding.evidence[:_MOST_LINES])


def _end_with_parent() -> None:
    system.die_with_parent(signal.SIGTERM)


FEWEST_STEPS = 4  # the first two steps of a trial are not timed
_TICK_S = 0.2
_MOST_BYTES = 1 << 26
_TAIL_CHARACTERS = 4000


@dataclass(frozen=True)
class Trial:
    """A script to try."""

    command: tuple[str, ...]  # the script and its arguments
    world_size: int  # number of ranks, all on this node
    # number of optimizer steps, at least ``FEWEST_STEPS``; 0 lets the script end by itself
    steps: int
    run_dir: Path  # the trial's own run folder, which must not exist
    options: tuple[str, ...] = ()  # further options of ``paceline run``
    variables: Mapping[str, str] = field(default_factory=dict)  # further environment variables
    timeout_s: float = 600.0  # seconds that the trial may take, with the start of the script

    @property
    def launch(self) -> list[str]:
        """The words of ``paceline run`` that a user would type to start the same."""
        ranks = ["--nproc-per-node", str(self.world_size)]
        return ["paceline", "run", *ranks, *self.options, *self.command]


@dataclass(frozen=True)
class TrialResult:
    """What a trial has shown."""

    # durations of the stages in nanoseconds, by step and rank, in the order of
    # ``launch.monitor.stage_times.STAGES``. Step n is the one after n optimizer steps.
    steps: Mapping[int, Mapping[int, Durations]] = field(default_factory=dict)
    finding: Finding | None = None  # why the trial is of no use; None if it went well
    exit_status: int = 0  # exit status of ``paceline run``
    seconds: float = 0.0  # duration of the trial, with the start of the script
    samples_per_step: int = 0  # samples of an optimizer step over all ranks; 0 if unknown
    # CPU time that the threads of a rank take in a step, in seconds; 0 if unknown
    cpu_s_per_step: float = 0.0
    hosts: Mapping[int, str] = field(default_factory=dict)  # host by rank
    # loss of the last timed steps by step, the mean over the ranks
    losses: Mapping[int, float] = field(default_factory=dict)
    # bytes of gradients that DistributedDataParallel reduces; None if unknown
    gradient_bytes: int | None = None
    bucket_bytes: tuple[int, ...] | None = None  # sizes of its buckets; None if unknown
    applied: tuple[str, ...] = ()  # names of the settings of ``PACELINE_TRY_DDP`` that took effect
    launcher_findings: tuple[Finding, ...] = ()  # what the launcher has found in it


def run(trial: Trial, tick: Callable[[], None] = lambda: None) -> TrialResult:
    """Run a trial to its end; ``tick`` is called several times a second, for a progress bar."""
    start_s = time.monotonic()
    status, output = launch(trial, tick)
    seconds = time.monotonic() - start_s
    run_dir = RunDir(trial.run_dir)
    ends = _ends(run_dir)
    steps = timed_steps.from_json(_read(run_dir.timed_steps))
    facts = [_read(run_dir.trial(rank)) for rank in range(trial.world_size)]
    first = facts[0]
    report = report_in(output)
    samples = sum(of_rank.get("samples_per_batch", 0) for of_rank in facts)
    sizes = first.get("bucket_bytes")
    return TrialResult(
        steps=steps,
        finding=judge(
            trial,
            exit_status=status,
            report=report,
            counts=[end["steps"] for end in ends],
            steps=steps,
        ),
        exit_status=EXIT_FAILED if status is None else status,
        seconds=seconds,
        samples_per_step=round(samples * first.get("batches_per_step", 0)),
        cpu_s_per_step=statistics.fmean(of_rank.get("cpu_s_per_step", 0.0) for of_rank in facts),
        hosts={end["rank"]: end["host"] for end in ends},
        losses=_mean_losses(facts),
        gradient_bytes=first.get("gradient_bytes"),
        bucket_bytes=None if sizes is None else tuple(sizes),
        applied=tuple(first.get("applied", ())),
        launcher_findings=tuple(map(Finding.from_json, report.get("findings") or ())),
    )


def _ends(run_dir: RunDir) -> list[dict[str, Any]]:
    """Return how the ranks have ended; empty if that was not recorded."""
    try:
        recorded = events.read(run_dir.events(0))
    except OSError:
        return []
    ends = [event["ends"] for event in recorded if event["kind"] == "end"]
    return list(ends[-1]) if ends else []


def launch(trial: Trial, tick: Callable[[], None] = lambda: None) -> tuple[int | None, str]:
    """Run the command; return its exit status, None if it took too long, and its output."""
    own = ["--json", "--no-slurm", "--run-dir", str(trial.run_dir)]
    words = [*trial.launch[1:4], *own, *trial.launch[4:]]
    environ = {
        **env.snapshot(),
        env.PROVE: "0",
        **trial.variables,
        **({env.STOP_AFTER: str(trial.steps)} if trial.steps else {}),
    }
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = start(words, environ=environ, output=output)
        status = _wait(child, trial.timeout_s, tick)
        files_as_before.put_back()  # the next trial begins with the same files
        output.seek(0)
        return status, output.read()


def _wait(child: subprocess.Popen[bytes], timeout_s: float, tick: Callable[[], None]) -> int | None:
    """Wait for a launcher; end it if it takes too long, or if this process is interrupted."""
    deadline_s = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_TICK_S)
            tick()
        return None
    finally:
        if child.poll() is None:
            end(child)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a file of the run folder; empty if it was not written."""
    try:
        return dict(files.read_json(path, most_bytes=_MOST_BYTES))
    except (OSError, ValueError, TypeError):
        return {}


def report_in(output: str) -> dict[str, Any]:
    """Return the report that ``paceline run --json`` printed last; empty without one."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
    return {"output": output[-_TAIL_CHARACTERS:]}


def _mean_losses(facts: list[dict[str, Any]]) -> dict[int, float]:
    """Return the mean loss over the ranks, of the steps at which all of them have one."""
    losses = [
        {int(step): loss for step, loss in of_rank.get("losses", {}).items()} for of_rank in facts
    ]
    common = set.intersection(*(set(by_step) for by_step in losses))
    return {step: sum(by_step[step] for by_step in losses) / len(losses) for step in sorted(common)}


def judge(
    trial: Trial,
    *,
    exit_status: int | None,  # of the launcher; None if the trial took too long
    report: Mapping[str, Any],  # of the launcher
    counts: Sequence[int],  # optimizer steps of each rank
    steps: Mapping[int, object],  # those that were timed
) -> Finding | None:
    """Decide why a trial is of no use; return None if it went well. Pure."""
    reached = min(counts, default=0)
    if exit_status is None:
        return _too_slow(trial, reached)
    if exit_status:
        return _failed(trial, exit_status, report)
    if not max(counts, default=0):
        return _without_steps(trial)
    if reached < trial.steps:
        return _too_short(trial, reached)
    return _not_timed(trial) if not steps else None


def _words(trial: Trial) -> str:
    ranks = "1 rank" if trial.world_size == 1 else f"{trial.world_size} ranks"
    return f"{trial.command[0]} on {ranks}"


def _too_slow(trial: Trial, reached: int) -> Finding:
    fewer = "try fewer steps (--steps), or a script that starts faster"
    return Finding(
        "trial-too-slow",
        f"{_words(trial)} made {reached} of {trial.steps} optimizer steps in"
        f" {trial.timeout_s:.0f} s",
        evidence=(_folder(trial),),
        fix=fewer if reached else shlex.join(trial.launch),  # a run shows where ranks wait
    )


def _failed(trial: Trial, exit_status: int, report: Mapping[str, Any]) -> Finding:
    findings = report.get("findings") or ()
    first = Finding.from_json(findings[0]) if findings else None
    evidence = reason(first, report.get("output", ""))
    if first is None:
        evidence = (f"paceline run ended with exit status {exit_status}", *evidence)
    return Finding(
        "trial-failed",
        f"{_words(trial)} failed in a trial of {trial.steps} optimizer steps",
        evidence=(*evidence, _folder(trial)),
        fix=shlex.join(trial.launch),
    )


def _without_steps(trial: Trial) -> Finding:
    return Finding(
        "trial-without-steps",
        f"{_words(trial)} ended without an optimizer step",
        evidence=("counted: step() of optimizers of torch.optim, in the processes of the ranks",),
        fix="name the script that trains, with the arguments that make it train",
    )


def _too_short(trial: Trial, reached: int) -> Finding:
    return Finding(
        "trial-too-short",
        f"{_words(trial)} ended after {reached} of {trial.steps} optimizer steps",
        why="speed is measured while a script trains, without its start",
        fix=f"let the script train longer, or try fewer steps: --steps {max(4, reached)}",
    )


def _not_timed(trial: Trial) -> Finding:
    return Finding(
        "trial-without-steps",
        f"{_words(trial)} made optimizer steps, and none of them could be timed",
        evidence=("timed: steps after torch.autograd.backward of at most 500 backward passes",),
        fix="train with loss.backward() and an optimizer of torch.optim",
    )


def _folder(trial: Trial) -> str:
    return f"its run folder: {files.display_path(trial.run_dir)}"


Say = Callable[[str], Callable[[], None]]


def new_folder(command: str, script: str, requested: Path | None) -> Path:
    """Create the run folder of a command such as ``"bench"``, with one for those of trials.

    Raises UsageError if the requested folder has trials, SetupError if it cannot be written.
    """
    name = f"{command}-{files.script_stem(script)}"
    new_id = files.new_run_id(name, now_s=time.time(), salt=secrets.token_hex(2))
    root = requested or RUNS / new_id
    try:
        (root / "trials").mkdir(parents=True)
        files.require_space(root)
    except FileExistsError:
        what = f"{root} has the trials of another {command}"
        raise option_invalid(what, where="--run-dir", fix="--run-dir NEW-FOLDER") from None
    except OSError as error:
        raise SetupError(folder_errors.unusable(root, error, option="--run-dir")) from None
    return root.absolute()


@contextmanager
def progress(num_trials: int) -> Iterator[Say]:
    """Show a progress bar on stderr, if a person looks at it.

    It has no thread, because trials are started by a fork.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=num_trials)
    num_begun = 0

    def say(words: str) -> Any:
        nonlocal num_begun
        bar.update(task, description=words, completed=num_begun, refresh=True)
        num_begun += 1
        return bar.refresh

    with bar:
        yield say
