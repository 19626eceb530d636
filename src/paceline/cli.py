"""The command line: arguments, wiring and rendering; no logic, and no torch until something runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from paceline import __version__, env
from paceline.errors import EXIT_MISUSE, EXIT_OK, Finding, PacelineError, UsageError, closest
from paceline.launcher import options as launch
from paceline.launcher.option_table import OPTIONS, Option

Deed = Callable[[], int]

_UNHEARD = 128 + 13  # what shells tell of a program that was ended by SIGPIPE: whoever read has gone, as head does


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    return click.option(*forms, option.name, metavar=option.metavar or "TEXT", help=text)


class _Run(click.Command):
    """Script arguments start after the script's name and are never parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


def _run(**typed: Any) -> Deed:
    """Start a script on one or many ranks: torchrun's options with torchrun's meaning, and a launcher that sees inside.

    Without --nproc-per-node there is one rank per GPU, or one without GPUs.
    """
    context = click.get_current_context()
    given = {
        option.name: typed[option.name]
        for option in OPTIONS
        if context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    if not typed["script"] and not typed["check_only"]:
        raise click.UsageError("Missing argument 'SCRIPT'.", context)
    asked = launch.parse(typed["script"], tuple(typed["arguments"]), typed=given, inherited=env.torchrun_defaults())

    def deed() -> int:
        from paceline import run

        return run.run(asked)

    return deed


def _make_run() -> click.Command:
    function: Any = _run
    function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
    function = click.argument("script", required=False, default="")(function)
    for option in reversed(OPTIONS):
        function = _declare(option)(function)
    return click.command("run", cls=_Run)(function)


cli.add_command(_make_run())


@cli.group()
def checkpoint() -> None:
    """The checkpoints of a run: which there are, whether they are whole, and the model as one file."""


_JSON = click.option("--json", "as_json", is_flag=True, help="Print data for a program.")
_PATH = click.argument("path", type=click.Path(path_type=Path))


@checkpoint.command("list")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@_JSON
def _list(folder: Path | None, as_json: bool) -> Deed:
    """List the checkpoints of a run, the latest last.

    FOLDER is a run's folder or that of its checkpoints; without it the run in runs/ that was last saved.
    """

    def deed() -> int:
        from paceline import checkpoint as room

        where, committed = room.list_of(folder)
        rows = room.describe(committed, now_ns=time.time_ns())
        if as_json:
            print(json.dumps(rows, indent=1))
        elif rows:
            print(room.render(rows))
        print(f"{len(rows)} checkpoint{'' if len(rows) == 1 else 's'} in {where}", file=sys.stderr)
        return EXIT_OK

    return deed


@checkpoint.command("verify")
@_PATH
@_JSON
def _verify(path: Path, as_json: bool) -> Deed:
    """Read all of a checkpoint and compare it with its checksums.

    PATH is a checkpoint's folder, or a run's, meaning its latest.
    """

    def deed() -> int:
        from paceline import checkpoint as room

        folder = room.resolve(path)
        try:
            told = room.verify(folder)
        except PacelineError as error:
            if not as_json:
                raise
            print(json.dumps({"path": str(folder), "whole": False, "findings": [error.finding.to_json()]}, indent=1))
            return error.exit_status
        if as_json:
            print(json.dumps({"path": str(folder), "whole": True, "findings": []}, indent=1))
        else:
            print(f"whole: {folder} ({len(told.files)} files, {told.num_bytes:,} bytes)")
        return EXIT_OK

    return deed


@checkpoint.command("export")
@_PATH
@click.argument("outfile", type=click.Path(path_type=Path, dir_okay=False))
def _export(path: Path, outfile: Path) -> Deed:
    """Write the model of a checkpoint to one file, with the keys of its own state_dict.

    PATH is a checkpoint's folder, or a run's, meaning its latest. OUTFILE is written by safetensors if it
    is named so, else by torch.save.
    """

    def deed() -> int:
        from paceline import checkpoint as room

        keys = room.export(path, outfile)
        print(f"{outfile}: {len(keys)} keys", file=sys.stderr)
        return EXIT_OK

    return deed


def _show(told: Any, as_json: bool) -> None:
    """Print what a room has to say: a page, an answer, a report."""
    print(json.dumps(told.to_json(), indent=1) if as_json else told.render())


@cli.command("explain")
@click.argument("subject", metavar="LOGFILE|CODE|NAME|-")
@_JSON
def _explain(subject: str, as_json: bool) -> Deed:
    """Say what a log tells, or what a finding means.

    LOGFILE is the output of a run under any framework and launcher (- for standard input), or a run folder: the
    likely cause comes first. CODE or NAME, port-in-use or NET001, is what a finding is called.
    """

    def deed() -> int:
        from paceline import catalogue, explain

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

    return deed


@cli.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_JSON
def _lint(files: tuple[str, ...], as_json: bool) -> Deed:
    """Look for mistakes in job scripts (sbatch) and training scripts (Python), without running them."""

    def deed() -> int:
        from paceline import lint

        report = lint.lint(files)
        _show(report, as_json)
        return report.exit_status

    return deed


@cli.command("doctor")
@_JSON
def _doctor(as_json: bool) -> Deed:
    """Look at this machine: GPUs and their links, NCCL's settings, limits, leftovers. Changes nothing.

    On all nodes of a job: paceline run --check-only ..., or srun paceline doctor.
    """

    def deed() -> int:
        from paceline import doctor

        report = doctor.examine()
        _show(report, as_json)
        return report.exit_status

    return deed


def main() -> NoReturn:
    """Entry of the command ``paceline``.

    A rank is a fork of this process and comes back through here with its script's end, which is why nothing
    is cleaned up around the deed: its SystemExit must reach the interpreter as any script's does.
    """
    if sys.argv[1:2] != ["run"]:  # a rank's streams are its script's
        _say_what_can_be_said()
    deed = _understood()
    launcher = os.getpid()
    try:
        status = deed()
    except PacelineError as error:
        if os.getpid() != launcher:
            raise  # of a rank's own script
        _refuse(error)
    except KeyboardInterrupt:  # before anything was started: later the launcher takes signals by itself
        sys.exit(130)
    except BrokenPipeError:
        if os.getpid() != launcher:
            raise
        status = _UNHEARD
    if os.getpid() != launcher:
        sys.exit(status)
    # The launcher ends at once: its threads may sit inside torch, whose teardown with living threads can abort.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _understood() -> Deed:
    """Return what was asked for; ends with a message where that cannot be told."""
    try:
        deed: Any = cli.main(standalone_mode=False)
    except click.exceptions.NoSuchOption as error:
        _refuse(_unknown_option(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(EXIT_OK)
    except click.ClickException as error:
        _refuse(_misused(error))
    except click.Abort:
        sys.exit(130)
    except PacelineError as error:
        _refuse(error)
    if not callable(deed):
        sys.exit(deed or 0)  # --help and --version
    understood: Deed = deed
    return understood


def _say_what_can_be_said() -> None:
    """Let a character that the terminal's encoding lacks be shown by its number, and end nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _unknown_option(error: click.exceptions.NoSuchOption) -> UsageError:
    typed = error.option_name
    if error.ctx is not None and error.ctx.command is cli:
        what = f"paceline has no option {typed}"
        return UsageError(Finding("option-unknown", what, where="command line", fix=f"paceline run {typed} ..."))
    if error.ctx is not None and error.ctx.command.name != "run":
        path = error.ctx.command_path
        near = closest(typed, [form for parameter in error.ctx.command.params for form in parameter.opts])
        what, fix = f"{path} has no option {typed}", f"{path} {near}" if near else f"{path} --help"
        return UsageError(Finding("option-unknown", what, where="command line", fix=fix))
    return launch.unknown_option(typed)


def _misused(error: click.ClickException) -> UsageError:
    command = getattr(getattr(error, "ctx", None), "command_path", "paceline")
    what = error.format_message()
    script = re.fullmatch(r"No such command '(.+\.py)'\.", what)
    fix = f"paceline run {script[1]}" if script else f"{command} --help"
    return UsageError(Finding("option-invalid", what, where="command line", fix=fix))


def _refuse(error: PacelineError) -> NoReturn:
    print(error.finding.render(), file=sys.stderr)
    sys.exit(error.exit_status if error.exit_status else EXIT_MISUSE)
