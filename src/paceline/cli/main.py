"""The commands of paceline: each calls the package that does the work, and prints its result.

No command imports torch before that.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from paceline import env
from paceline.cli import (
    bench_command,
    command_errors,
    command_help,
    completed_words,
    completion,
    explain_commands,
    measure_commands,
    new_command,
    program_commands,
    start_commands,
    tune_command,
)
from paceline.cli.command_help import show as _show
from paceline.cli.start_commands import Action
from paceline.errors import EXIT_OK, PacelineError, UsageError
from paceline.rundir.files import not_permitted
from paceline.text.json_text import print_json as _print_json
from paceline.version import __version__

_INTERRUPTED = 130
# Exit status of a program that SIGPIPE ended: its reader has closed the pipe, as head does.
_BROKEN_PIPE = 128 + 13
_MOST_TOPO = 1 << 20  # characters of a matrix and what stands around it


# A group inside it, and every command, takes its class from this one.
@click.group(
    cls=command_help.HelpedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="paceline")
def cli() -> None:
    """Data-parallel PyTorch, from one process to many nodes."""


cli.add_command(start_commands.RUN)
cli.add_command(start_commands.SUBMIT)
cli.add_command(completion.COMPLETION)
cli.add_command(explain_commands.EXPLAIN)
cli.add_command(explain_commands.LINT)
cli.add_command(tune_command.TUNE)
cli.add_command(bench_command.BENCH)
cli.add_command(bench_command.VERIFY)
cli.add_command(measure_commands.FORECAST)
cli.add_command(measure_commands.REPORT)
cli.add_command(measure_commands.TOP)
cli.add_command(new_command.NEW)
cli.add_command(program_commands.SCHEMA)
cli.add_command(program_commands.SKILL)


@cli.group()
def checkpoint() -> None:
    """The checkpoints of a run: which there are, whether they are whole, and the model as one
    file.
    """


_PATH = click.argument("path", type=click.Path(path_type=Path))


@checkpoint.command("list")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@command_help.JSON
def _list(folder: Path | None, as_json: bool) -> int:
    """List the checkpoints of a run, the latest last.

    FOLDER is a run's folder or that of its checkpoints; without it the run in paceline-runs/ that
    was last saved.
    """
    from paceline.train import checkpoint as checkpoints

    where, committed = checkpoints.list_of(folder)
    rows = checkpoints.describe(committed, now_ns=time.time_ns())
    if as_json:
        _print_json(rows)
    elif rows:
        print(checkpoints.render(rows))
    print(f"{len(rows)} checkpoint{'' if len(rows) == 1 else 's'} in {where}", file=sys.stderr)
    return EXIT_OK


@checkpoint.command("verify")
@_PATH
@command_help.JSON
def _verify(path: Path, as_json: bool) -> int:
    """Read all of a checkpoint and compare it with its checksums.

    PATH is a checkpoint's folder, or a run's, meaning its latest.
    """
    from paceline.train import checkpoint as checkpoints

    folder = checkpoints.resolve(path)
    try:
        manifest = checkpoints.verify(folder)
    except PacelineError as error:
        if not as_json:
            raise
        # A program that asks for data gets a damaged checkpoint as an answer, on stdout.
        _print_json({"path": folder, "whole": False, "findings": [error.finding]})
        return error.exit_status
    if as_json:
        _print_json({"path": folder, "whole": True, "findings": []})
    else:
        print(f"whole: {folder} ({len(manifest.files)} files, {manifest.num_bytes:,} bytes)")
    return EXIT_OK


@checkpoint.command("export")
@_PATH
@click.argument("outfile", type=click.Path(path_type=Path, dir_okay=False))
def _export(path: Path, outfile: Path) -> int:
    """Write the model of a checkpoint to one file, with the keys of its own state_dict.

    PATH is a checkpoint's folder, or a run's, meaning its latest. OUTFILE is written by safetensors
    if it is named so, else by torch.save.
    """
    from paceline.train import checkpoint as checkpoints

    keys = checkpoints.export(path, outfile)
    print(f"{outfile}: {len(keys)} keys", file=sys.stderr)
    return EXIT_OK


@cli.command("endpoint", hidden=True)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Reserve it; refuse if a living run has it."
)
@click.option(
    "--job-script", type=click.Path(path_type=Path), help="Keep it there, with a record of the job."
)
@click.option("--on-node-loss", default="requeue", metavar="requeue|fail", help="For that record.")
def _endpoint(run_dir: Path | None, job_script: Path | None, on_node_loss: str) -> int:
    """Print an address and a free port of this host, HOST:PORT; for job scripts, on the node that
    will be node 0.
    """
    from paceline.launch.plan import endpoint
    from paceline.slurm.jobs import reserve

    job_id = env.slurm_job()
    if run_dir is not None and job_id:
        reserve.reserve(run_dir, job_id, script=job_script, on_node_loss=on_node_loss)
    print(endpoint.find(env.read(env.NODE_NAME) or ""))
    return EXIT_OK


@cli.command("doctor")
@click.option(
    "--topo",
    metavar="FILE",
    help="Judge this output of nvidia-smi topo -m (- for standard input) instead of the machine.",
)
@command_help.JSON
def _doctor(topo: str | None, as_json: bool) -> int:
    """Look at this machine: GPUs and their links, NCCL's settings, limits, leftovers. Changes
    nothing.

    On all nodes of a job: paceline run --check-only ..., or srun paceline doctor.
    """
    from paceline.diagnose import doctor

    if topo is None:
        report = doctor.examine()
    else:
        text = ""
        with contextlib.suppress(OSError), click.open_file(topo, errors="replace") as file:
            text = file.read(_MOST_TOPO)
        report = doctor.examine_topology(text)
        if not report.facts.gpus:
            what = f"no matrix of GPUs, as nvidia-smi topo -m prints it, can be read from {topo}"
            raise UsageError.of("input-unreadable", what, fix="nvidia-smi topo -m > topo.txt")
    _show(report, as_json)
    return report.exit_status


@cli.command("why")
@click.argument(
    "words",
    nargs=-1,
    metavar="[PID|JOBID|NODE|FOLDER|FILE]...",
    shell_complete=completed_words.files,
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=5.0,
    help="How long ranks are looked at. [5]",
)
@click.option(
    "--signal",
    default="",
    metavar="NAME",
    help="Send it to ranks that have registered faulthandler for it.",
)
@click.option(
    "--collect",
    "collects",
    is_flag=True,
    help="Print what is seen on this host, for why on another one.",
)
@command_help.JSON
def _why(words: tuple[str, ...], seconds: float, signal: str, collects: bool, as_json: bool) -> int:
    """Say who waits for whom in a run of any launcher: paceline, torchrun, srun, accelerate,
    deepspeed. Changes nothing.

    PID is the process of a launcher or of a rank, JOBID a Slurm job, NODE a host that ssh reaches,
    FOLDER a run folder, FILE what --collect has written. Without one: all ranks of this user on
    this host.
    """
    from paceline import why

    if collects:
        print(why.collect(words, seconds=seconds, signal=signal))
        return EXIT_OK
    report = why.why(words, seconds=seconds, signal=signal)
    _show(report, as_json)
    return report.exit_status


@cli.command("follow")
@click.argument("run", metavar="RUN|JOBID", shell_complete=completed_words.runs)
def _follow(run: str) -> int:
    """Show the output of a Slurm job as it grows, through all its starts, and end as its run does.

    RUN is a run folder or the name of one in paceline-runs/, JOBID the number of a job. Ctrl-C ends
    the watching, not the job.
    """
    from paceline.slurm.jobs import follow

    return follow.follow(run)


@cli.command("jobs")
@click.argument("folder", metavar="[FOLDER|SWEEP]", type=click.Path(path_type=Path), required=False)
@click.option("--sort", default="", metavar="METRIC", help="Of a sweep: sort by its last value.")
@click.option("--descending", is_flag=True, help="With --sort: the largest first.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show N rows. [all]")
@command_help.JSON
def _jobs(
    folder: Path | None, sort: str, descending: bool, limit: int | None, as_json: bool
) -> int:
    """List the runs of a folder, paceline-runs/ without one: state, nodes, last step, loss; the
    newest first.

    A sweep is one row: its state, how many elements have succeeded, and the lowest loss. Named, it
    is listed by element.
    """
    from paceline.slurm.jobs import listing

    return listing.jobs(folder, as_json=as_json, metric=sort, descending=descending, limit=limit)


@cli.command("clean")
@click.argument("folder", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--yes", "is_confirmed", is_flag=True, help="Delete it; without this it is shown.")
def _clean(folder: Path | None, is_confirmed: bool) -> int:
    """Show, or delete, checkpoints that no run needs, and folders of failed runs without a result.

    The latest and the best checkpoint of each training stay, everything of a run that lives, and a
    run or checkpoint with a file "keep" in its folder. FOLDER is paceline-runs/ without one.
    """
    from paceline.slurm.jobs import clean

    return clean.clean(folder, is_confirmed=is_confirmed)


@cli.command("cancel")
@click.argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN|SWEEP|JOBID...",
    shell_complete=completed_words.runs,
)
def _cancel(runs: tuple[str, ...]) -> int:
    """End Slurm jobs for good: they are not queued again, and keep their checkpoints.

    RUN is a run folder or the name of one in paceline-runs/, JOBID the number of a job. Of a SWEEP
    all elements are ended; SWEEP/3 is one of them.
    """
    from paceline.slurm.jobs import cancel

    return cancel.cancel(runs)


@cli.command("requeue", hidden=True)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--status", type=int, required=True, metavar="N", help="Exit status of the run.")
def _requeue(run: Path, status: int) -> int:
    """Queue this Slurm job again if its run can resume; for job scripts, after the run.

    It can if the run stopped unfinished with a checkpoint, or has lost a node. RUN is its run
    folder.
    """
    from paceline.slurm.jobs import requeue

    return requeue.requeue(run, status=status)


# The words are those of another launcher, whose options look like ours.
@cli.command(
    "translate", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@command_help.JSON
def _translate(command: tuple[str, ...], as_json: bool) -> int:
    """Print the line of paceline run that does what another launcher's line does, with the
    environment it needs.

    COMMAND is a line of torchrun, accelerate launch, fabric run or deepspeed, also behind srun, env
    or the like; or all of it in single quotes, so that $VARIABLES stay as they are. What has no
    counterpart is said on stderr.
    """
    from paceline.cli import translate

    translated = translate.translate(command)
    if as_json:
        _print_json(translated)
        return EXIT_OK
    print(translated.line)
    for note in translated.notes:
        print(f"note: {note}", file=sys.stderr)
    return EXIT_OK


def main() -> NoReturn:
    """Entry of the command ``paceline``.

    A rank is a fork of this process and returns through this function when its script ends. So
    nothing is cleaned up around the action: the SystemExit of a script must reach the interpreter.
    """
    if sys.argv[1:2] != ["run"]:  # the streams of a rank belong to its script
        _escape_unencodable()
    action = _parse_command_line()
    launcher = os.getpid()
    try:
        status = action()
    except PacelineError as error:
        if os.getpid() != launcher:
            raise  # raised by the script of a rank
        command_errors.refuse(error)
    except PermissionError as error:  # of another user's run
        if os.getpid() != launcher:
            raise
        command_errors.refuse(not_permitted(error))
    except KeyboardInterrupt:  # before anything was started: later the launcher handles signals
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        if os.getpid() != launcher:
            raise
        status = _BROKEN_PIPE
    if os.getpid() != launcher:
        sys.exit(status)
    # The launcher exits without teardown: with threads inside torch, the teardown of torch can
    # abort.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _parse_command_line() -> Action:
    """Parse the command line and return the action; exit with a message if it is invalid."""
    try:
        outcome: Any = cli.main(standalone_mode=False)
    except click.exceptions.NoSuchOption as error:
        command_errors.refuse_line(command_errors.unknown_option(error, sys.argv[1:]))
    # To click a usage error; the bare command shows its help, and nothing was wrong.
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(EXIT_OK)
    except click.ClickException as error:
        command_errors.refuse_line(command_errors.misused(error))
    except click.Abort:
        sys.exit(_INTERRUPTED)
    except PacelineError as error:
        command_errors.refuse_line(error)
    if not callable(outcome):
        sys.exit(outcome or 0)  # --help and --version
    action: Action = outcome
    return action


def _escape_unencodable() -> None:
    """Print characters that the terminal's encoding lacks as escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
