"""Decide shell conditions whose outcome follows from the directives and the script itself."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from paceline.diagnose.lint.job.shell.tree import Node, Simple
from paceline.diagnose.lint.job.shell.values import Expander, constant

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
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
    words = nodes[0].words
    head = words[0].raw
    if head == "((":
        result = expander.arithmetic(words[1].raw)
        return result != "0" if constant(result) and re.fullmatch(r"-?\d+", result) else None
    if head in ("true", ":"):
        return True
    if head == "false":
        return False
    if head not in ("[", "test", "[["):
        return None
    texts = [expander.text(word) for word in words[1:]]
    if head != "test" and texts:
        texts = texts[:-1]
    if texts[:1] == ["!"]:
        inverse = _test(texts[1:])
        return None if inverse is None else not inverse
    return _test(texts)


def _test(texts: list[str]) -> bool | None:
    if not all(constant(text) for text in texts):
        return None
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) != 3:
        return None
    left, sign, right = texts
    if sign in _NUMBERS and re.fullmatch(r"-?\d+", left) and re.fullmatch(r"-?\d+", right):
        return _NUMBERS[sign](int(left), int(right))
    if sign in ("=", "==", "!=") and not re.search(r"[*?\[]", right):
        return (left == right) == (sign != "!=")
    return None
