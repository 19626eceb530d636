"""The tests of the slow suites that .ci/run runs: named in representative.txt, one a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).with_name("representative.txt")


def representative_tests() -> set[str]:
    """Return the names in ``representative.txt``."""
    lines = (line.partition("#")[0].strip() for line in LIST.read_text().splitlines())
    return {line for line in lines if line}


def names_of(nodeid: str) -> Iterator[str]:
    """Yield the names that stand for a test: its own, that without parameters, and its file."""
    yield nodeid
    yield nodeid.partition("[")[0]
    yield nodeid.partition("::")[0]
