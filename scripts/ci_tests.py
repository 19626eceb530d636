"""Compares which test functions CI runs in two checkouts, by a list of successors.

    python scripts/ci_tests.py BEFORE AFTER

BEFORE and AFTER are files with one test a line, as ``pytest --collect-only -q`` prints them for all
selections of ``make test-ci``. A function that is gone needs a line in docs/weight/successors/*.tsv:
old, tab, new, and a reason if new is ``-``. A line of two files stands for all their functions. Exit
status 1 if a function is missing, or its successor.
"""

from __future__ import annotations

import sys
from pathlib import Path

SUCCESSORS = Path(__file__).resolve().parents[1] / "docs" / "weight" / "successors"


def functions(listed: Path) -> set[str]:
    """Return the test functions of a list, without parameters."""
    lines = listed.read_text(encoding="utf-8").splitlines()
    return {line.partition("[")[0] for line in lines if "::" in line}


def successors() -> dict[str, str]:
    """Return what has become of tests and files."""
    became = {}
    for file in sorted(SUCCESSORS.glob("*.tsv")):
        for line in file.read_text(encoding="utf-8").splitlines():
            old, new = line.split("\t")[:2]
            became[old] = new
    return became


def successor(test: str, became: dict[str, str]) -> str:
    """Return the name of a test now; ``-`` if it went with what it tested."""
    while test in became and became[test] != test:
        test = became[test]
    path, _, name = test.partition("::")
    return f"{became[path]}::{name}" if path in became else test


def main(before: Path, after: Path) -> int:
    """Print what is missing."""
    became = successors()
    old, new = functions(before), functions(after)
    now = {test: successor(test, became) for test in old}
    missing = sorted(test for test, name in now.items() if name not in new and name != "-")
    for test in missing:
        print(f"{test}: not run, nor {now[test]}")
    gone = sum(name == "-" for name in now.values())
    print(f"{len(old)} functions before, {len(new)} now, {gone} gone, {len(missing)} missing")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
