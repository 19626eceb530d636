"""Show a run's progress on rank 0: a bar on a terminal during training, and a line for each epoch.

A step only stores its number and its loss. The bar reads them in a separate thread, a few times a
second, so that the loop never waits for a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

DRAWS_PER_S = 4
PACE_S = 5.0  # steps/s are measured over the last seconds


class Progress:
    """Progress of a run; the loop writes it and the bar reads it."""

    def __init__(self) -> None:
        self.stage = ""  # current stage: "epoch 3/10", "validate", "test"
        self.batch = 0  # finished batches of the stage
        self.num_batches: int | None = None  # batches of the stage; None if unknown
        self.loss: Any = None  # last loss of this rank, a tensor; None without one
        # other numbers for the bar, by name; this rank's last value, or an epoch's exact mean
        self.shown: dict[str, Any] = {}
        self.total: int | None = None  # batches of the whole fit; None if unknown
        self._before = self._done_at_start = 0
        self._batches_per_step = 1
        self._is_aside = False
        self._start_s = monotonic()
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self, *, done: int, total: int | None) -> None:
        """Record that training begins after ``done`` of ``total`` batches."""
        self._start_s, self._done_at_start, self.total = monotonic(), done, total
        self.loss, self.shown = None, {}

    def begin_stage(
        self,
        stage: str,
        num_batches: int | None,
        *,
        before: int = 0,
        batch: int = 0,
        batches_per_step: int = 1,
    ) -> None:
        """Begin a stage, after ``before`` batches of earlier stages and ``batch`` of this one."""
        self._batches_per_step = batches_per_step
        self.stage, self.num_batches, self._before, self.batch = stage, num_batches, before, batch
        self._marks = deque()  # a new object: the bar's thread may iterate over the old one

    @contextmanager
    def aside(self, stage: str, num_batches: int | None) -> Iterator[None]:
        """Show another stage inside the context."""
        before = self.stage, self.num_batches, self.batch, self._is_aside
        self.stage, self.num_batches, self.batch, self._is_aside = stage, num_batches, 0, True
        self._marks = deque()  # a new object: the bar's thread may iterate over the old one
        try:
            yield
        finally:
            self.stage, self.num_batches, self.batch, self._is_aside = before
            self._marks = deque()

    def pace(self) -> str:
        """Return the pace of the last seconds as text; empty if it is unknown."""
        now, marks = (monotonic(), self.batch), self._marks
        marks.append(now)
        while now[0] - marks[0][0] > PACE_S and len(marks) > 2:
            marks.popleft()
        seconds, batches = now[0] - marks[0][0], now[1] - marks[0][1]
        if not seconds or not batches:
            return ""
        if self._is_aside:
            return f"{batches / seconds:.4g} batches/s"
        return f"{batches / seconds / self._batches_per_step:.4g} steps/s"

    def left_s(self) -> float | None:
        """Return the remaining seconds of the fit, including validations; None if unknown."""
        done = self._before + self.batch
        fresh = done - self._done_at_start
        if self.total is None or fresh <= 0 or self._is_aside:
            return None
        return (monotonic() - self._start_s) / fresh * max(0, self.total - done)

    def numbers(self) -> str:
        """Return loss and metrics as text."""
        if self._is_aside:
            return ""
        has_loss = any("loss" in name.lower() for name in self.shown)  # under the script's name
        numbers = dict(self.shown)
        if self.loss is not None and not has_loss:
            numbers = {"loss": self.loss, **numbers}
        return " · ".join(f"{name} {as_text(value)}" for name, value in numbers.items())


def as_text(value: Any) -> str:
    """Return a number with four digits."""
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e6 else f"{number:.4g}"


def clock(seconds: float) -> str:
    """Return a duration as ``1:02:03``."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Display:
    """Shows a progress."""

    def __init__(
        self,
        progress: Progress,
        console: Console,
        *,
        enabled: bool,  # must be False on all ranks except 0
    ) -> None:
        self.progress, self._console, self._enabled = progress, console, enabled

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Show the bar inside the context, if the console is a terminal."""
        if not (self._enabled and self._console.is_terminal):
            yield
            return
        with Live(
            get_renderable=self.drawn,
            console=self._console,
            refresh_per_second=DRAWS_PER_S,
            transient=True,
        ):
            yield

    def line(self, title: str, values: Mapping[str, float]) -> None:
        """Print a permanent line."""
        if self._enabled:
            numbers = " · ".join(f"{name} {as_text(value)}" for name, value in values.items())
            text = f"{title} · {numbers}" if numbers else title
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def drawn(self) -> Table:
        """Return the current bar."""
        progress, grid = self.progress, Table.grid(padding=(0, 1))
        count = str(progress.batch)
        if progress.num_batches:
            count = f"{progress.batch}/{progress.num_batches}"
        left_s = progress.left_s()
        remaining = "" if left_s is None else f"{clock(left_s)} left"
        width = max(10, min(30, self._console.width // 5))
        bar = ProgressBar(total=progress.num_batches or None, completed=progress.batch, width=width)
        # If there is too little space, the last of the script's numbers are cut off.
        details = " · ".join(filter(None, (progress.pace(), remaining, progress.numbers())))
        grid.add_row(
            Text(progress.stage), bar, Text(count), Text(details, no_wrap=True, overflow="ellipsis")
        )
        return grid
