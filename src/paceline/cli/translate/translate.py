"""Translate a command line, and read accelerate's configuration if that launcher would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline import env
from paceline.cli.translate import command as command_line
from paceline.cli.translate import launchers, line
from paceline.cli.translate.command import LauncherCommand
from paceline.cli.translate.launchers import Translated
from paceline.cli.translate.line import TranslatedLine
from paceline.launch.plan.accelerate import config_file


def translate(words: Sequence[str]) -> TranslatedLine:
    """Return the ``paceline run`` line that does the same as another launcher's.

    Args:
        words: The other launcher's command line, or one word that contains all of it.

    Raises:
        PacelineError: The line cannot be translated, or accelerate's configuration cannot be read.
    """
    command = command_line.parse(words)
    return line.render(command, _translated(command))


def _translated(command: LauncherCommand) -> Translated:
    if command.kind == "accelerate launch":
        file = command.options.get("config_file", "")
        typed = {name: value for name, value in command.options.items() if name != "config_file"}
        if command.unexpanded and "$" in file:
            return launchers.accelerate_with_variable(typed, file)
        return _accelerate(typed, file, env.snapshot())
    if command.kind == "fabric run":
        return launchers.fabric(command.options, command.arguments)
    if command.kind == "deepspeed":
        return launchers.deepspeed(command.options)
    if command.kind == "paceline run":
        return Translated(command.options, notes=("it is a line of paceline run already",))
    assigned = (word.partition("=")[0] for word in (*command.assigned, *command.wrappers))
    inherited = {name[4:].lower(): "" for name in assigned if name.startswith("PET_")}
    return launchers.torchrun(
        command.options,
        inherited={**env.torchrun_defaults(), **inherited},
        passes_local_rank=command.kind == "torch.distributed.launch",
    )


def _accelerate(typed: Mapping[str, str], file: str, environ: Mapping[str, str]) -> Translated:
    default = config_file.default_path(environ)
    if not file and default.is_file() and "cpu" not in typed:
        file = str(default)
    config = config_file.read(Path(file)) if file else None
    return launchers.accelerate(typed, config, file=file or "accelerate's configuration")
