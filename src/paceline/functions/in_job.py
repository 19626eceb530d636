"""Make the call of a job on every rank; ``python -m paceline.functions.in_job`` in its run folder.

The result of rank 0 becomes that of the job. An exception ends the rank as it would end a script,
so that the launcher finds its cause. Status 75 means unfinished, as everywhere: the job is queued
again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import UsageError
from paceline.functions import pickles
from paceline.rundir import owned
from paceline.rundir.files import RunDir


def main() -> None:
    """Make the call of this process's run folder, and raise what the function has raised."""
    run_dir = RunDir(Path(env.read(env.RUN_DIR) or os.curdir))
    rank = int(env.read(env.RANK) or 0)
    # Of an earlier start, if the job was queued again: a reader takes what is there for the end.
    owned.delete(run_dir.exception(rank))
    if not rank:
        owned.delete(run_dir.result)
    function, arguments = _load(run_dir)
    value = _call(function, arguments, exception=run_dir.exception(rank))
    if not rank:
        pickles.write_result(run_dir.result, value)


def _load(run_dir: RunDir) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Return the function and its arguments; those of a map have the function in common."""
    of_map = RunDir(run_dir.root.absolute().parent)
    path = run_dir.function if run_dir.function.exists() else of_map.function
    try:
        function = pickles.load(path, extend_path=True)
        return function, pickles.load(run_dir.arguments)
    except OSError as error:
        raise UsageError.of(
            "input-unreadable",
            f"{run_dir.root} has no call of a function: {error.strerror}",
            where=str(error.filename or path),
            fix="paceline.submit(function, argument) makes one",
        ) from None


def _call(function: Callable[..., Any], arguments: Sequence[Any], *, exception: Path) -> Any:
    try:
        return function(*arguments)
    except SystemExit as stop:
        if stop.code in (None, 0):
            return None  # as a script that ends so
        raise
    except BaseException as error:
        pickles.write_exception(exception, error)
        raise


if __name__ == "__main__":
    main()
