"""Decide the elements of a sweep, and the arguments of each. Pure.

A sweep is one Slurm array. Each element has values for the parameters of the sweep; ``{lr}`` in an
argument of the script stands for the element's ``lr``, and a parameter that no argument names is
appended as ``--lr 0.1``.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import UsageError, closest, option_invalid
from paceline.rundir.sweeps import MOST_ELEMENTS
from paceline.text.quoting import CONTROL

_COMMENT = "# sweep: "
INDEX = "index"  # the placeholder for the element's own number
_NAME = r"[A-Za-z_][\w.-]*"
# Doubled braces are literal, as in str.format; other braces, as in JSON, are left alone.
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")
_PAIRS = ("[]", "()", "{}")
_NUMBERS = re.compile(r"range\((-?\d+(?:, *-?\d+(?:, *-?[1-9]\d*)?)?)\)")
# The inside of a list on the command line, and an item of it, which may be a list itself.
_LIST = re.compile(r"\[((?:[^][]|\[[^][]*\])*)\]")
_ITEM = re.compile(r"""\s*("[^"]*"|'[^']*'|\[[^]]*\]|\([^)]*\)|\{[^}]*\}|[^,]+?)\s*(?:,|$)""")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")


@dataclass(frozen=True)
class Element:
    """One element of a sweep."""

    index: int  # its index in the array
    values: Mapping[str, str]  # text of each parameter
    arguments: tuple[str, ...]  # arguments of the script


@dataclass(frozen=True)
class Sweep:
    """The elements of a sweep."""

    elements: tuple[Element, ...]  # the elements, by their index
    parallel: int = 0  # how many elements run at a time, 0 without a limit

    @property
    def array(self) -> str:
        """The array in sbatch's syntax, ``0-49%8``."""
        return array_text([element.index for element in self.elements], self.parallel)


def choose(
    arguments: Sequence[str],  # arguments of the script, with placeholders
    # values of each element in the order of their indices; None if only the array is given,
    # whose elements differ in their index
    points: Sequence[Mapping[str, str]] | None,
    *,
    array: str = "",  # the array as typed, ``0-49%8`` or ``%8``; empty for all elements
) -> Sweep:
    """Return the sweep of a command line.

    Raises UsageError if a placeholder has no value, or the array names an element that does not
    exist.
    """
    indices, limit = parse_array(array) if array else (None, 0)
    if indices is None and points is None:
        raise _invalid_array(array, "names no elements, and there is no --param")
    if indices is None:
        indices = tuple(range(len(points or ())))
    if points is not None and (beyond := [index for index in indices if index >= len(points)]):
        rule = f"names element {beyond[0]}, and the sweep has elements 0 to {len(points) - 1}"
        raise _invalid_array(array, rule, f"--array 0-{len(points) - 1}")
    elements = tuple(
        _element(index, points[index] if points is not None else {}, arguments) for index in indices
    )
    return Sweep(elements, limit)


def repeated(elements: Sequence[Element]) -> str:
    """Return a line about elements with the arguments of an earlier one, empty without any."""
    first: dict[tuple[str, ...], int] = {}
    pairs = []
    for element in elements:
        earlier = first.setdefault(element.arguments, element.index)
        if earlier != element.index:
            pairs.append((earlier, element.index))
    if not pairs:
        return ""
    earlier, later = pairs[0]
    return (
        f"{len(pairs)} of {len(elements)} elements have the arguments of another:"
        f" element {later} those of element {earlier}"
    )


def _element(index: int, values: Mapping[str, str], arguments: Sequence[str]) -> Element:
    return Element(index, values, filled(arguments, values, index=index))


def filled(arguments: Sequence[str], values: Mapping[str, str], *, index: int) -> tuple[str, ...]:
    """Return the arguments of an element: placeholders replaced, other parameters appended.

    Raises UsageError if a placeholder has no value.
    """
    texts = {INDEX: str(index), **values}
    named: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        if match[1]:
            return f"{{{match[1]}}}"
        if match[2] not in texts:
            raise _unknown_placeholder(match[2], [*values, INDEX])
        named.add(match[2])
        return texts[match[2]]

    words = [_PLACEHOLDER.sub(fill, argument) for argument in arguments]
    for name, text in values.items():
        if name not in named:
            words += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return tuple(words)


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a parameter."""
    return re.fullmatch(_NAME, text) is not None


def parse_array(text: str) -> tuple[tuple[int, ...] | None, int]:
    """Parse an array in sbatch's syntax: ``0-49%8``, ``1,3,5-9:2``, or ``%8`` for a limit only.

    Returns the indices, None for a limit only, and how many run at a time, 0 for any number.
    """
    listed, separator, limit = text.replace(" ", "").partition("%")
    is_limit = limit.isdecimal() and int(limit) > 0
    if separator and not is_limit:
        raise _invalid_array(text, "needs a number from 1 after %", "--array 0-49%8")
    num_parallel = int(limit or 0)
    if separator and not listed:
        return None, num_parallel
    indices: set[int] = set()
    for part in listed.split(","):
        indices.update(_range(text, part))
    return tuple(sorted(indices)), num_parallel


def _range(text: str, part: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise _invalid_array(text, f"has {part!r}, which is not an index or a range")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or not step:
        raise _invalid_array(text, f"has the range {part}, which is empty")
    if (last - first) // step >= MOST_ELEMENTS:
        raise _invalid_array(text, f"has more than {MOST_ELEMENTS:,} elements")
    return range(first, last + 1, step)


def array_text(indices: Sequence[int], parallel: int = 0) -> str:
    """Return indices in sbatch's syntax: ``0-3,7%2``."""
    parts = []
    places = enumerate(sorted(indices))
    for _, run in itertools.groupby(places, key=lambda place: place[1] - place[0]):
        members = [index for _, index in run]
        parts.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0]))
    listed = ",".join(parts)
    return f"{listed}%{parallel}" if parallel else listed


