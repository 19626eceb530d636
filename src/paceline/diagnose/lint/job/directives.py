"""The ``#SBATCH`` lines of a script, parsed as sbatch does: up to the first command."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from paceline.diagnose.lint.job.sbatch_options import SBATCH, canonical, takes_value

_DIRECTIVE = "#SBATCH"
_LOWER = re.compile(r"#sbatch\s+(-.*)", re.IGNORECASE)

_TEXTS = ("account", "comment", "job-name", "mail-user", "wckey")  # may be empty behind "="


@dataclass(frozen=True)
class Directive:
    """One option of one line."""

    name: str  # its long name, or as typed if Slurm has none
    typed: str  # as it is written, with dashes
    value: str  # its value; empty for a flag
    line: int  # its line
    exists: bool = True  # False if Slurm has no such option
    lacks_value: bool = False  # True if the value is missing


@dataclass
class Directives:
    """The directives of a script."""

    # options that sbatch reads, in order, of a heterogeneous job those of the first component
    active: list[Directive] = field(default_factory=list)
    # options after the first command, which sbatch does not read
    late: list[Directive] = field(default_factory=list)
    # lines with ``#sbatch`` in lower case: line and text
    lower: list[tuple[int, str]] = field(default_factory=list)
    # words that belong to no option: word and line
    stray: list[tuple[str, int]] = field(default_factory=list)
    unclosed: list[int] = field(default_factory=list)  # lines with a quote that is not closed
    components: int = 1  # components of a heterogeneous job, 1 for a plain one

    @property
    def any(self) -> bool:
        """Whether this is a job script at all."""
        return bool(self.active or self.late or self.stray)

    def last(self, *names: str) -> Directive | None:
        """Return the last directive of these names, also among those that sbatch does not read."""
        matches = [d for d in (*self.active, *self.late) if d.name in names]
        return matches[-1] if matches else None


def parse(source: str, data_lines: set[int]) -> Directives:
    """Read the directives."""
    directives = Directives()
    in_head = True
    for number, raw in enumerate(source.split("\n"), 1):
        line = raw.rstrip("\r")
        if line.startswith(_DIRECTIVE):
            if in_head or number not in data_lines:
                _read(line, number, directives, in_head=in_head)
        elif (
            (lower := _LOWER.match(line)) and "SBATCH" not in line[:9] and number not in data_lines
        ):
            directives.lower.append((number, lower[1]))
        elif line.strip() and not line.lstrip().startswith("#"):
            in_head = False
    return directives


def _read(line: str, number: int, directives: Directives, *, in_head: bool) -> None:
    words, closed = split(line[len(_DIRECTIVE) :])
    if not closed:
        directives.unclosed.append(number)
    # packjob is what hetjob was called before Slurm 20.02.
    if in_head and any(word in ("hetjob", "packjob") for word in words):
        directives.components += 1
        return
    target = directives.active if in_head else directives.late
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.startswith("--") and len(word) > 2:
            at += _long(word, words[at:], number, target)
        elif word.startswith("-") and len(word) > 1:
            at += _short(word, words[at:], number, target)
        elif in_head:
            directives.stray.append((word, number))
    # Options of the other components of a heterogeneous job would pass for those of the first.
    if directives.components > 1:
        target[:] = [directive for directive in target if directive.line != number]


def split(text: str) -> tuple[list[str], bool]:
    """Split a directive as sbatch does, and return whether its quotes are closed."""
    words: list[str] = []
    current, begun, quote, escaped = "", False, "", False
    for char in text:
        if escaped:
            current, escaped = current + char, False
        elif char == "\\":
            escaped = begun = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                current += char
        elif char in "\"'":
            quote, begun = char, True
        elif char == "#":
            break
        elif char.isspace():
            if begun:
                words.append(current)
            current, begun = "", False
        else:
            current, begun = current + char, True
    if begun:
        words.append(current)
    return words, not quote


def _long(word: str, following: list[str], number: int, target: list[Directive]) -> int:
    typed, equals, value = word[2:].partition("=")
    name = canonical(typed)
    is_text = bool(equals) and name in _TEXTS
    needs = takes_value(name or typed) and not is_text
    if equals or not needs:
        # an unknown option takes its value along, so that one mistake is reported once
        follows = not equals and not name and following[:1] and not following[0].startswith("-")
        value = following[0] if follows else value
        target.append(
            Directive(name or typed, "--" + typed, value, number, bool(name), needs and not value)
        )
        return 1 if follows else 0
    value = following[0] if following else ""
    target.append(Directive(name or typed, "--" + typed, value, number, bool(name), not following))
    return 1


def _short(word: str, following: list[str], number: int, target: list[Directive]) -> int:
    name = canonical(word[1])
    if name and SBATCH[name][1] != "value":
        target.append(Directive(name, word[:2], "", number))
        return 0
    # -n4, -n 4 and -n=4: the last is an error of sbatch for numbers, and what was meant is clear.
    value = word[2:].removeprefix("=") or (following[0] if following else "")
    consumed = 0 if word[2:] else 1
    target.append(Directive(name or word[1], word[:2], value, number, bool(name), not value))
    return consumed
