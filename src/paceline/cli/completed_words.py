"""What a word of a command line may be, for completion in shells.

A shell asks at each press of the tab key, so nothing that is slow is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from paceline.codes import CODES
from paceline.rundir.files import run_folders

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
# Placeholders of options that stand for one of several words: report|stop|off.
_CHOICE = re.compile(r"[a-z0-9-]+(\|[a-z0-9-]+)+")


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return that a file is expected; the shell lists its own."""
    return [CompletionItem(incomplete, type="file")]


def folders(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return that a folder is expected."""
    return [CompletionItem(incomplete, type="dir")]


def findings_or_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names and codes of findings that begin so, and files.

    Without a letter there would be hundreds, so only files are offered.
    """
    names = [*CODES, *CODES.values()] if incomplete else []
    items = [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]
    # first: the function of bash forgets what came before a file
    return [*files(context, parameter, incomplete), *items]


def runs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the run folders of this folder, the newest first, and other folders."""
    paths = [
        f"{folder}/{entry.name}"
        for folder in run_folders()
        for entry in sorted(folder.iterdir(), reverse=True)
        if entry.is_dir()
    ]
    items = [CompletionItem(path) for path in paths if path.startswith(incomplete)]
    return items or folders(context, parameter, incomplete)


def of_placeholder(metavar: str) -> Complete | None:
    """Return how the value of an option is completed: FILE, DIR and ``a|b`` say it."""
    if _CHOICE.fullmatch(metavar):
        return _one_of(metavar.split("|"))
    if metavar.startswith("FILE"):
        return files
    return folders if metavar in ("DIR", "FOLDER") else None


def _one_of(words: list[str]) -> Complete:
    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete
