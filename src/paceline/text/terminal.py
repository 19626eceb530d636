"""Format paceline's messages for a terminal: wrap lines, colour severities. Standard library only.

Messages quote what came from a run, such as the text of an exception: its control characters are
escaped. Output to a file or a pipe stays unwrapped: programs such as ``grep`` find one message on
one line.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from paceline import env
from paceline.text.quoting import printable_lines
from paceline.text.wording import wrapped

_LEAST_COLUMNS = 40  # narrower terminals wrap lines themselves
_RESET = "\x1b[0m"
_COLOURS = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "notice": "\x1b[1;36m",
    "hint": "\x1b[36m",
}
_HEAD = re.compile(
    r"^((?:paceline: )?)(error|warning|hint|notice|cause|likely cause|hang)(?=[ :])", re.MULTILINE
)
_LABEL = re.compile(r"^(  )(fix|resume|auto-resume|traceback)(?=: )", re.MULTILINE)
_BOLD = "\x1b[1m"
# A command to paste stays on one line: a line feed would end it.
_COMMAND = re.compile(
    r"^[^:]*: *"
    r"(?:\(trap|[A-Z_]+=|(?:paceline|srun|sbatch|scancel|scontrol|kill|export|pip|python3?|less|df"
    r"|ssh|git) )"
)


def say(text: str) -> None:
    """Print a message to stderr."""
    show(f"paceline: {text}", sys.stderr)


def show(text: str, stream: TextIO | None = None) -> None:
    """Print text, wrapped to the terminal's width if the stream, by default stdout, is one."""
    stream = sys.stdout if stream is None else stream
    print(fitted(text, columns_of(stream)), file=stream, flush=True)


def columns_of(stream: TextIO | int) -> int:
    """Return the number of columns of a terminal; 0 for anything else."""
    try:
        handle = stream if isinstance(stream, int) else stream.fileno()
        return os.get_terminal_size(handle).columns if os.isatty(handle) else 0
    except (OSError, ValueError, AttributeError):  # closed, or a substitute without a descriptor
        return 0


def fitted(text: str, columns: int) -> str:
    """Escape control characters, and wrap text to some columns; 0 leaves lines as they are."""
    text = printable_lines(text)
    if not columns:
        return text
    if columns >= _LEAST_COLUMNS:
        text = "\n".join(_wrapped(line, columns) for line in text.split("\n"))
    return _coloured(text) if env.wants_colour() else text


def _wrapped(line: str, columns: int) -> str:
    if len(line) <= columns or _COMMAND.match(line):
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    lines = wrapped(line.strip(), columns, first=indent, rest=f"{indent}  ")
    # without its indentation, a path with a line may fit, and can be copied
    return "\n".join(line if len(line) <= columns else line.strip() for line in lines)


def _coloured(text: str) -> str:
    text = _HEAD.sub(
        lambda match: f"{match[1]}{_COLOURS.get(match[2], _COLOURS['error'])}{match[2]}{_RESET}",
        text,
    )
    return _LABEL.sub(rf"\1{_BOLD}\2{_RESET}", text)
