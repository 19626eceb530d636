"""Align the cells of a table for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
