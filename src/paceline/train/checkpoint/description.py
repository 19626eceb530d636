"""Describe checkpoints as a table and as data for programs. Pure, and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.rundir import manifest
from paceline.rundir.manifest import Committed
from paceline.text.wording import aligned

_COLUMNS = ("name", "step", "epoch", "metric", "ranks", "size", "age", "")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def describe(checkpoints: Sequence[Committed], *, now_ns: int) -> list[dict[str, Any]]:
    """Return one dict for checkpoint checkpoint, as ``--json`` prints it, the latest last."""
    best = manifest.find_best(checkpoints)
    latest = checkpoints[-1] if checkpoints else None
    return [
        {
            "name": checkpoint.path.name,
            "path": str(checkpoint.path),
            "step": checkpoint.manifest.step,
            "epoch": checkpoint.manifest.epoch,
            "metric": checkpoint.manifest.metric,
            "mode": checkpoint.manifest.mode,
            "world_size": checkpoint.manifest.world_size,
            "bytes": checkpoint.manifest.num_bytes,
            "time_ns": checkpoint.manifest.time_ns,
            "age_s": round((now_ns - checkpoint.manifest.time_ns) / 1e9, 1),
            "torch": checkpoint.manifest.torch,
            "latest": checkpoint is latest,
            "best": checkpoint is best,
        }
        for checkpoint in checkpoints
    ]


def render(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows of ``describe`` as a table."""
    cells = [_cells(row) for row in rows]
    return "\n".join(aligned(_COLUMNS, cells, right=_COLUMNS[1:-1]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        str(row["step"]),
        str(row["epoch"]),
        "-" if row["metric"] is None else f"{row['metric']:.6g}",
        str(row["world_size"]),
        render_bytes(row["bytes"]),
        render_age(row["age_s"]),
        ", ".join(mark for mark in ("latest", "best") if row[mark]),
    )


def render_bytes(count: int) -> str:
    """Return a number of bytes with three digits: ``1.25 GB``."""
    if count < 1000:
        return f"{count} B"
    value, unit = float(count), "B"
    for unit in ("kB", "MB", "GB", "TB", "PB"):  # noqa: B007 -- the last unit is used below
        value /= 1000
        if value < 999.5:
            break
    return f"{value:.3g} {unit}"


def render_age(age_s: float) -> str:
    """Return an age in its largest unit: ``3 min``."""
    for unit, seconds in _UNITS:
        if age_s >= seconds:
            return f"{age_s // seconds:.0f} {unit}"
    return "now"
