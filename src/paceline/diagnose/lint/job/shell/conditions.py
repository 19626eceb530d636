"""Decide shell conditions whose outcome follows from the directives and the script itself."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from paceline.diagnose.lint.job.shell.tree import Node, Simple
from paceline.diagnose.lint.job.shell.values import Expander, constant

_NUMBER = re.compile(r"-?\d+")
TESTS = ("[", "test", "[[", "((")
_OUTCOMES = {"true": True, ":": True, "false": False}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def decide(nodes: list[Node], expander: Expander) -> bool | None:
    """Return the outcome of a condition, or None if it is only known when the job runs."""
    if len(nodes) != 1 or not isinstance(nodes[0], Simple) or not nodes[0].words:
        return None
    outcome = _outcome(nodes[0], expander)
    return None if outcome is None else outcome != nodes[0].negated


def _outcome(command: Simple, expander: Expander) -> bool | None:
    head, *arguments = command.words
    if head.raw in _OUTCOMES:
        return _OUTCOMES[head.raw]
    if head.raw == "((":
        result = expander.arithmetic(arguments[0].raw)
        return result != "0" if constant(result) and _NUMBER.fullmatch(result) else None
    if head.raw not in ("[", "test", "[["):
        return None
    texts = [expander.text(word) for word in arguments]
    if head.raw != "test":
        texts = texts[:-1]  # the closing bracket
    if texts[:1] == ["!"]:
        inverse = _test(texts[1:])
        return None if inverse is None else not inverse
    return _test(texts)


def _test(texts: list[str]) -> bool | None:
    if not all(constant(text) for text in texts):
        return None
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    # Longer tests are joined by -a, -o, && or ||, and -f and its like ask for files of the cluster.
    if len(texts) != 3:
        return None
    first, sign, second = texts
    if sign in _COMPARISONS and _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second):
        return _COMPARISONS[sign](int(first), int(second))
    # In [[ ]] the right side is a pattern; quotes around it are lost by now.
    if sign in ("=", "==", "!=") and not re.search(r"[*?\[]", second):
        return (first == second) == (sign != "!=")
    return None


def is_test(nodes: list[Node]) -> bool:
    """Return whether a condition is a single ``[``, ``test``, ``[[`` or ``((``."""
    if len(nodes) != 1 or not isinstance(nodes[0], Simple) or not nodes[0].words:
        return False
    return nodes[0].words[0].raw in TESTS
