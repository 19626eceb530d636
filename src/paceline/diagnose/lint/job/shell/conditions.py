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
    head, *arguments = nodes[0].words
    if head.raw in _OUTCOMES:
        return _OUTCOMES[head.raw]
    if head.raw == "((":
        return _is_true(expander.arithmetic(arguments[0].raw))
    if head.raw not in ("[", "test", "[["):
        return None
    texts = [expander.text(word) for word in arguments]
    if head.raw != "test":
        texts = texts[:-1]  # the closing bracket
    if texts[:1] == ["!"]:
        inverse = _test(texts[1:])
        return None if inverse is None else not inverse
    return _test(texts)


def _is_true(result: str) -> bool | None:
    """Return whether the result of ``(( ))`` is true, None if it is unknown."""
    return result != "0" if constant(result) and _NUMBER.fullmatch(result) else None


def _test(texts: list[str]) -> bool | None:
    if not all(constant(text) for text in texts):
        return None
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) != 3:
        return None
    first, sign, second = texts
    if sign in _COMPARISONS and _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second):
        return _COMPARISONS[sign](int(first), int(second))
    if sign in ("=", "==", "!=") and not re.search(r"[*?\[]", second):
        return (first == second) == (sign != "!=")
    return None


def is_test(nodes: list[Node]) -> bool:
    """Return whether a condition is a single ``[``, ``test``, ``[[`` or ``((``."""
    if len(nodes) != 1 or not isinstance(nodes[0], Simple) or not nodes[0].words:
        return False
    return nodes[0].words[0].raw in TESTS
