"""A progress bar on stderr for a measurement with a time limit; nothing where nobody looks."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

_WORDS, _BAR = 38, 22  # columns: the bar stays in its place, and a line fits 80 columns


class Progress:
    """The bar; a context that removes it at the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end_s = 0.0
        is_watched = sys.stderr.isatty()
        self._bar = Bar(
            TextColumn(f"{{task.description:{_WORDS}}}"),
            BarColumn(_BAR),
            TextColumn("{task.fields[left_s]:.0f} s at most"),
            console=Console(stderr=True),
            transient=True,
            disable=not is_watched,
        )
        self._task = TaskID(0)

    def __enter__(self) -> Progress:
        self._end_s = time.monotonic() + self._seconds
        self._task = self._bar.add_task("", total=self._seconds, left_s=self._seconds)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, words: str) -> None:
        """Say what is being measured."""
        self._bar.update(self._task, description=words)

    def tick(self) -> None:
        """Move the bar to the time that has passed."""
        left_s = max(0.0, self._end_s - time.monotonic())
        self._bar.update(self._task, completed=self._seconds - left_s, left_s=left_s)
