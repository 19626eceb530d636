"""Record logged numbers, and assign them to their batch and to their epoch or evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.errors import UsageError, option_contradicted
from paceline.text import terminal
from paceline.train.trainer.ends import differ, remarks
from paceline.train.trainer.metrics import REDUCTIONS, MetricEntry, Metrics, number_of
from paceline.train.trainer.options import one_of
from paceline.train.trainer.progress import Progress


class Recorder:
    """Receives the numbers of ``log``; announces new names of an epoch with their first values."""

    def __init__(self, progress: Progress, announce: Callable[[str, Any], None]) -> None:
        # metrics of the current epoch or evaluation; None in between
        self.metrics: Metrics | None = None
        self._in_step = False  # in a training batch, numbers are reported by step and not as a mean
        self._rows: int | None = None
        self._loader: int | None = None  # number of the evaluated loader, if there are several
        self._at_end = False  # after the last batch: numbers are of all rows of this rank
        self._progress, self._announce = progress, announce
        self._remarked: set[tuple[str, bool]] = set()  # reported names; whether ranks differed

    def begin_batch(self, rows: int | None, *, is_step: bool = False) -> None:
        """Record that a batch begins, with the samples of this rank in it; None for 1.

        With 0 rows, logged numbers are ignored: the rank computes another rank's row, or an empty
        batch. ``is_step``: it is a training batch.
        """
        self._rows, self._in_step, self._at_end = rows, is_step, False

    def begin_loader(self, number: int | None) -> None:
        """Record that an evaluation of several loaders begins one of them; None ends it."""
        self._loader = number

    def end_batches(self, num_rows: int) -> None:
        """Begin the end of an epoch or evaluation, in which this rank had ``num_rows`` rows."""
        self._rows, self._in_step, self._at_end = num_rows, False, True

    @contextmanager
    def within(self, metrics: Metrics | None) -> Iterator[None]:
        """Record numbers logged inside the context in ``metrics``; None refuses them."""
        before = self.metrics, self._in_step, self._rows, self._at_end, self._loader
        self.metrics, self._in_step, self._rows, self._at_end = metrics, False, None, False
        self._loader = None
        try:
            yield
        finally:
            self.metrics, self._in_step, self._rows, self._at_end, self._loader = before

    def log(
        self,
        name: str,
        value: Any,
        *,
        batch_size: int | None,
        add_dataloader_idx: bool = True,
        **how: Any,
    ) -> None:
        """Record a number; see ``Trainer.log``."""
        if self._loader is not None and add_dataloader_idx:
            name = f"{name}/dataloader_idx_{self._loader}"
        if self.metrics is None:
            raise _refusal(
                name,
                "there is no current epoch or evaluation that it could belong to",
                "log in a step or in on_..._epoch_end",
            )
        is_meter = not isinstance(value, torch.Tensor) and callable(getattr(value, "compute", None))
        entry = self.metrics.entries.get(name)
        if entry is None:
            in_step = self._in_step and not is_meter
            entry = self.metrics.entries[name] = _entry(name, in_step=in_step, **how)
            self._announce(name, value)
        if is_meter:
            _set_meter(name, entry, value)
        else:
            self._add(entry, name, number_of(name, value), batch_size)

    def _add(self, entry: MetricEntry, name: str, number: Any, batch_size: int | None) -> None:
        """Add a number to its entry, weighted with its rows."""
        rows = 1 if self._rows is None else self._rows
        if self._at_end and batch_size is None and entry.takes_ends:
            entry.add_end(number, rows)
        else:
            entry.add(number, rows if batch_size is None or not rows else batch_size)
        if entry.prog_bar and entry.on_step:
            self._progress.shown[name] = number

    def remark(self, metrics: Metrics, *, is_main: bool) -> None:
        """Print on rank 0, once, findings about numbers that were logged after the last batch."""
        new = {
            name: ends
            for name, ends in metrics.ends.items()
            if (name, differ(ends)) not in self._remarked
        }
        self._remarked.update((name, differ(ends)) for name, ends in new.items())
        for remark in remarks(new) if is_main else ():
            terminal.say(remark.render())


def _set_meter(name: str, entry: MetricEntry, meter: Any) -> None:
    if not entry.on_epoch:
        what = f"a {type(meter).__name__} has a value at the end of an epoch"
        raise _refusal(name, what, "on_epoch=True")
    entry.meter = meter


def _entry(
    name: str,
    *,
    in_step: bool,
    on_step: bool | None,
    on_epoch: bool | None,
    prog_bar: bool,
    logger: bool,
    reduce_fx: Any,
) -> MetricEntry:
    on_step = in_step if on_step is None else on_step
    on_epoch = not in_step if on_epoch is None else on_epoch
    if not on_epoch and not (on_step and in_step):
        where = "" if in_step else " outside of training_step"
        raise _refusal(
            name,
            f"on_step={on_step} and on_epoch={on_epoch} leave nothing to log{where}",
            "on_epoch=True",
        )
    fx = one_of("reduce_fx", getattr(reduce_fx, "__name__", reduce_fx), REDUCTIONS)
    return MetricEntry(on_step=on_step, on_epoch=on_epoch, prog_bar=prog_bar, logger=logger, fx=fx)


def _refusal(name: str, what: str, fix: str) -> UsageError:
    return option_contradicted(what, where=f"self.log({name!r}, ...)", fix=fix)
