"""The source as syntax trees, which is what most laws look at."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    module: str  # full name, ``paceline.machine.host``; of a package's door the package's name
    path: str  # below ``src/paceline``, with slashes
    text: str
    tree: ast.Module


def _read(path: Path) -> Source:
    place = path.relative_to(ROOT)
    parts = [part for part in place.with_suffix("").parts if part != "__init__"]
    text = path.read_text(encoding="utf-8")
    return Source(".".join(["paceline", *parts]), place.as_posix(), text, ast.parse(text))


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every file of the package."""
    return [_read(path) for path in sorted(ROOT.rglob("*.py"))]
