"""The nodes of a shell script's syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from paceline.diagnose.lint.job.shell.words import ShellError, Word

_ASSIGNED_BY_ARITHMETIC = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")

Node = Union["Simple", "GroupStatement", "If", "LoopStatement", "CaseStatement", "Function"]


@dataclass(frozen=True)
class Assign:
    """``NAME=value``, ``NAME+=value`` or ``NAME=(...)``."""

    name: str  # the variable
    value: Word | tuple[Word, ...]  # a word, or the words of an array
    append: bool  # True for ``+=``
    index: str  # ``[0]`` where one element is set
    line: int  # its line


@dataclass
class Simple:
    """One command, possibly of assignments only."""

    # assignments before the command, or those of ``export`` and its like
    assigns: list[Assign] = field(default_factory=list)
    # the command and its arguments; of ``[[ ]]`` and ``(( ))`` all of it
    words: list[Word] = field(default_factory=list)
    # operator and target; of a heredoc its body
    redirects: list[tuple[str, Word]] = field(default_factory=list)
    line: int = 0  # first line
    end_line: int = 0  # last line
    joined: str = ""  # ``&&``, ``||`` or ``|`` that binds it to the command before, else empty
    background: bool = False  # True if ``&`` follows
    negated: bool = False  # True if ``!`` stands before it


@dataclass
class GroupStatement:
    """``{ ...; }`` or ``( ... )``."""

    body: list[Node]
    subshell: bool
    line: int
    joined: str = ""
    background: bool = False


@dataclass
class If:
    """``if``: pairs of condition and body, and the else branch."""

    branches: list[tuple[list[Node], list[Node]]]
    otherwise: list[Node] | None
    line: int
    joined: str = ""
    background: bool = False


@dataclass
class LoopStatement:
    """``for``, ``while``, ``until`` or ``select``; ``name`` and ``words`` of a ``for``."""

    condition: list[Node]
    body: list[Node]
    name: str
    words: list[Word]
    line: int
    joined: str = ""
    background: bool = False


@dataclass
class CaseStatement:
    """``case``: the bodies of its clauses."""

    bodies: list[list[Node]]
    line: int
    joined: str = ""
    background: bool = False


@dataclass
class Function:
    """A function's name and body."""

    name: str
    body: list[Node]
    line: int
    joined: str = ""
    background: bool = False


@dataclass
class ShellScript:
    """A parsed script."""

    nodes: list[Node]  # the commands in order
    error: ShellError | None = None  # why parsing ended early, or None
    broken: list[int] = field(default_factory=list)  # lines whose backslash is followed by blanks
    # lines inside heredocs and quoted arguments: text that the script writes or passes on
    data_lines: set[int] = field(default_factory=set)


def assigned(nodes: list[Node]) -> Iterator[str]:
    """Yield the variables that are assigned anywhere in these nodes."""
    for node in nodes:
        if isinstance(node, Simple):
            yield from (assign.name for assign in node.assigns)
            if node.words and node.words[0].raw in ("((", "let"):
                yield from _ASSIGNED_BY_ARITHMETIC.findall(node.words[-1].raw)
        elif isinstance(node, LoopStatement) and node.name:
            yield node.name
        yield from assigned(_inner_nodes(node))


def _inner_nodes(node: Node) -> list[Node]:
    """Return the nodes of a compound command, of all its branches."""
    if isinstance(node, If):
        branches = [part for condition, body in node.branches for part in (*condition, *body)]
        return [*branches, *(node.otherwise or [])]
    if isinstance(node, CaseStatement):
        return [part for body in node.bodies for part in body]
    return node.body if isinstance(node, LoopStatement | GroupStatement) else []
