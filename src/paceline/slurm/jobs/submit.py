"""``paceline submit``: create the run folder, write the job script into it, and call sbatch."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline import env
from paceline.diagnose import lint
from paceline.errors import (
    EXIT_OK,
    Finding,
    PacelineError,
    RunError,
    SetupError,
    UsageError,
    option_contradicted,
    option_invalid,
)
from paceline.launch.plan import script
from paceline.machine import own_process
from paceline.machine import slurm_commands as commands
from paceline.rundir import files
from paceline.rundir.files import RUNS, SECRET_MODE, RunDir, new_run_id, write_whole
from paceline.slurm import (
    batch,
    job_file,
    job_states,
    limits,
    option_rules,
    profile_files,
    record,
    request,
    sbatch,
    stop_signal,
)
from paceline.slurm.batch import JobPlace
from paceline.slurm.cluster import Cluster, query_cluster
from paceline.slurm.profile import Profile
from paceline.slurm.record import JobRecord
from paceline.slurm.request import SubmitRequest
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.text.quoting import CONTROL, word

_OF_LIBRARIES = ("NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "CUDA_LAUNCH")  # prefixes of variables
_MIN_RUN_S = 120  # Slurm may send the signal a minute early, and starting takes up to a minute


@dataclass(frozen=True)
class Queued:
    """What was queued."""

    job: JobRecord  # record of the job; of a sweep, what the records of its elements have in common
    place: JobPlace  # where its run folder, script and output are


def submit(name: str, arguments: Sequence[str], *, typed: Mapping[str, Any]) -> int:
    """Run ``paceline submit``."""
    _require_folder()
    if "again" in typed:
        from paceline.slurm.sweep import sweep_submit

        return sweep_submit.again(name, arguments, typed=typed)
    requested = parse(name, arguments, typed=typed)
    requested = _with_signal(requested, _require_script(requested))
    _warn_of_variables(requested)
    if typed.get("dry_run"):
        _print(_printed(requested))
        return EXIT_OK
    queued = queue(requested)
    as_json = bool(typed.get("json"))
    if requested.sweep is not None:
        from paceline.slurm.sweep import sweep_submit

        sweep_submit.report(queued.job, Path(queued.place.run_dir), requested.sweep, as_json)
        return EXIT_OK
    _report(queued.job, queued.place, as_json=as_json)
    if typed.get("follow"):
        from paceline.slurm.jobs import follow

        return follow.follow(RunDir(Path(queued.place.run_dir)))
    return EXIT_OK


def parse(name: str, arguments: Sequence[str], *, typed: Mapping[str, Any]) -> SubmitRequest:
    """Return the request of a command line: its options, those of its profile, and its sweep.

    Raises PacelineError if an option or the profile is invalid.
    """
    site = profile_files.load(typed["profile"]) if typed.get("profile") else Profile()
    if "from" in typed:
        site = _with_job_file(site, typed["from"])
    if "time" not in typed and "time" not in site.slurm:
        site = _with_time(site)
    return _with_sweep(request.parse(name, arguments, typed=typed, profile=site), typed)


def _with_job_file(site: Profile, path: str) -> Profile:
    source = lint.read(path)
    if source.finding is not None:
        raise UsageError(source.finding)
    site, left_out = job_file.taken(source.text, path, site)
    if left_out:
        terminal.say(f"not taken from {path}:\n  " + "\n  ".join(left_out))
    return site


def _printed(requested: SubmitRequest) -> str:
    """Return the job script of ``--dry-run``: Slurm is asked only for what the script needs."""
    place = replace(_place(requested), printed=True)
    if limits.lacks_cpus(requested):
        requested = _with_cpus(requested, _ask_cluster(requested))
    text = batch.render(requested, place)
    _require_sound(requested, text, alone=False)  # to answer in 0.3 s
    return text


def _require_sound(requested: SubmitRequest, text: str, *, alone: bool) -> None:
    """Refuse errors of lint in a job and its script."""
    script = "" if requested.direct else requested.script
    errors = lint.check_submitted(text, script, alone=alone)
    for finding in errors[1:]:
        terminal.show(finding.render(), sys.stderr)
    if errors:
        silence = f"# paceline: ignore {errors[0].name}"
        why = f"{errors[0].why} (nothing is submitted without {silence!r} in line 1 of the script)"
        raise RunError(replace(errors[0], why=why.lstrip()))


def _warn_of_variables(requested: SubmitRequest) -> None:
    """Warn of variables of NCCL and torch that the job takes along from this shell."""
    export = dict(requested.sbatch).get("export") or "ALL"
    replaced = {setting.name for setting in requested.profile.environment}
    environ = {
        name: value
        for name, value in env.snapshot().items()
        if name.startswith(_OF_LIBRARIES) and name not in replaced
    }
    if not environ or "ALL" not in export.upper().split(","):
        return
    from paceline.diagnose.lint.job.checks.environment import of_consequence
    from paceline.diagnose.variables import judge_settings

    for finding in of_consequence(judge_settings(environ, num_nodes=requested.min_nodes)):
        terminal.show(finding.render(), sys.stderr)


def queue(requested: SubmitRequest) -> Queued:
    """Check a request against the cluster, create its run folder, and call sbatch.

    With a sweep it becomes an array.
    """
    place = _place(requested)
    if shutil.which("sbatch") is None:  # before the run folder exists
        missing = commands.Reply(commands.MISSING)
        raise SetupError(sbatch.refusal(missing, known_options=tuple))
    cluster = _ask_cluster(requested)
    _require_possible(requested, cluster)
    if limits.lacks_cpus(requested):
        requested = _with_cpus(requested, cluster)
    text = batch.render(requested, place)
    _require_sound(requested, text, alone=True)
    _warn_of_early_signal(requested)
    if requested.sweep is not None:
        from paceline.slurm.sweep import sweep_submit

        environ = _environ(requested)
        job = sweep_submit.submit(requested, place, text, environ=environ)
    else:
        job = _submit(requested, place, text)
    return Queued(job, place)


def _with_sweep(requested: SubmitRequest, typed: Mapping[str, Any]) -> SubmitRequest:
    if not any(name in typed for name in ("array", "param")):
        return requested
    from paceline.slurm.sweep import sweep_submit

    return replace(requested, sweep=sweep_submit.choose(typed, requested.script_args))


def _with_time(site: Profile) -> Profile:
    """Add ``SBATCH_TIMELIMIT`` to a profile: the grace period and the script depend on it."""
    time_limit = env.read(env.SBATCH_TIME)
    if not time_limit:
        return site
    try:
        option_rules.check({"time": time_limit})
    except UsageError as error:
        fix = f"unset {env.SBATCH_TIME}, or give --time"
        raise UsageError(replace(error.finding, where=env.SBATCH_TIME, fix=fix)) from None
    return replace(site, slurm={**site.slurm, "time": time_limit})


def _require_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        what = f"the current folder is gone: {error.strerror}"
        raise option_invalid(what, where="current folder", fix="cd to one that is there") from None


def _print(text: str) -> None:
    """Print a script as UTF-8, also where the terminal has another encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()


