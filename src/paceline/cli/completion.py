"""The command that prints the script for completion in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from paceline.cli import command_help
from paceline.cli.start_commands import Action
from paceline.errors import EXIT_OK

# The variable in which a shell asks; click derives it from the name of the command too.
_VARIABLE = "_PACELINE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=command_help.HelpedCommand)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def COMPLETION(context: click.Context, shell: str) -> Action:
    """Print the script that completes commands, options, findings and files in a shell.

    In ~/.bashrc or ~/.zshrc: eval "$(paceline completion bash)", or zsh. For fish, write it to
    ~/.config/fish/completions/paceline.fish.
    """

    def action() -> int:
        kind = get_completion_class(shell)
        if kind is None:
            raise ValueError(shell)
        # The installed command, also where python -m paceline prints its script.
        print(kind(context.find_root().command, {}, "paceline", _VARIABLE).source())
        return EXIT_OK

    return action
