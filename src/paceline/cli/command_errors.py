"""Report errors of the command line: unknown options, wrong usage, and errors of the commands."""

from __future__ import annotations

import re
import signal
import sys
import time
from typing import NoReturn

import click

from paceline.errors import EXIT_MISUSE, PacelineError, UsageError, closest, option_invalid
from paceline.launch.plan import parsing
from paceline.text import terminal

_TOGETHER_S = 1.0  # the tasks of a Slurm step reach this point within this time


def unknown_option(error: click.exceptions.NoSuchOption) -> UsageError:
    """Return the error for an unknown option, with the nearest existing one."""
    typed, context = error.option_name, error.ctx
    if context is None or (context.parent is not None and context.command.name == "run"):
        return parsing.unknown_option(typed)
    if context.parent is None:
        return _unknown("paceline", typed, fix=f"paceline run {typed} ...")
    if context.command.name == "submit":
        from paceline.slurm import request

        return request.unknown_option(typed)
    forms = [form for parameter in context.command.params for form in parameter.opts]
    path = context.command_path
    return _unknown(path, typed, fix=f"{path} {closest(typed, forms) or '--help'}")


def _unknown(command: str, typed: str, *, fix: str) -> UsageError:
    what = f"{command} has no option {typed}"
    return UsageError.of("option-unknown", what, where="command line", fix=fix)


def misused(error: click.ClickException) -> UsageError:
    """Return the error for any other wrong usage."""
    command = getattr(getattr(error, "ctx", None), "command_path", "paceline")
    what = error.format_message()
    script = re.fullmatch(r"No such command '(.+\.py)'\.", what)
    fix = f"paceline run {script[1]}" if script else f"{command} --help"
    return option_invalid(what, fix=fix)


def refuse(error: PacelineError) -> NoReturn:
    """Print an error and exit with its status."""
    status = error.exit_status if error.exit_status else EXIT_MISUSE
    if not error.reported_elsewhere:
        terminal.show(error.finding.render(), sys.stderr)
    if error.found_by_all:
        # When the first task fails, srun may end the others before they print this, or with the
        # status of SIGTERM.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(status))
        sys.stderr.flush()
        time.sleep(_TOGETHER_S)
    sys.exit(status)