def _require_script(requested: SubmitRequest) -> str:
    """Check that the script exists before the job is queued; return its text, empty if unknown."""
    options, site = requested.options, requested.profile
    by_name = options.module or (options.no_python and "/" not in options.script)
    provides_more = site.prefix or site.modules or site.lines or site.conda or site.container
    if by_name and provides_more:
        return ""  # a module or a setup line of the job may provide it
    try:
        return script.read(options)
    except PacelineError as error:
        fix = error.finding.fix.replace("paceline run ", "paceline submit ")
        raise type(error)(replace(error.finding, fix=fix)) from None


def _with_signal(requested: SubmitRequest, text: str) -> SubmitRequest:
    """Choose the signal at which the script saves, and warn if it is known to save at none."""
    reaction = stop_signal.look(text, script=requested.script)
    if reaction.finding is not None and requested.requeue:
        terminal.show(reaction.finding.render(), sys.stderr)
    return requested.saving_at(reaction.signal)


def _place(requested: SubmitRequest) -> JobPlace:
    folder = os.getcwd()
    now_s = time.time()
    runs = requested.profile.runs or str(RUNS)
    # Slurm itself prints these paths, and only plain text survives that
    name = new_run_id(requested.script, now_s=now_s, salt=os.urandom(2).hex())
    if requested.sweep is not None:
        name += "-sweep"
    run_dir = requested.run_dir or os.path.join(runs, name)
    run = RunDir(Path(os.path.abspath(run_dir)))
    _require_nameable(folder, "the current folder", "cd to a folder without them")
    _require_nameable(str(run.root), "the run folder", "--run-dir FOLDER", also="\\")
    return JobPlace(
        folder=folder,
        run_dir=str(run.root),
        script=str(run.job_script),
        output=str(run.job_output),
        paceline=own_command(),
        when=time.strftime("%Y-%m-%d %H:%M", time.localtime(now_s)),
    )


