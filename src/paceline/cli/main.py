"""The commands of paceline: parse arguments, call the package that does the work, print. No torch
before that.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from paceline import __version__, env
from paceline.cli import command_errors, command_help
from paceline.errors import EXIT_OK, PacelineError
from paceline.launch.plan import command_line, parsing, preferences, slurm_step
from paceline.launch.plan.option import Option
from paceline.launch.plan.options import OPTIONS
from paceline.machine import nodeaddr
from paceline.slurm.option_table import FORWARDED, OWN
from paceline.text import terminal

Action = Callable[[], int]

_BROKEN_PIPE = (
    128 + 13
)  # exit status of a program that SIGPIPE ended: its reader has closed the pipe, as head does


# A group inside it, and every command, takes its class from this one.
@click.group(
    cls=command_help.Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="paceline")
def cli() -> None:
    """Data-parallel PyTorch, from one process to many nodes."""


def _declare(option: Option) -> Callable[[Any], Any]:
    forms = [option.short] if option.short else []
    forms += [option.long]
    if "_" in option.name:
        forms.append(f"--{option.name}")
    text = option.help + (f" [{option.default}]" if option.default else "")
    if option.flag:
        return click.option(*forms, option.name, is_flag=True, default=False, help=text)
    metavar = option.metavar or "TEXT"
    return click.option(*forms, option.name, metavar=metavar, multiple=option.many, help=text)


class _Run(command_help.Command):
    """A command that starts a script: arguments after the script's name are never parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


