"""Read and write command lines of ``paceline run``. Pure. Standard library only.

torchrun parses its command line with argparse, and paceline with click, for which abbreviations,
``-t=3`` and ``script.py -- x`` are expanded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from paceline.launch.plan.option import Option, as_words
from paceline.launch.plan.options import OPTIONS

_FORMS = {
    form: option
    for option in OPTIONS
    for form in (option.long, f"--{option.name}", option.short)
    if form
}


def write(options: Iterable[tuple[str, str]], program: Sequence[str]) -> str:
    """Return the command line of a run, to paste into a shell; the value of a flag is empty."""
    words = [word for name, value in options for word in as_words(name, value)]
    return shlex.join(["paceline", "run", *words, *program])


def in_full(words: Sequence[str]) -> list[str]:
    """Return a command line without the forms that only argparse understands."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        form, value = _split(rest[0])
        option = _FORMS.get(form) or abbreviated(form)
        if option is None:
            return options + rest  # click reports what is wrong with it
        if form not in _FORMS:
            form = f"--{option.name}" if "_" in form else option.long
        num_words = 1 if option.flag or value is not None else 2
        options.append(form if value is None else f"{form}{'=' * form.startswith('--')}{value}")
        options += rest[1:num_words]
        del rest[:num_words]
    return options + _without_separator(rest)


def abbreviated(form: str) -> Option | None:
    """Return the torchrun option that a prefix abbreviates; None if there is not exactly one."""
    matches = {option.name: option for option in abbreviated_by(form)}
    return next(iter(matches.values())) if len(matches) == 1 else None


def abbreviated_by(form: str) -> list[Option]:
    """Return the options of torchrun that begin with a form."""
    if not form.startswith("--"):
        return []
    return [
        option for option in OPTIONS if not (option.ours or option.newer) and _begins(option, form)
    ]


def _begins(option: Option, form: str) -> bool:
    return option.long.startswith(form) or f"--{option.name}".startswith(form)


def _split(word: str) -> tuple[str, str | None]:
    """Return the form of an option, and the value in the same word, None if there is none."""
    if word.startswith("--"):
        form, equals, value = word.partition("=")
        return form, value if equals else None
    return word[:2], word[2:].removeprefix("=") or None


def _without_separator(words: list[str]) -> list[str]:
    """Return the script and its arguments as argparse passes them on.

    Some versions of Python remove ``--`` after the script, others do not; the result is that of
    this version.
    """
    if "--" not in words or words == ["--"]:
        return words
    from argparse import REMAINDER, ArgumentParser

    parser = ArgumentParser(add_help=False)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=REMAINDER)
    namespace = parser.parse_args(words)
    return ["--", namespace.script, *namespace.arguments]
