"""Draws docs/raw/picture.svg from the raw numbers of the benchmarks.

python benchmarks/launch.py --json > docs/raw/launch.json
python benchmarks/overhead.py --json > docs/raw/overhead.json
python benchmarks/picture.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RAW = Path(__file__).parent.parent / "docs" / "raw"
OURS, THEIRS, INK = "#2563eb", "#9ca3af", "#111827"
ROW, LEFT, WIDTH = 21, 265, 720
SIDES = {
    "probe": "paceline run's probe",
    "session": "paceline.Session",
    "fabric": "Lightning Fabric",
    "accelerate": "Accelerate",
    "trainer": "Lightning Trainer",
}


def bar(y: int, label: str, value: float, scale: float, *, unit: str, colour: str) -> list[str]:
    length = max(1.0, value * scale)
    return [
        f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{label}</text>',
        f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="15" rx="2" fill="{colour}"/>',
        f'<text x="{LEFT + length + 6:.1f}" y="{y + 13}">{value:.3g} {unit}</text>',
    ]


def group(
    y: int, title: str, rows: list[tuple[str, float, str]], unit: str
) -> tuple[int, list[str]]:
    longest = max(value for _, value, _ in rows)
    scale = (WIDTH - LEFT - 90) / longest
    parts = [f'<text x="12" y="{y + 14}" font-weight="600">{title}</text>']
    y += ROW
    for label, value, colour in rows:
        parts += bar(y, label, value, scale, unit=unit, colour=colour)
        y += ROW
    return y + 10, parts


def start_rows(found: dict) -> list[tuple[str, float, str]]:
    rows = []
    for case, sides in found["seconds"].items():
        if "torchrun" in sides:
            rows.append((f"{case}: paceline", statistics.median(sides["paceline"]), OURS))
            rows.append(("torchrun", statistics.median(sides["torchrun"]), THEIRS))
    return rows


def step_rows(found: dict) -> list[tuple[str, float, str]]:
    """Medians of what a block took more than the raw loop's of the same turn, in µs."""
    rows = []
    for name, title in SIDES.items():
        rounds = found["seconds_per_step"].get(name)
        if rounds:
            pairs = zip(rounds, found["seconds_per_step"]["raw"], strict=True)
            over = [
                statistics.median(a - b for a, b in zip(*pair, strict=True)) * 1e6 for pair in pairs
            ]
            rows.append(
                (title, statistics.median(over), OURS if title.startswith("paceline") else THEIRS)
            )
    return rows


def main() -> None:
    launch = json.loads((RAW / "launch.json").read_text())
    overhead = json.loads((RAW / "overhead.json").read_text())
    y, parts = group(8, "Start-up and restart, seconds (less is better)", start_rows(launch), "s")
    y, more = group(
        y, "Cost of a step over a raw loop, µs (less is better)", step_rows(overhead), "µs"
    )
    body = "\n".join([*parts, *more])
    (RAW / "picture.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    main()