def comment(chosen: Sweep) -> str:
    """Return the values of all elements as a comment line of a job script."""
    values = {element.index: dict(element.values) for element in chosen.elements}
    return _COMMENT + json.dumps(values)


def from_comment(script: str) -> dict[int, dict[str, str]] | None:
    """Return the values of all elements from the comment in a job script, None without one.

    Raises ValueError if the comment is damaged.
    """
    line = next((line for line in script.splitlines() if line.startswith(_COMMENT)), None)
    if line is None:
        return None
    try:
        values = json.loads(line.removeprefix(_COMMENT))
        return {int(index): dict(own_values) for index, own_values in values.items()}
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not the values of elements: {error}") from None


def from_command_line(words: Sequence[str]) -> list[dict[str, str]]:
    """Return the values of each element from ``--param lr=0.1,0.01``: every combination, the
    last parameter varying fastest.

    Raises UsageError if a word is not a name and its values, a name occurs twice, or there are too
    many combinations.
    """
    axes: dict[str, list[str]] = {}
    for word in words:
        name, separator, listed = word.partition("=")
        texts = _values(word, listed.strip())
        if not separator or not is_name(name) or name == INDEX or not all(texts):
            raise _invalid_param(word, "is a name and its values", "--param lr=0.1,0.01")
        if CONTROL.search(word):
            raise _invalid_param(repr(word)[1:-1], "is one line, without control characters")
        if name in axes:
            rule = f"sets {name} a second time"
            raise _invalid_param(word, rule, f"--param {name}={','.join(axes[name])},{listed}")
        axes[name] = texts
    size = math.prod(map(len, axes.values()))
    if size > MOST_ELEMENTS:
        rule = f"makes {size:,} elements, and a sweep has at most {MOST_ELEMENTS:,}"
        raise _invalid_param(words[-1], rule)
    return [dict(zip(axes, texts, strict=True)) for texts in itertools.product(*axes.values())]


def _values(word: str, listed: str) -> list[str]:
    """Return the texts of ``0.1,0.01``, of a list ``[0.1, 0.01]`` or of ``range(3)``."""
    if listed.startswith("range("):
        return _numbers(word, listed)
    if match := _LIST.fullmatch(listed):
        items = _ITEM.findall(match[1]) or [""]
        return [re.sub(r"""^(["'])(.*)\1$""", r"\2", item) for item in items]
    texts = listed.split(",")
    pairs = _PAIRS if len(texts) > 1 else _PAIRS[:1]
    if any(text.count(pair[0]) != text.count(pair[1]) for text in texts for pair in pairs):
        fix = f"--param {word.partition('=')[0]}={re.sub('[][(){} ]', '', listed)}"
        raise _invalid_param(word, "has a bracket without its counterpart", fix)
    return texts


def _numbers(word: str, listed: str) -> list[str]:
    match = _NUMBERS.fullmatch(listed)
    numbers = range(*map(int, match[1].split(","))) if match else range(0)
    if not numbers:
        fix = f"--param {word.partition('=')[0]}=range(5)"
        raise _invalid_param(word, "is a range of whole numbers, with one at least", fix)
    return [str(number) for number in numbers[: MOST_ELEMENTS + 1]]


def _unknown_placeholder(name: str, known: Sequence[str]) -> UsageError:
    near = closest(name, known)
    return UsageError.of(
        "sweep-invalid",
        f"{{{name}}} has no value: the sweep has no parameter {name}",
        where="arguments of the script",
        evidence=(f"its placeholders: {', '.join(f'{{{parameter}}}' for parameter in known)}",),
        fix=(
            f"{{{near}}}"
            if near
            else f"--param {name}=A,B, or {{{{{name}}}}} for the braces themselves"
        ),
    )


def _invalid_array(text: str, rule: str, fix: str = "--array 0-49%8") -> UsageError:
    what = f"--array {text}: --array {rule}"
    return option_invalid(what, fix=fix)


def _invalid_param(text: str, rule: str, fix: str = "") -> UsageError:
    what = f"--param {text}: --param {rule}"
    return option_invalid(what, fix=fix)
