"""Choose, create and own the run folder of a node; ``node`` writes ``plan.json`` into it."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import Finding, Notice, SetupError, UsageError
from paceline.launch.outcome import resume
from paceline.launch.outcome.resume import ResumeCommand
from paceline.launch.plan import folder_errors
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import FUNCTION, RankTask
from paceline.launch.run.console import Console
from paceline.launch.run.notices import Notices
from paceline.rundir import events, identity, lease, lease_file, ownership, sweeps
from paceline.rundir.files import RUNS, RunDir, display_path, new_run_id
from paceline.rundir.identity import Training
from paceline.rundir.lease import Lease
from paceline.text.quoting import word


@dataclass
class RunFolder:
    """The run folder, as this start of the run uses it."""

    run_dir: RunDir  # its files
    first_attempt: int  # number of this start's first attempt in the folder
    # the lease by which this run owns the folder; None if another node holds it
    lease: Lease | None = None

    def event(self, kind: str, *, node: int, **fields: Any) -> None:
        """Append an event of a node."""
        with contextlib.suppress(OSError):  # a full disk must not end a run
            events.append(self.run_dir.events(node), node=node, kind=kind, **fields)

    def own(self, token: str, training: Training, *, say: Callable[[str], None]) -> Notice | None:
        """Become the owner of the run folder for all nodes; return the notice to print, if any.

        Raises UsageError if the folder belongs to a living run, or to another array element.
        """
        root = self.run_dir.root
        recorded = identity.read(self.run_dir)
        conflict = identity.conflict(root, recorded, training)
        if conflict is not None:
            raise UsageError(conflict)
        owner = lease_file.this_process(token, element=training.element)
        try:
            self.lease = lease.take(root, owner, say=say)
        except OSError as error:
            say(f"the lease of the run folder {root} cannot be written: {error.strerror}")
        differences = identity.differences(recorded, training) if recorded is not None else []
        identity.record(self.run_dir, training)
        if not differences:
            return None
        return Notice(f"{root} is continued by another command", tuple(differences))

    def release(self) -> None:
        """Give up the ownership of the run folder at the end of the run."""
        if self.lease is not None:
            self.lease.release()


def find_earlier(
    options: Options,
    training: Training,
    *,
    say: Callable[[str], None],
) -> Path | None:
    """Return the folder to continue in, as typed or of an earlier start; None for a new run.

    Raises UsageError if others own or may write the folder of the earlier start.
    """
    if options.run_dir is not None:
        return Path(options.run_dir)
    restarts = env.read(env.JOB_RESTARTS)
    if options.no_slurm or not training.job or restarts in (None, "0"):
        return None
    folder = _folder_of_job(training)
    if folder is not None:
        say(f"job {training.job} was queued again: it continues in {folder}")
    return folder


def new_name(options: Options, training: Training) -> str:
    """Return the name of a new run folder."""
    job = f"{training.array_job}_{training.array_task}" if training.array_task else training.job
    script = options.script or "function"
    return new_run_id(script, now_s=time.time(), salt=secrets.token_hex(2), job=job)


def make(
    options: Options,
    name: str,  # name of the folder if ``--run-dir`` is not given
    *,
    is_new: bool,  # whether this node chose the name for a new run: then no other run may have it
    console: Console,  # prints where the folder is, if that is not the usual place
    notices: Notices,  # prints the reason
) -> RunDir:
    """Create the run folder with an absolute path: ranks may change their working directory.

    Raises SetupError if the folder cannot be created, or another run has it.
    """
    if options.run_dir is not None:
        named = RunDir(Path(options.run_dir).absolute())
        try:
            named.create()
        except OSError as error:
            raise SetupError(
                folder_errors.unusable(named.root, error, option="--run-dir")
            ) from None
        return named
    usual = RunDir(RUNS.absolute() / name)
    # The folder alone proves nothing: another node of this run may have created it first.
    if is_new and (usual.lease.exists() or usual.training.exists()):
        raise SetupError(_name_taken(usual.root))
    try:
        usual.create()
    except OSError as error:
        return _make_spare(name, usual, error, console=console, notices=notices)
    return usual


def _make_spare(
    name: str,
    usual: RunDir,
    error: OSError,
    *,
    console: Console,
    notices: Notices,
) -> RunDir:
    """Create the run folder in the system's folder for temporary files, and print the reason."""
    why = folder_errors.unusable(usual.root.parent, error, option="--run-dir", severity="warning")
    try:
        spare = RunDir(Path(tempfile.mkdtemp(prefix="paceline-")) / name)
        spare.create()
    except OSError:
        raise SetupError(replace(why, severity="error")) from None
    if why.name == "disk-full":
        notices.warn(why)
    reason = f"{RUNS}/ cannot be written here: {error.strerror}"
    console.say(f"run folder {spare.root}, because {reason}")
    return spare


def resume_command(run_dir: RunDir, options: Options, plan: Plan, task: RankTask) -> ResumeCommand:
    """Return the resume command of the run."""
    job_id = env.slurm_job()
    script = sweeps.job_script(run_dir, job_id)
    submission = (*sweeps.element_option(job_id), display_path(script)) if script.exists() else ()
    return resume.plan(
        options,
        run_dir=display_path(run_dir.root),
        function=task.kind == FUNCTION,
        numbered=plan.rendezvous == "static",
        environ=env.snapshot(),
        submission=submission,
    )


def _folder_of_job(training: Training) -> Path | None:
    """Return the folder of this command in the Slurm job before its requeue; None if not found."""
    paths = sorted(RUNS.glob(f"*-{training.job}-*"))
    paths += sorted(RUNS.glob(f"*-{training.array_job}_*"))
    same = [path for path in paths if _is_of(identity.read(RunDir(path)), training)]
    own = [path for path in same if ownership.judge(path, trusts_group=True) is None]
    if same and not own:
        fix = f"paceline run --run-dir {word(str(same[-1]))} ..."
        ownership.require(same[-1], fix=fix, trusts_group=True)
    return own[-1] if own else None


def _is_of(owner: Training | None, training: Training) -> bool:
    return owner is not None and owner.job == training.job and owner.same_as(training)


def _name_taken(folder: Path) -> Finding:
    return Finding(
        "folder-not-writable",
        f"another run has chosen the same run folder {folder} in the same second",
        where=str(folder),
        fix="start this run again",
    )
