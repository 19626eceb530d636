"""Translate a command line; read a Fabric script, and accelerate's configuration if it would."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.cli.translate import command as command_line
from paceline.cli.translate import launchers
from paceline.cli.translate.command import LauncherCommand
from paceline.cli.translate.launchers import Translated
from paceline.diagnose.lint import read
from paceline.errors import UsageError
from paceline.launch.plan.accelerate import ask
from paceline.text import quoting
from paceline.text.syntax import last, tree_of


def translate(
    words: Sequence[str],  # the other launcher's command line, or one word that contains all of it
) -> TranslatedLine:
    """Return the ``paceline run`` line that does the same as another launcher's.

    Raises PacelineError if the line cannot be translated, or accelerate's configuration cannot be
    read.
    """
    command = command_line.parse(words)
    return render(command, launchers.left_to_step(_translated(command), command.step))


def _translated(command: LauncherCommand) -> Translated:
    if command.kind == "accelerate launch":
        file = command.options.get("config_file", "")
        typed = {name: value for name, value in command.options.items() if name != "config_file"}
        if command.unexpanded and "$" in file:
            settings, unset = ask.settle(typed, {})
            return launchers.accelerate_with_variable(settings, unset, file)
        return _accelerate(typed, file, env.snapshot())
    if command.kind == "fabric run":
        calls_launch = _calls_launch(command.script)
        return launchers.fabric(command.options, command.arguments, calls_launch=calls_launch)
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


def _calls_launch(script: str) -> bool | None:
    """Return whether a Fabric script starts its processes by launch(), None if nothing shows it."""
    source = read(script)
    tree = tree_of(source.text) or ast.Module([], [])  # a file that cannot be read has no text
    called = {last(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if "launch" in called:
        return True
    return False if "Fabric" in called else None


def _accelerate(typed: Mapping[str, str], file: str, environ: Mapping[str, str]) -> Translated:
    default = ask.default_path(environ)
    if not file and default.is_file() and "cpu" not in typed:
        file = str(default)
    if not file:
        (settings,) = ask.settle(typed)
        return launchers.accelerate(settings, decided="mixed_precision" in typed)
    try:
        settings, configured = ask.settle(typed, {}, file=file)
    except UsageError:
        # accelerate may refuse the configuration alone, and take it with what is typed
        (settings,) = ask.settle(typed, file=file)
        return launchers.accelerate(settings, decided=True)
    return launchers.accelerate_with_file(settings, configured, file)


# The command line, quoted for a shell


_COLUMNS = 100
# $NAME, ${NAME...}, $(command), $((sum))
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[^{}]*\}|\(\([^()]*\)\)|\([^()]*\))", re.ASCII)
_WORKING_FOLDER = 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"'


@dataclass(frozen=True)
class TranslatedLine:
    """A command line of ``paceline run``."""

    line: str  # the line to paste
    environment: Mapping[str, str]  # variables that it sets for the ranks
    notes: tuple[str, ...]  # options without a counterpart, and steps left to the user


def render(command: LauncherCommand, translated: Translated) -> TranslatedLine:
    """Return the ``paceline run`` line that does the same as a command."""
    arguments = command.arguments if translated.arguments is None else translated.arguments
    variables = [f"{name}={_word(value, True)}" for name, value in translated.environment.items()]
    variables += [_WORKING_FOLDER] if translated.working_folder else []
    behind_wrapper = bool(variables and command.wrappers and not command.ends_with_env)
    parts = [
        *(_assignment(word, command.unexpanded) for word in command.assigned),
        *(_word(word, True) for word in command.wrappers),
        *(["env"] if behind_wrapper else []),
        *variables,
        *_paceline(command.launcher),
        *_options(translated.options),
        *(_word(word, command.unexpanded) for word in (command.script, *arguments)),
    ]
    return TranslatedLine(_filled(parts), translated.environment, translated.notes)


def _paceline(launcher: str) -> list[str]:
    """Return the words that call paceline in the launcher's Python environment."""
    folder, slash, name = launcher.rpartition("/")
    if re.match(r"python[0-9.]*$", name):
        return [_word(launcher, True), "-m", "paceline", "run"] if slash else ["paceline", "run"]
    return [_word(f"{folder}{slash}paceline", True), "run"]


def _options(options: Mapping[str, str]) -> list[str]:
    words = []
    for name, value in options.items():
        if name == "module":
            continue
        words.append("--" + name.replace("_", "-") + (f" {_word(value, True)}" if value else ""))
    return [*words, "-m"] if "module" in options else words


def _assignment(word: str, unexpanded: bool) -> str:
    name, _, value = word.partition("=")
    return f"{name}={_word(value, unexpanded)}" if value else f"{name}="


def _word(text: str, unexpanded: bool) -> str:
    """Quote a text as one shell word, in which an unexpanded ``$NAME`` remains a variable."""
    has_variable = unexpanded and _VARIABLE.search(text)
    if not has_variable or quoting.CONTROL.search(text):
        return quoting.word(text)
    variables = [*_VARIABLE.findall(text), ""]
    literals = [re.sub(r'(["\\`$])', r"\\\1", part) for part in _VARIABLE.split(text)]
    pairs = zip(literals, variables, strict=True)
    return f'"{"".join(literal + variable for literal, variable in pairs)}"'


def _filled(words: list[str]) -> str:
    """Join words into continued lines, which a shell reads as one."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 3 > _COLUMNS:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