def _require_nameable(path: str, what: str, fix: str, *, also: str = "") -> None:
    """Refuse a path that an ``#SBATCH`` line cannot name: Slurm drops backslashes from outputs."""
    unusable = [letter for letter in path if letter in also or CONTROL.match(letter)]
    if unusable:
        raise option_invalid(
            f"Slurm cannot write to {what}, {path!r}: its name has {unusable[0]!r}", fix=fix
        )


def own_command() -> tuple[str, ...]:
    """Return the command that starts this installation of paceline, independent of the job's PATH.

    The installed script is preferred, as it is short to read in a job script.
    """
    command = os.path.join(os.path.dirname(sys.executable), "paceline")
    return (command,) if os.access(command, os.X_OK) else tuple(own_process.command())


def _with_shell_defaults(requested: SubmitRequest) -> SubmitRequest:
    """Return a request with the account and partition of sbatch's environment variables."""
    return replace(
        requested,
        account=requested.account or env.read(env.SBATCH_ACCOUNT) or "",
        partition=requested.partition or env.read(env.SBATCH_PARTITION) or "",
    )


def _ask_cluster(requested: SubmitRequest) -> Cluster:
    """Return the partitions and accounts of the cluster, as far as Slurm answers."""
    if any(name in ("clusters", "cluster-constraint") for name, _ in requested.sbatch):
        return Cluster()  # the job goes to another cluster than the one that answers here
    return query_cluster(account=bool(_with_shell_defaults(requested).account))


def _with_cpus(requested: SubmitRequest, cluster: Cluster) -> SubmitRequest:
    """Return a request for the CPUs that belong to its GPUs.

    Slurm may refuse them although the node has them: some cores may be reserved.
    """
    with_share = limits.with_cpus(_with_shell_defaults(requested), cluster)
    complete = replace(requested, cpus=with_share.cpus, cpus_why=with_share.cpus_why)
    if shutil.which("sbatch"):
        is_refused = sbatch.trial(complete, environ=_environ(complete)).status != 0
        if is_refused and sbatch.trial(requested, environ=_environ(requested)).status == 0:
            what = f"Slurm does not give {complete.cpus} CPUs with them ({complete.cpus_why})"
            raise UsageError(limits.no_cpus(requested, what))
    return complete


def _require_possible(requested: SubmitRequest, cluster: Cluster) -> None:
    """Refuse a request that exceeds the limits that Slurm reports."""
    effective = _with_shell_defaults(requested)
    findings = limits.judge(effective, cluster)
    fatal = next((finding for finding in findings if finding.severity == "error"), None)
    # a job submit plugin of the site may change the request so that it can be served
    trial = sbatch.trial(requested, environ=_environ(requested)) if fatal is not None else None
    if trial is not None and trial.status == 0:
        partition = re.search(r" in partition (\S+)", trial.err)
        name = partition[1] if partition else ""
        waits = limits.waits_forever(effective, cluster, partition=name)
        fatal = waits[0] if waits else None
        others = [finding for finding in findings if finding not in waits]
        findings = [*waits, *(replace(finding, severity="warning") for finding in others)]
    for finding in findings:
        if finding is not fatal:
            terminal.show(finding.render(), sys.stderr)
    if fatal is not None:
        raise UsageError(fatal)