class _Torchrun(_Run):
    """A command that takes torchrun's command lines, abbreviated options included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, command_line.in_full(args))


def _typed_options(options: Sequence[Option], values: dict[str, Any]) -> dict[str, Any]:
    """Return the options on the command line, without those that have their default."""
    source = click.get_current_context().get_parameter_source
    return {
        option.name: values[option.name]
        for option in options
        if source(option.name) is ParameterSource.COMMANDLINE
    }


def _run(**values: Any) -> Action:
    """Start a script on one or many ranks: torchrun's options with torchrun's meaning, and a
    launcher that sees inside.

    Without --nproc-per-node there is one rank per GPU, or one without GPUs.
    """
    typed = _typed_options(OPTIONS, values)
    if not values["script"] and not values["check_only"]:
        raise click.UsageError("Missing argument 'SCRIPT'.", click.get_current_context())
    typed = slurm_step.reachable(env.snapshot(), typed, address_of=nodeaddr.of_node)
    inherited = slurm_step.reachable(
        env.snapshot(), env.torchrun_defaults(), address_of=nodeaddr.of_node
    )
    slurm_defaults = slurm_step.choose_defaults(
        env.snapshot(),
        requested={**inherited, **typed},
        program=[word for word in (values["script"], *values["arguments"]) if word],
        address_of=nodeaddr.of_node,
        in_terminal=env.in_terminal(),
    )
    settled = {**slurm_defaults.values, **inherited, **typed}
    from_file = _configured(typed.get("accelerate_config"), settled)
    requested = parsing.parse(
        values["script"],
        tuple(values["arguments"]),
        typed=typed,
        inherited={**from_file, **inherited},
        slurm_defaults=slurm_defaults,
        preferred=preferences.read(env.snapshot()),
    )

    def action() -> int:
        from paceline.launch import run

        return run.run(requested)

    return action


def _configured(file: str | None, decided: Mapping[str, Any]) -> dict[str, str]:
    """Return the options from a configuration file of accelerate, if one is named."""
    from paceline.launch.plan.accelerate import choice, config_file

    if file in (None, config_file.NONE):
        return {}
    return choice.layout(config_file.settings_of(file), decided=decided)


def _submit(**values: Any) -> Action:
    """Submit a script to Slurm: write a job script that starts it on all nodes, and call sbatch.

    Takes the options of paceline run too. Any other option of sbatch is given with --sbatch.
    """
    typed = _typed_options((*OWN, *FORWARDED), values)
    if not values["script"]:
        raise click.UsageError("Missing argument 'SCRIPT'.", click.get_current_context())

    def action() -> int:
        from paceline.slurm import submit

        return submit.submit(values["script"], tuple(values["arguments"]), typed=typed)

    return action


def _make(
    name: str, function: Any, options: Sequence[Option], cls: type[_Run] = _Run
) -> click.Command:
    """Return a command that starts a script: options, the script, and its arguments, which are not
    parsed.
    """
    function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
    function = click.argument("script", required=False, default="")(function)
    for option in reversed(options):
        function = _declare(option)(function)
    return click.command(name, cls=cls)(function)


cli.add_command(
    click.version_option(__version__, prog_name="paceline")(_make("run", _run, OPTIONS, _Torchrun))
)
cli.add_command(_make("submit", _submit, (*OWN, *FORWARDED)))


@cli.group()
def checkpoint() -> None:
    """The checkpoints of a run: which there are, whether they are whole, and the model as one
    file.
    """


_JSON = click.option("--json", "as_json", is_flag=True, help="Print data for a program.")
_PATH = click.argument("path", type=click.Path(path_type=Path))


@checkpoint.command("list")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@_JSON
def _list(folder: Path | None, as_json: bool) -> Action:
    """List the checkpoints of a run, the latest last.

    FOLDER is a run's folder or that of its checkpoints; without it the run in paceline-runs/ that
    was last saved.
    """

    def action() -> int:
        from paceline.train import checkpoint as checkpoints

        where, committed = checkpoints.list_of(folder)
        rows = checkpoints.describe(committed, now_ns=time.time_ns())
        if as_json:
            print(json.dumps(rows, indent=1))
        elif rows:
            print(checkpoints.render(rows))
        print(f"{len(rows)} checkpoint{'' if len(rows) == 1 else 's'} in {where}", file=sys.stderr)
        return EXIT_OK

    return action


@checkpoint.command("verify")
@_PATH
@_JSON
def _verify(path: Path, as_json: bool) -> Action:
    """Read all of a checkpoint and compare it with its checksums.

    PATH is a checkpoint's folder, or a run's, meaning its latest.
    """

    def action() -> int:
        from paceline.train import checkpoint as checkpoints

        folder = checkpoints.resolve(path)
        try:
            manifest = checkpoints.verify(folder)
        except PacelineError as error:
            if not as_json:
                raise
            print(
                json.dumps(
                    {"path": str(folder), "whole": False, "findings": [error.finding.to_json()]},
                    indent=1,
                )
            )
            return error.exit_status
        if as_json:
            print(json.dumps({"path": str(folder), "whole": True, "findings": []}, indent=1))
        else:
            print(f"whole: {folder} ({len(manifest.files)} files, {manifest.num_bytes:,} bytes)")
        return EXIT_OK

    return action


@checkpoint.command("export")
@_PATH
@click.argument("outfile", type=click.Path(path_type=Path, dir_okay=False))
def _export(path: Path, outfile: Path) -> Action:
    """Write the model of a checkpoint to one file, with the keys of its own state_dict.

    PATH is a checkpoint's folder, or a run's, meaning its latest. OUTFILE is written by safetensors
    if it is named so, else by torch.save.
    """

    def action() -> int:
        from paceline.train import checkpoint as checkpoints

        keys = checkpoints.export(path, outfile)
        print(f"{outfile}: {len(keys)} keys", file=sys.stderr)
        return EXIT_OK

    return action


def _show(answer: Any, as_json: bool) -> None:
    """Print the result of a command as text or JSON: a page, an answer, a report."""
    if as_json:
        print(json.dumps(answer.to_json(), indent=1))
    else:
        terminal.show(answer.render())


@cli.command("explain")
@click.argument("subject", metavar="LOGFILE|CODE|NAME|-")
@_JSON
def _explain(subject: str, as_json: bool) -> Action:
    """Explain a log file or a finding.

    LOGFILE is the output of a run under any framework and launcher (- for standard input), or a run
    folder: the likely cause comes first. CODE or NAME, port-in-use or NET001, is what a finding is
    called.
    """

    def action() -> int:
        from paceline.diagnose import catalogue, explain

        page = None if os.path.exists(subject) else catalogue.find(subject)
        if page is not None:
            _show(page, as_json)
            return EXIT_OK
        try:
            answer = explain.explain(subject)
        except PacelineError as error:
            if as_json:
                print(json.dumps({"findings": [error.finding.to_json()]}, indent=1))
            raise
        _show(answer, as_json)
        return answer.exit_status

    return action


@cli.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_JSON
def _lint(files: tuple[str, ...], as_json: bool) -> Action:
    """Look for mistakes in job scripts (sbatch) and training scripts (Python), without running
    them.
    """

    def action() -> int:
        from paceline.diagnose import lint

        report = lint.lint(files)
        _show(report, as_json)
        return report.exit_status

    return action


@cli.command("endpoint")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Reserve it; refuse if a living run has it."
)
@click.option(
    "--job-script", type=click.Path(path_type=Path), help="Keep it there, with a record of the job."
)
@click.option("--on-node-loss", default="requeue", metavar="requeue|fail", help="For that record.")
def _endpoint(run_dir: Path | None, job_script: Path | None, on_node_loss: str) -> Action:
    """Print an address and a free port of this host, HOST:PORT; for job scripts, on the node that
    will be node 0.
    """

    def action() -> int:
        from paceline.launch.plan import endpoint
        from paceline.slurm import reserve

        job_id = env.read(env.JOB_ID)
        if run_dir is not None and job_id:
            reserve.reserve(run_dir, job_id, script=job_script, on_node_loss=on_node_loss)
        print(endpoint.find(env.read(env.NODE_NAME) or ""))
        return EXIT_OK

    return action


@cli.command("doctor")
@_JSON
def _doctor(as_json: bool) -> Action:
    """Look at this machine: GPUs and their links, NCCL's settings, limits, leftovers. Changes
    nothing.

    On all nodes of a job: paceline run --check-only ..., or srun paceline doctor.
    """

    def action() -> int:
        from paceline.diagnose import doctor

        report = doctor.examine()
        _show(report, as_json)
        return report.exit_status

    return action


@cli.command("why")
@click.argument("words", nargs=-1, metavar="[PID|JOBID|NODE|FILE]...")
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
@_JSON
def _why(
    words: tuple[str, ...], seconds: float, signal: str, collects: bool, as_json: bool
) -> Action:
    """Say who waits for whom in a run that torchrun, srun, accelerate or deepspeed has started.
    Changes nothing.

    PID is the process of a launcher or of a rank, JOBID a Slurm job, NODE a host that ssh reaches,
    FILE what --collect has written. Without one: all ranks of this user on this host.
    """

    def action() -> int:
        from paceline import why

        if collects:
            print(why.collect(words, seconds=seconds, signal=signal))
            return EXIT_OK
        report = why.why(words, seconds=seconds, signal=signal)
        _show(report, as_json)
        return report.exit_status

    return action


@cli.command("follow")
@click.argument("run", metavar="RUN|JOBID")
def _follow(run: str) -> Action:
    """Show the output of a Slurm job as it grows, through all its starts, and end as its run does.

    RUN is a run folder or the name of one in paceline-runs/, JOBID the number of a job. Ctrl-C ends
    the watching, not the job.
    """

    def action() -> int:
        from paceline.slurm import follow

        return follow.follow(run)

    return action


@cli.command("jobs")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@_JSON
def _jobs(folder: Path | None, as_json: bool) -> Action:
    """List the runs of a folder, paceline-runs/ without one: state, nodes, last step, loss; the
    newest first.
    """

    def action() -> int:
        from paceline.slurm import jobs

        return jobs.jobs(folder, as_json=as_json)

    return action


@cli.command("requeue")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--status", type=int, required=True, metavar="N", help="Exit status of the run.")
def _requeue(run: Path, status: int) -> Action:
    """Queue this Slurm job again if its run can resume; for job scripts, after the run.

    It can if the run stopped unfinished with a checkpoint, or has lost a node. RUN is its run
    folder.
    """

    def action() -> int:
        from paceline.slurm import requeue

        return requeue.requeue(run, status=status)

    return action


@cli.command(
    "translate", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@_JSON
def _translate(command: tuple[str, ...], as_json: bool) -> Action:
    """Print the line of paceline run that does what another launcher's line does, with the
    environment it needs.

    COMMAND is a line of torchrun, accelerate launch, fabric run or deepspeed, also behind srun, env
    or the like; or all of it in single quotes, so that $VARIABLES stay as they are. What has no
    counterpart is said on stderr.
    """

    def action() -> int:
        from paceline.cli import translate

        line = translate.translate(command)
        print(json.dumps(line.to_json(), indent=1) if as_json else line.text)
        for note in () if as_json else line.notes:
            print(f"note: {note}", file=sys.stderr)
        return EXIT_OK

    return action


@cli.group()
def profile() -> None:
    """Settings of a site, for paceline submit --profile NAME."""


@profile.command("check")
@click.argument("name")
@_JSON
def _profile_check(name: str, as_json: bool) -> Action:
    """Compare a profile with the cluster that this machine belongs to: partition, limits, modules,
    folders.

    NAME is a file that ends in .toml, or NAME.toml in .paceline/profiles here or in
    ~/.config/paceline/profiles.
    """

    def action() -> int:
        from paceline.slurm import profile_check

        report = profile_check.check(name)
        _show(report, as_json)
        return report.exit_status

    return action


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
    except KeyboardInterrupt:  # before anything was started: later the launcher handles signals
        sys.exit(130)
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
        command_errors.refuse(command_errors.unknown_option(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(EXIT_OK)
    except click.ClickException as error:
        command_errors.refuse(command_errors.misused(error))
    except click.Abort:
        sys.exit(130)
    except PacelineError as error:
        command_errors.refuse(error)
    if not callable(outcome):
        sys.exit(outcome or 0)  # --help and --version
    action: Action = outcome
    return action


def _escape_unencodable() -> None:
    """Print characters that the terminal's encoding lacks as escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
