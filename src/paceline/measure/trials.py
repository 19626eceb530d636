"""Create the folder of a command that runs trials, and show its progress."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import SetupError, option_invalid
from paceline.launch.plan import folder_errors
from paceline.rundir import files
from paceline.rundir.files import RUNS

Say = Callable[[str], Callable[[], None]]


def new_folder(command: str, script: str, requested: Path | None) -> Path:
    """Create the run folder of a command such as ``"bench"``, with one for those of trials.

    Raises UsageError if the requested folder has trials, SetupError if it cannot be written.
    """
    name = f"{command}-{files.script_stem(script)}"
    new_id = files.new_run_id(name, now_s=time.time(), salt=secrets.token_hex(2))
    root = requested or RUNS / new_id
    try:
        (root / "trials").mkdir(parents=True)
        files.require_space(root)
    except FileExistsError:
        what = f"{root} has the trials of another {command}"
        raise option_invalid(what, where="--run-dir", fix="--run-dir NEW-FOLDER") from None
    except OSError as error:
        raise SetupError(folder_errors.unusable(root, error, option="--run-dir")) from None
    return root.absolute()


@contextmanager
def progress(num_trials: int) -> Iterator[Say]:
    """Show a progress bar on stderr, if a person looks at it.

    It has no thread, because trials are started by a fork.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=num_trials)
    num_begun = 0

    def say(words: str) -> Any:
        nonlocal num_begun
        bar.update(task, description=words, completed=num_begun, refresh=True)
        num_begun += 1
        return bar.refresh

    with bar:
        yield say
