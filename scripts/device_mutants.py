"""Takes away each wait for a device in ``src`` once, and asks the tests on the emulated accelerator.

    python scripts/device_mutants.py [--only PATTERN]

A wait is a call of torch's ``synchronize``, ``wait_stream``, ``record_stream`` and their kin, or an
event that is made, recorded or asked (``tests/accelerator_uses.py``). Those that only a GPU can show,
by docs/reference/gpu-readiness.md, are left alone. The others are replaced by what does nothing, in
a copy of ``src``, and the tests that the page names for that file run on it. The table says which
test failed first; the status is 1 if a wait is held by none.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import applied, at

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import accelerator_uses  # noqa: E402

LIMIT_S = 240
NOTHING = "(lambda *_, **__: None)"
NO_EVENT = (
    "__import__('types').SimpleNamespace(record=lambda *_: None, query=lambda: True,"
    " synchronize=lambda: None, elapsed_time=lambda _: 0.0)"
)


def removed(use: accelerator_uses.Use) -> str:
    """Return the expression that stands for a use without its effect."""
    if not isinstance(use.node, ast.Call):
        return NOTHING  # a function that is passed on
    name = use.text.rpartition(".")[2]
    return {"Event": NO_EVENT, "query": "True"}.get(name, "None")


def tests_by_file(listed: dict[tuple[str, str, str], str]) -> dict[str, list[str]]:
    """Return the tests that the page names for each file of the source."""
    found: dict[str, list[str]] = {}
    for (path, _, _), last in listed.items():
        tests = found.setdefault(path, [])
        tests += [name for name in re.findall(r"tests/device/[\w.:]+", last) if name not in tests]
    return found


def first_failure(source: Path, tests: list[str]) -> str:
    """Return the test that fails first with a copy of the source; empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    if ended.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py::\S+)", ended.stdout, re.M)
    return failed[1] if failed else f"pytest ended with {ended.returncode}"


def main(pattern: str) -> int:
    """Try all mutants that a pattern chooses, and print the table."""
    listed = accelerator_uses.listed(accelerator_uses.WAITS_HEADING)
    tests = tests_by_file(listed)
    healthy: dict[str, str] = {}  # the failure of a file's tests without a mutant
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        package = copy / "paceline"
        for use in accelerator_uses.of_source(package, accelerator_uses.waits):
            name = f"{use.path}:{use.node.lineno} {use.function}: {use.text}"
            if not re.search(pattern, name):
                continue
            if accelerator_uses.ONLY_A_GPU in listed.get(use.place, ""):
                print(f"{name:90} only a GPU can show it", flush=True)
                continue
            concerned = tests.get(use.path) or ["tests/device"]
            if use.path not in healthy:
                healthy[use.path] = first_failure(copy, concerned)
            if healthy[use.path]:
                result, killed = f"NOT TRIED: {healthy[use.path]} fails as it is", False
            else:
                killer = with_mutant(copy, use, concerned)
                result, killed = killer or "SURVIVED", bool(killer)
            survived += not killed
            print(f"{name:90} {result}", flush=True)
    return 1 if survived else 0


def with_mutant(copy: Path, use: accelerator_uses.Use, tests: list[str]) -> str:
    """Return the test that fails first without a wait; empty if all pass."""
    file = copy / "paceline" / use.path
    original = file.read_text(encoding="utf-8")
    file.write_text(applied(at(use.node, removed(use)), original), encoding="utf-8")
    try:
        return first_failure(copy, tests)
    finally:
        file.write_text(original, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a pattern of FILE:LINE FUNCTION: USE")
    sys.exit(main(parser.parse_args().only))
