"""Run a task over loaders without training it: validation and test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from paceline.train.trainer.hooks import Hooks
from paceline.train.trainer.metrics import Metrics, Values
from paceline.train.trainer.progress import Display
from paceline.train.trainer.recorder import Recorder
from paceline.train.trainer.work import Work

if TYPE_CHECKING:
    from paceline.train.trainer.attributes import Attributes


class Evaluation:
    """Runs a task over loaders without training it."""

    def __init__(
        self,
        trainer: Attributes,  # receives the means
        work: Work,
        recorder: Recorder,  # of what the task logs
        display: Display,
        hooks: Hooks,
        *,
        # passes a batch through the script's hooks; None without hooks
        transfer: Callable[[Any, int], Any] | None = None,
    ) -> None:
        self.trainer, self.work, self.recorder = trainer, work, recorder
        self.display, self.hooks, self.transfer = display, hooks, transfer
        self._has_run, self._num_rows = False, 0

    def run(
        self,
        stage: str,  # "validation" or "test"
        loaders: Sequence[Any],  # of the session, one after the other
        limits: Sequence[int | None],  # maximum number of batches of each; None for all
        *,
        keep: bool = True,  # the trainer receives the means
    ) -> Values:
        """Return the exact means of what the task logged."""
        metrics, progress = Metrics(self.trainer.session), self.display.progress
        self._has_run, self._num_rows = False, 0
        with ExitStack() as stack:
            stack.enter_context(self.recorder.within(metrics))
            stack.enter_context(self._evaluation_mode(stage))
            stack.enter_context(progress.aside(stage, _total(limits)))
            self.hooks.call(f"on_{stage}_start")
            self.hooks.call(f"on_{stage}_epoch_start")
            for number, (loader, limit) in enumerate(zip(loaders, limits, strict=True)):
                self._over(stage, loader, limit, number if len(loaders) > 1 else None)
            metrics.has_rows = self._has_run
            self.recorder.end_batches(self._num_rows)
            self._agree_on_names(metrics)
            self._end(stage, metrics)
            values = metrics.of_epoch()
            self.recorder.remark(metrics, is_main=self.trainer.is_global_zero)
            metrics.end()
            if keep:
                self.trainer.take(values.of_all, values.for_loggers)
                progress.shown.update(metrics.in_bar(values))
            with self.recorder.within(None):  # the means are computed: later numbers are refused
                self.hooks.call(f"on_{stage}_end")
        return values

    def _evaluation_mode(self, stage: str) -> ExitStack:
        """Return the context of evaluation mode, with the hooks that a task has for it."""
        stack = ExitStack()
        stack.enter_context(self.work.evaluating(inference=self.trainer.inference_mode))
        self.hooks.call_task(f"on_{stage}_model_eval")
        if stage == "validation":
            self.hooks.call_task("on_validation_model_zero_grad")
        stack.callback(self.hooks.call_task, f"on_{stage}_model_train")
        return stack

    def _over(self, stage: str, loader: Any, limit: int | None, number: int | None) -> None:
        """Run the batches of one loader; ``number`` is None if it is the only one."""
        begin = self.hooks.caller(f"on_{stage}_batch_start")
        end = self.hooks.caller(f"on_{stage}_batch_end")
        step, position = f"{stage}_step", () if number is None else (number,)
        self.recorder.begin_loader(number)
        for batch_idx, raw in enumerate(itertools.islice(loader, limit)):
            batch = raw if self.transfer is None else self.transfer(raw, number or 0)
            self.recorder.begin_batch(loader.rows)
            if loader.rows:
                if begin:
                    begin(batch, batch_idx, number or 0)
                outputs = self.work.evaluate(step, batch, batch_idx, *position)
                if end:
                    end(outputs, batch, batch_idx, number or 0)
                self._has_run = True
                self._num_rows += loader.rows
            elif self.work.is_sharded:  # every forward is a collective
                with self.work.uncounted():
                    self.work.evaluate(step, batch, batch_idx, *position)
            self.display.progress.batch += 1
        self.recorder.begin_loader(None)

    def _end(self, stage: str, metrics: Metrics) -> None:
        """Call the hooks of the end, which may log; ignore their errors on a rank without rows."""
        try:
            self.hooks.call(f"on_{stage}_epoch_end")
        except Exception:
            if self._has_run:
                raise
        self._agree_on_names(metrics)

    def _agree_on_names(self, metrics: Metrics) -> None:
        """Make a rank without rows take part in the means of rank 0, which always has rows."""
        session = self.trainer.session
        if session.world_size > 1 and session.reduce(int(not self._has_run)):
            parts = list(self.work.parts())
            names = session.once(lambda: metrics.names(parts))
            if not self._has_run:
                metrics.take_names(names, parts)


def _total(limits: Sequence[int | None]) -> int | None:
    """Return the number of all batches; None if it is unknown."""
    return None if None in limits else sum(limit or 0 for limit in limits)
