"""Show where the time of a ``fit`` goes: ``Trainer(profiler="simple")`` or ``"pytorch"``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from paceline.train.trainer.options import invalid

TRACE = "trace.json"


class NoProfiler:
    """Measures nothing."""

    @contextmanager
    def running(self, trainer: Any) -> Iterator[None]:
        """Run the context as it is."""
        yield

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as it is."""
        return function

    def iterate(self, name: str, values: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator as it is."""
        return values


class SimpleProfiler(NoProfiler):
    """Measures how long each part of the loop takes on rank 0, and prints a table.

    On a GPU, work is measured where the script waits for it.
    """

    def __init__(self) -> None:
        self._durations_s: dict[str, list[float]] = {}

    @contextmanager
    def running(self, trainer: Any) -> Iterator[None]:
        """Measure inside the context, and print the table at its end."""
        self._durations_s = {}
        start = time.monotonic()
        try:
            yield
        finally:
            if trainer.is_global_zero:
                trainer.console.print(self.table(time.monotonic() - start))

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are measured."""

        @functools.wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            start = time.monotonic()
            try:
                return function(*args, **options)
            finally:
                self._add(name, time.monotonic() - start)

        return measured

    def iterate(self, name: str, values: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator whose steps are measured."""
        while True:
            start = time.monotonic()
            try:
                value = next(values)
            except StopIteration:
                return
            self._add(name, time.monotonic() - start)
            yield value

    def table(self, total_s: float) -> Table:
        """Return the table: calls, mean and total by part, the greatest total first."""
        table = Table("part", "calls", "mean ms", "total s", "share")
        for column in table.columns[1:]:
            column.justify = "right"
        rows = sorted(self._durations_s.items(), key=lambda item: -sum(item[1]))
        for name, durations in rows:
            whole = sum(durations)
            table.add_row(
                name,
                str(len(durations)),
                f"{whole / len(durations) * 1e3:.3f}",
                f"{whole:.3f}",
                f"{whole / max(total_s, 1e-9):.0%}",
            )
        return table

    def _add(self, name: str, duration_s: float) -> None:
        self._durations_s.setdefault(name, []).append(duration_s)


class TorchProfiler(NoProfiler):
    """Runs torch's profiler: a table of operations, and a trace in the run folder."""

    def __init__(
        self,
        profiler: Any = None,  # a ``torch.profiler.profile``; None makes one
    ) -> None:
        self._given = profiler

    @contextmanager
    def running(self, trainer: Any) -> Iterator[None]:
        """Profile inside the context; rank 0 prints, each rank writes its trace."""
        if self._given is not None:
            with self._given:
                yield
            return
        with torch.profiler.profile() as profile:
            yield
        path = Path(trainer.default_root_dir) / f"rank-{trainer.global_rank:03d}-{TRACE}"
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(path))
        if trainer.is_global_zero:
            averages = profile.key_averages()
            print(averages.table(sort_by="cpu_time_total", row_limit=20))
            print(f"trace: {path}; open it at ui.perfetto.dev")


def read(profiler: Any) -> NoProfiler:
    """Return the profiler of a Trainer's argument."""
    if profiler is None:
        return NoProfiler()
    if profiler == "simple":
        return SimpleProfiler()
    if profiler == "pytorch":
        return TorchProfiler()
    if isinstance(profiler, torch.profiler.profile):
        return TorchProfiler(profiler)
    raise invalid(
        "profiler",
        profiler,
        '"simple", "pytorch" or a torch.profiler.profile',
        fix='Trainer(profiler="simple")',
    )
