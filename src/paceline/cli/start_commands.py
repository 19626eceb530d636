"""The commands that start a script: ``paceline run`` and ``paceline submit``.

Their options are declared in tables that other packages own, and the words after the script's name
are its arguments.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from paceline import env
from paceline.cli import command_help, completed_words
from paceline.launch.plan import command_line
from paceline.launch.plan.option import Option
from paceline.launch.plan.options import OPTIONS
from paceline.launch.plan.submit_options import FORWARDED, OWN
from paceline.version import __version__

Action = Callable[[], int]  # what a command does once its words are parsed; returns its exit status


class StartCommand(command_help.HelpedCommand):
    """A command that starts a script: arguments after the script's name are never parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options that begin so; behind the script they are its own."""
        return [] if ctx.params.get("script") else super().shell_complete(ctx, incomplete)


class _TorchrunCommand(StartCommand):
    """A command that takes torchrun's command lines, abbreviated options included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # for completion, where a line is not finished
            return super().parse_args(ctx, args)
        return super().parse_args(ctx, command_line.in_full(args))


def _run(**values: Any) -> Action:
    """Start a script on one or many ranks: torchrun's options with torchrun's meaning, and a
    launcher that sees inside.

    Without --nproc-per-node there is one rank per GPU, or one without GPUs.
    """
    # imported here, since they take a tenth of the time in which the other commands answer
    from paceline.launch.plan import parsing, preferences, slurm_step, starter
    from paceline.machine import files, nodeaddr, own_world

    typed = _typed_options(OPTIONS, values)
    if not values["check_only"]:
        require_script(values["script"])
    environ = env.snapshot()
    typed = slurm_step.reachable(environ, typed, address_of=nodeaddr.of_node)
    inherited = slurm_step.reachable(environ, env.torchrun_defaults(), address_of=nodeaddr.of_node)
    starter_defaults = starter.choose_defaults(
        environ,
        requested={**inherited, **typed},
        program=[word for word in (values["script"], *values["arguments"]) if word],
        surroundings=starter.StarterSurroundings(
            address_of=nodeaddr.of_node,
            require_head_here=own_world.require_head_here,
            read_file=lambda path: files.text(Path(path)),
            host_name=socket.gethostname(),
            in_terminal=env.in_terminal(),
        ),
    )
    # A file of accelerate says what nothing else has settled.
    settled = {**starter_defaults.values, **inherited, **typed}
    from_file = _accelerate_options(typed.get("accelerate_config"), settled)
    requested = parsing.parse(
        values["script"],
        tuple(values["arguments"]),
        typed=typed,
        inherited={**from_file, **inherited},
        starter_defaults=starter_defaults,
        preferred=preferences.read(environ),
    )

    def action() -> int:
        if requested.prove:
            from paceline.measure import proof

            return proof.prove(requested)
        from paceline.launch import run

        return run.run(requested)

    return action


def _submit(**values: Any) -> Action:
    """Submit a script to Slurm: write a job script that starts it on all nodes, and call sbatch.

    Takes the options of paceline run too. Any other option of sbatch is given with --sbatch.
    """
    typed = _typed_options((*OWN, *FORWARDED), values)
    require_script(values["script"])

    def action() -> int:
        from paceline.slurm.jobs import submit

        return submit.submit(values["script"], tuple(values["arguments"]), typed=typed)

    return action


def _typed_options(options: Sequence[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options on the command line, in the order as typed."""
    names = {option.name for option in options}
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in values.items()  # click passes what was typed in the order as typed
        if name in names and source(name) is ParameterSource.COMMANDLINE
    }


def require_script(script: str) -> None:
    # Not required by click: paceline run --check-only starts no script.
    if not script:
        raise click.UsageError("Missing argument 'SCRIPT'.", click.get_current_context())


def _accelerate_options(file: str | None, decided: Mapping[str, Any]) -> dict[str, str]:
    """Return the options from a configuration file of accelerate, if one is named."""
    from paceline.launch.plan.accelerate import ask, choice

    if file in (None, ask.NONE):
        return {}
    (settings,) = ask.settle({}, file=file)
    return choice.layout(settings, decided=decided)


def _command(
    name: str,
    function: Any,
    options: Sequence[Option],
    cls: type[StartCommand] = StartCommand,
) -> click.Command:
    """Return a command that starts a script: options, the script, and its arguments, which are not
    parsed.
    """
    is_file = completed_words.files
    function = click.argument(
        "arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=is_file
    )(function)
    function = click.argument("script", required=False, default="", shell_complete=is_file)(
        function
    )
    function = command_help.HELP_ALL(function)
    # The decorator that is applied last stands first in the help.
    for option in reversed(options):
        function = _declare(option)(function)
    return click.command(name, cls=cls)(function)


def _declare(option: Option) -> Callable[[Any], Any]:
    forms = [option.short] if option.short else []
    forms += [option.long]
    if "_" in option.name:  # torchrun takes both spellings
        forms.append(f"--{option.name}")
    text = option.help + (f" [{option.default}]" if option.default else "")
    if option.flag:
        return click.option(*forms, option.name, is_flag=True, default=False, help=text)
    metavar = option.metavar or "TEXT"
    return click.option(
        *forms,
        option.name,
        metavar=metavar,
        multiple=option.many,
        help=text,
        shell_complete=completed_words.of_placeholder(metavar),
    )


RUN = click.version_option(__version__, prog_name="paceline")(
    _command("run", _run, OPTIONS, _TorchrunCommand)
)
SUBMIT = _command("submit", _submit, (*OWN, *FORWARDED))
