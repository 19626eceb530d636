"""Numbers of ranks in words: ``ranks 0, 2-7``."""

from __future__ import annotations

from collections.abc import Iterable


def named(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2-7``."""
    listed = list(ranks)
    return f"{'rank' if len(listed) == 1 else 'ranks'} {fold(listed)}"


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
