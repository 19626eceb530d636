"""Put lists, numbers, sizes, times and tables into words: ``ranks 0, 2-7``, ``a, b and 3 more``."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence, Sized
from typing import TypeVar

_Value = TypeVar("_Value")


def wrapped(text: str, columns: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return a text in lines; paths and addresses stay whole for copying."""
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def named(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2-7``."""
    listed = list(ranks)
    return f"{'rank' if len(listed) == 1 else 'ranks'} {fold(listed)}"


def is_or_are(items: Sized) -> str:
    """Return the verb for a sentence about these items: ``rank 3 is``, ``ranks 0, 2-7 are``."""
    return "is" if len(items) == 1 else "are"


def has_or_have(items: Sized) -> str:
    """Return the verb for a sentence about these items: ``rank 3 has``, ``ranks 0, 2-7 have``."""
    return "has" if len(items) == 1 else "have"


def wait_or_waits(items: Sized) -> str:
    """Return the verb for a sentence about these items: ``rank 3 waits``, ``ranks 0, 2-7 wait``."""
    return "waits" if len(items) == 1 else "wait"


def fold(numbers: Iterable[int]) -> str:
    """Fold numbers into ranges: ``0, 2-7``."""
    ordered = sorted(set(numbers))
    parts: list[str] = []
    start = 0
    for place, number in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != number + 1:
            first = ordered[start]
            parts.append(str(first) if first == number else f"{first}-{number}")
            start = place + 1
    return ", ".join(parts)


def few(words: Sequence[str], most: int = 4) -> str:
    """Return the first words and the number of the others: ``node-a, node-b and 3 more``."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def few_lines(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the first lines, and a line with the number of the others."""
    more = len(lines) - most
    return (*lines[:most], f"and {more} more") if more > 0 else tuple(lines)


def duration(seconds: float) -> str:
    """Return a time in a convenient unit: ``90 s``, ``15 min``, ``2 h``."""
    if seconds >= 7200 and seconds % 3600 == 0:
        return f"{seconds / 3600:.0f} h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:g} s"


def size(num_bytes: float) -> str:
    """Return a number of bytes in a binary unit, with three digits: ``256 MiB``."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 2**power:
            return f"{num_bytes / 2**power:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def count(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 GPU``, ``2 GPUs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def milliseconds(seconds: float) -> str:
    """Return a short time in milliseconds, with three digits at most below a second."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds * 1000:.0f} ms"


def ends_of(values: Sequence[_Value], most: int) -> Sequence[_Value]:
    """Return the first and the last values of more than ``most``; all of fewer."""
    half = most // 2
    return values if len(values) <= most else [*values[:half], *values[-half:]]


def shorten_middle(text: str, most: int) -> str:
    """Shorten a text of many lines to about ``most`` characters, and say so where it is cut."""
    if len(text) <= most:
        return text
    half, left_out = most // 2, len(text) - most
    return f"{text[:half]}\n[{left_out} characters are left out here]\n{text[-half:]}"


def shorten(line: str, most: int = 300) -> str:
    """Shorten a line to at most ``most`` characters; a shortened line ends with an ellipsis."""
    return line if len(line) <= most else line[: most - 1] + "…"


def aligned(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),  # columns whose cells are aligned to the right, as numbers are
) -> list[str]:
    """Return the lines of a table, the header first."""
    lines = [columns, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