def _submit(requested: SubmitRequest, place: JobPlace, text: str) -> JobRecord:
    run = RunDir(Path(place.run_dir))
    previous = record.read(run)
    _require_ended(previous, place)
    new = not run.root.exists()
    try:
        had_script = run.job_script.exists()
        old = files.read_bytes(run.job_script, most_bytes=1 << 24) if had_script else None
        run.create(new=new and not requested.run_dir)
        write_whole(run.job_script, text, mode=SECRET_MODE)
    except OSError as error:
        if new:
            files.discard(run.root)
        raise SetupError.of(
            "folder-not-writable",
            f"the run folder {run.root} cannot be written: {error.strerror}",
            where=str(run.root),
            fix="give another folder with --run-dir",
        ) from None
    answer = sbatch.submit(place.script, environ=_environ(requested))
    if not answer.job_id:
        raise SetupError(_submission_failure(answer.reply, run, new=new, old=old))
    answer.show_warnings()
    job = answer.record(requested, earlier_ids=previous.ids if previous else ())
    with record.recording(run.root, job.job_id):
        record.write(run, job)
    return job


def _submission_failure(
    result: commands.Reply, run: RunDir, *, new: bool, old: bytes | None
) -> Finding:
    """Return why there is no job, and restore the run folder if it was certainly not queued."""
    finding = sbatch.refusal(result, known_options=sbatch.sbatch_options)
    if sbatch.unsure(result):
        why = f"the run folder {run.root} is kept, since the job may have been queued nevertheless"
        return replace(
            finding,
            where=str(run.root),
            why=why,
            fix="squeue --me   (before it is submitted again)",
        )
    if new:
        files.discard(run.root)
    elif old is not None:
        # the script of the previous job, with which that job can be submitted again
        with contextlib.suppress(OSError):
            write_whole(run.job_script, old, mode=SECRET_MODE)
    return finding


def _warn_of_early_signal(requested: SubmitRequest) -> None:
    """Warn that a job may get the stop signal at its start: Slurm sends it up to a minute early."""
    if requested.time_s and requested.time_s - requested.signal_s < _MIN_RUN_S:
        finding = Finding(
            "grace-too-short",
            f"with --time {request.clock(requested.time_s)} the job may get the stop signal as soon"
            " as it starts",
            where=f"--signal=TERM@{requested.signal_s}",
            why=(
                "Slurm sends the signal up to a minute before the time that it is given (sbatch(1),"
                " --signal)"
            ),
            fix=f"--time {request.clock(4 * _MIN_RUN_S)}, or more",
            severity="warning",
        )
        terminal.show(finding.render(), sys.stderr)


def _require_ended(previous: JobRecord | None, place: JobPlace) -> None:
    """Refuse a run folder whose job has not ended: two jobs would write the same checkpoints."""
    if previous is None:
        return
    answer = job_states.state(previous)
    if not answer.has_answered:
        terminal.say(
            f"squeue does not show whether job {previous.job_id} of {place.run_dir} has ended; "
            "if it has not, two jobs write the same checkpoints"
        )
    if answer.state is not None and not answer.state.ended:
        on = f" -M {word(previous.cluster)}" if previous.cluster else ""
        state = answer.state.state.lower()
        raise option_contradicted(
            f"the run folder {place.run_dir} is that of job {previous.job_id}, which is {state}",
            where="--run-dir",
            why="two jobs would write the same checkpoints",
            fix=f"paceline follow {word(place.run_dir)}, or: scancel{on} {previous.job_id}",
        )


def _environ(requested: SubmitRequest) -> dict[str, str]:
    """Return the environment of sbatch and the job."""
    names = {"job-name", "requeue", *(name for name, _ in requested.directives())}
    return sbatch.environ(names)


def _report(job: JobRecord, place: JobPlace, *, as_json: bool) -> None:
    folder = os.path.relpath(place.run_dir)
    if folder.startswith(".."):
        folder = place.run_dir
    follow = f"paceline follow {word(folder)}"
    if as_json:
        values = {
            "job_id": job.job_id,
            "cluster": job.cluster,
            "name": job.name,
            "run_dir": place.run_dir,
        }
        print_json({**values, "script": place.script, "output": place.output, "follow": follow})
        return
    print(
        f"job {job.job_id}, {job.name}, is queued" + (f" on {job.cluster}" if job.cluster else "")
    )
    print(f"its output: {word(os.path.join(folder, os.path.basename(place.output)))}")
    print(f"follow it:  {follow}")
    sys.stdout.flush()
