"""Put back the files that the trials of a command have changed, and say what they wrote.

The ranks keep the copies (``launch.in_rank.kept_files``).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline import env
from paceline.launch.in_rank.kept_files import records
from paceline.rundir import files
from paceline.text import terminal
from paceline.text.wording import few


@contextmanager
def keeping() -> Iterator[None]:
    """Leave the files of the user as they were, apart from new ones; name both at the end."""
    # In this folder and not in /tmp, which may be small: if this process is killed, they are here.
    folder = Path.cwd() / f"paceline-kept-{secrets.token_hex(4)}"
    env.put(env.KEPT_FILES, str(folder))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        try:
            put_back()
        except OSError as error:
            terminal.say(f"files that the script changed cannot be put back from {folder}: {error}")
        else:
            _tell(folder)
            shutil.rmtree(folder, ignore_errors=True)
        env.take(env.KEPT_FILES)


def put_back() -> None:
    """Write each changed file as it was; its copy stays for the next trial."""
    folder = Path(env.read(env.KEPT_FILES) or os.devnull)
    for record in records(folder):
        if record["copy"]:
            path = Path(record["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.name}.paceline-kept")
            shutil.copy2(folder / record["copy"], beside, follow_symlinks=False)
            beside.replace(path)


def _tell(folder: Path) -> None:
    written = records(folder)
    changed = [record["path"] for record in written if record["copy"]]
    new = [record["path"] for record in written if not record["copy"]]
    new = [path for path in new if os.path.exists(path)]
    if changed:
        terminal.say(f"files that the script changed are as before: {_names(changed)}")
    if new:
        terminal.say(f"new files of the script: {_names(new)}")


def _names(paths: list[str]) -> str:
    return few([files.display_path(Path(path)) for path in paths])
