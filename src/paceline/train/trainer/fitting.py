"""Run the training loop: epochs of batches, with validations; Session handles all communication."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from paceline.train.trainer.evaluating import Evaluation
from paceline.train.trainer.fit_loaders import FitLoaders
from paceline.train.trainer.metrics import Metrics, Values
from paceline.train.trainer.optimizers import Schedule, never_logged
from paceline.train.trainer.optimizing import ManualOptimization, Optimization
from paceline.train.trainer.options import TrainingPlan, no_batches, num_batches
from paceline.train.trainer.profiling import NoProfiler
from paceline.train.trainer.saving import Saving


class Monitor:
    """Decides early stopping: whether one metric no longer improves."""

    def __init__(
        self,
        name: str,
        *,
        mode: str,  # "min" if smaller values are better, "max" if greater ones are
        patience: int | None,  # values without improvement after which to stop; None means never
        min_delta: float,  # least improvement that counts; NaN never counts
    ) -> None:
        self.name, self._mode, self._patience, self._min_delta = name, mode, patience, min_delta
        self.best: float | None = None
        self._waited = 0

    def see(self, value: float) -> None:
        """Record a value."""
        if self._improves(value):
            self.best, self._waited = value, 0
        else:
            self._waited += 1

    def _improves(self, value: float) -> bool:
        # NaN is no beginning: every later value would be compared with it, and none improves on it.
        if self.best is None:
            return not math.isnan(value)
        gain = self.best - value if self._mode == "min" else value - self.best
        return gain > self._min_delta

    @property
    def is_over(self) -> bool:
        """Whether training must stop."""
        return self._patience is not None and self._waited >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the number of values since."""
        return {"best": self.best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best value and the count."""
        self.best, self._waited = state["best"], state["waited"]


class Fit:
    """Trains a task: epochs of batches, each followed by validation and a checkpoint."""

    def __init__(
        self,
        evaluation: Evaluation,  # validates the task; also holds the trainer, task and display
        plan: TrainingPlan,
        *,
        loaders: FitLoaders,  # to train on, and to validate with
        schedules: Sequence[Schedule],
        saving: Saving,  # saves checkpoints, and holds the state of callbacks
        profiler: NoProfiler,  # measures the parts of the loop
    ) -> None:
        self._plan, self._evaluation, self._loaders = plan, evaluation, loaders
        self._saving, self._transfer = saving, evaluation.transfer
        self._trainer, self._session = evaluation.trainer, evaluation.trainer.session
        self._recorder = evaluation.recorder
        self._display, self._hooks = evaluation.display, evaluation.hooks
        task = evaluation.work.task
        is_manual = getattr(task, "automatic_optimization", True) is False
        kind = ManualOptimization if is_manual else Optimization
        self.optimization = kind(self._trainer, plan, evaluation.work, self._hooks)
        self.take_schedules(schedules)
        self._profile(profiler)
        self._schedule_of = self.optimization.schedule_of
        self._take_loaders()
        self._monitor = None
        if plan.monitor is not None:
            self._monitor = Monitor(
                plan.monitor, mode=plan.mode, patience=plan.patience, min_delta=plan.min_delta
            )
        self._metrics: Metrics | None = None  # of the current epoch
        self._sums: dict[str, Any] | None = None  # its sums before end hooks, if it was interrupted
        self._rows = 0  # of this rank, in the current epoch
        self._done = 0  # batches of the epoch whose steps are complete
        self._is_rest = False  # whether the epoch was begun before a checkpoint
        self._epochs_done = 0
        self._total_batches = self._total_done = 0  # of all epochs; those with complete steps
        self._begin_batch = self._hooks.caller("on_train_batch_start")
        self._end_batch = self._hooks.caller("on_train_batch_end")

    def take_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Step these schedulers; under manual optimization the script steps its own."""
        due = [] if self.optimization.is_manual else schedules
        self._of_epochs = [schedule for schedule in due if schedule.interval == "epoch"]
        self.optimization.schedules = [schedule for schedule in due if schedule.interval == "step"]

    def _take_loaders(self) -> None:
        """Note the loaders, which may have been made again."""
        self._train, self._val = self._loaders.train, self._loaders.val
        self._batches = self._trainer.num_training_batches
        self._val_batches = self._trainer.num_val_batches
        self._validates = any(number != 0 for number in self._val_batches)

    def _profile(self, profiler: NoProfiler) -> None:
        """Let a profiler measure the parts of the loop."""
        self._profiler = profiler
        optimization = self.optimization
        parts: list[tuple[Any, str, str]] = [
            (optimization, "run", "training batch"),
            (optimization, "_backward", "  backward"),
            (optimization, "_step", "  optimizer step"),
            (self, "_validate", "validation"),
            (self, "_save", "checkpoint"),
        ]
        # The calls are replaced, so that a fit without a profiler pays nothing for it.
        if type(profiler) is not NoProfiler:
            for owner, name, label in parts:
                setattr(owner, name, profiler.wrap(label, getattr(owner, name)))

    # The state of the loop in a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next epochs depend on; a collective, like every save."""
        sums = self._metrics.state_dict() if self._metrics and self._sums is None else self._sums
        return {
            "metrics": {
                name: float(value) for name, value in self._trainer.callback_metrics.items()
            },
            "monitor": self._monitor.state_dict() if self._monitor else None,
            "epoch": sums,
            "batches": self._done,
            "epochs": self._epochs_done,
            "total_batches": self._total_done,
            "optimization": self.optimization.state_dict(),
            **self._saving.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._trainer.take(state["metrics"])
        self._done = state.get("batches", 0)  # missing in older checkpoints, as are the next
        self._epochs_done = state.get("epochs", sys.maxsize)
        self._total_batches = self._total_done = state.get("total_batches", 0)
        self.optimization.load_state_dict(state.get("optimization", {}))
        self._saving.load_state_dict(state)
        if self._monitor and state["monitor"]:
            self._monitor.load_state_dict(state["monitor"])
        if state["epoch"]:
            self._metrics = Metrics(self._session)
            self._metrics.load_state_dict(state["epoch"])

    # The loop

    def run(self) -> None:
        """Train until the last epoch, the last step, or a stop."""
        session, progress, ran = self._session, self._display.progress, False
        self._check_sanity()
        self._hooks.call("on_train_start")
        with self._display.bar():
            for epoch in (
                () if self._is_over(self._epochs_done) else session.epochs(self._plan.epochs)
            ):
                if self._loaders.renew(epoch):
                    self._take_loaders()
                start = self._batches_done()
                if not ran:
                    done = epoch * (self._batches or 0) + start
                    groups = self._trainer.accumulation_by_epoch
                    progress.begin(done=done, total=self._plan.batches(self._batches, groups))
                ran = True
                if self._epoch(epoch, start):
                    break
        if not ran:
            self._display.line(
                f"nothing is left to train after step {session.step}; resume=False starts over", {}
            )
        self._hooks.call("on_train_end")

    def _check_sanity(self) -> None:
        """Validate with a few batches; the results are discarded."""
        number = self._plan.num_sanity_val_steps
        if not number or not self._validates:
            return
        self._hooks.call_callbacks("on_sanity_check_start")
        limits = [number if limit is None else min(number, limit) for limit in self._val_batches]
        with self._trainer.state.during("sanity_check"):
            self._evaluation.run("validation", self._val, limits, keep=False)
        self._hooks.call_callbacks("on_sanity_check_end")

    def _batches_done(self) -> int:
        """Return how many batches of the beginning epoch were done before a checkpoint."""
        done = self._train.num_done(self._done)
        self._is_rest = self._train.has_begun
        if not self._is_rest:
            self._metrics = None  # a new epoch has new means
        return done

    def _is_over(self, epochs_done: int = 0) -> bool:
        """Whether training ends before its last epoch; a collective."""
        plan, steps = self._plan, self.optimization.num_steps
        # A callback may set it on one rank alone, and the others would wait for that one.
        stopped = self._session.reduce(int(self._trainer.should_stop)) > 0
        out_of_patience = self._monitor is not None and self._monitor.is_over
        is_early = (stopped or out_of_patience) and self._may_stop(epochs_done)
        return is_early or 0 <= plan.max_steps <= steps

    def _may_stop(self, epochs_done: int) -> bool:
        """Whether training has reached its least numbers of epochs and steps."""
        plan, steps = self._plan, self.optimization.num_steps
        return epochs_done >= (plan.min_epochs or 0) and steps >= (plan.min_steps or 0)

    def _epoch(self, epoch: int, start: int) -> bool:
        """Train for the rest of an epoch; return whether training is over."""
        self._trainer.current_epoch = epoch
        metrics = self._metrics = self._metrics or Metrics(self._session)
        self._done, self._rows = start, 0
        # If the last step comes first, the loop stays open until the checkpoint: the epoch is
        # unfinished.
        with self._recorder.within(metrics), closing(iter(self._train)) as batches:
            self._hooks.call("on_train_epoch_start")
            self._begin_stage(epoch, start)
            whole = self._train_on(batches, start, between=self._batches_between_validations(epoch))
            self._saving.defers = True  # what follows belongs to the checkpoints of the epoch
            if whole:
                batches.close()
                self._train.skip_rest()
            val = self._validate_if_due(epoch)
            # Hooks of the end may log; a fit that resumes calls them again for the whole epoch.
            if not whole:
                self._sums = metrics.state_dict()
            train = self._end_metrics(metrics)
            self._log({**train.for_loggers, **val.for_loggers})
            if whole:
                self._metrics, self._done = None, 0
                self._look_at(epoch, {**train.of_all, **val.of_all})
            self._epochs_done = epoch + whole
            is_over = self._is_over(self._epochs_done)
            is_last = is_over or epoch + 1 >= self._plan.epochs
            self._save({**train.of_all, **val.of_all}, is_last=is_last)
            self._show(epoch, {**train.for_loggers, **val.for_loggers})
            return is_over

    def _train_on(self, batches: Iterator[Any], start: int, *, between: int) -> bool:
        """Train on the rest of an epoch; return whether the epoch is complete."""
        done = start
        last = sys.maxsize if self._batches is None else self._batches
        for batch_idx, batch in enumerate(self._profiler.iterate("next batch", batches), start):
            if batch_idx >= last:  # 0 batches, or a checkpoint after the last batch
                break
            self._train_batch(batch, batch_idx)
            done = batch_idx + 1
            if done >= last:
                break
            if self._ends_here() or self._ends_by_validation(done, between):
                return False
        if not done and last and not self._is_rest:
            raise no_batches()  # the length of a stream is unknown before
        return True

    def _ends_here(self) -> bool:
        """Whether training ends after a batch that is not the last of its epoch."""
        if 0 <= self._plan.max_steps <= self.optimization.num_steps:
            return True
        return self._trainer.stops_at_once and self._may_stop(self._trainer.current_epoch)

    def _ends_by_validation(self, done: int, between: int) -> bool:
        """Validate if it is due after ``done`` batches; return whether training ends with it."""
        is_of_epoch = self._plan.check_val_every_n_epoch is not None
        counted = done if is_of_epoch else self._total_batches
        if not between or counted % between:
            return False
        self._log(self._validate().for_loggers)
        return self._is_over(self._trainer.current_epoch)

    def _train_batch(self, raw: Any, batch_idx: int) -> None:
        session, progress, rows = self._session, self._display.progress, self._train.rows
        self._rows += rows
        self._total_batches += 1
        batch = raw
        if self._transfer:
            batch = self._transfer(raw, self._train.dataloader_idx or 0)
        self._recorder.begin_batch(rows, is_step=True)
        if self._begin_batch:
            self._begin_batch(batch, batch_idx)
        self._trainer.batch_idx = batch_idx
        outputs, is_step = self.optimization.run(self._train, batch, batch_idx)
        # A checkpoint within a group of accumulated batches repeats them: their gradients are lost.
        if is_step:
            self._done, self._total_done = batch_idx + 1, self._total_batches
        progress.loss, progress.batch = self.optimization.loss, batch_idx + 1
        if self._end_batch:
            self._end_batch(outputs, batch, batch_idx)
        every, position = self._plan.log_every_n_steps, session.step
        if self.optimization.is_manual:
            position = self._total_batches  # a batch may have several backwards
        if is_step and every and position % every == 0:
            self._log_step()

    def _log_step(self) -> None:
        assert self._recorder.metrics is not None
        values = self._recorder.metrics.of_step()
        self._trainer.take(values.of_all, values.for_loggers)
        self._log(values.for_loggers)

    def _log(self, values: dict[str, float]) -> None:
        if values:
            self._session.log({"epoch": self._trainer.current_epoch, **values})

    # After an epoch

    def _batches_between_validations(self, epoch: int) -> int:
        """Decide after how many batches of an epoch it validates; 0 if at its end or not at all."""
        interval = self._plan.val_check_interval
        if self._plan.check_val_every_n_epoch is None:
            return int(interval or 0) if self._validates else 0
        is_whole_epoch = isinstance(interval, float) and interval == 1
        if interval is None or is_whole_epoch or not self._is_due(epoch):
            return 0
        return num_batches("val_check_interval", interval, self._batches, least=1) or 0

    def _is_due(self, epoch: int) -> bool:
        every = self._plan.check_val_every_n_epoch
        if every is None:  # the epoch may end with a batch that is due
            between = self._batches_between_validations(epoch)
            return between > 0 and self._total_batches % between == 0
        return self._validates and (epoch + 1) % every == 0

    def _validate_if_due(self, epoch: int) -> Values:
        return self._validate() if self._is_due(epoch) else Values({}, {})

    def _validate(self) -> Values:
        with self._trainer.state.during("validate"):
            return self._evaluation.run("validation", self._val, self._val_batches)

    def _end_metrics(self, metrics: Metrics) -> Values:
        """Call the hooks of the epoch's end, which may log too, and return the means."""
        self._recorder.end_batches(self._rows)
        self._trainer.take(metrics.of_step().of_all)  # of the last step, reported or not
        self._hooks.call_task("on_train_epoch_end")
        self._trainer.take(metrics.of_epoch().of_all)
        self._hooks.call_callbacks("on_train_epoch_end")
        values = metrics.of_epoch()
        self._recorder.remark(metrics, is_main=self._session.is_main)
        metrics.end()
        self._trainer.take(values.of_all, values.for_loggers)
        self._display.progress.shown.update(metrics.in_bar(values))
        return values

    def _look_at(self, epoch: int, values: dict[str, float]) -> None:
        """Pass an epoch's values to schedulers and the monitor."""
        complete = self._is_due(epoch) or not self._validates  # no more metrics will be logged
        for schedule in self._of_epochs:
            if (epoch + 1) % schedule.frequency == 0:
                schedule.step(values, required=complete, how=self._schedule_of)
        if self._monitor is not None and self._monitor.name in values:
            self._monitor.see(values[self._monitor.name])
        elif self._monitor is not None and complete:
            raise never_logged(self._monitor.name, values, where="Trainer(monitor=...)")

    def _save(self, values: dict[str, float], *, is_last: bool) -> None:
        metric = values.get(self._monitor.name) if self._monitor else None
        self._saving.end_epoch(metric, wait=is_last)  # the script may end right after it

    # Display

    def _show(self, epoch: int, values: dict[str, float]) -> None:
        loss = self._display.progress.loss
        if not values and loss is not None:
            values = {"loss": float(loss)}
        self._display.line(self._title(epoch), values)

    def _title(self, epoch: int) -> str:
        total = f"/{self._plan.epochs}" if self._plan.epochs < sys.maxsize else ""
        return f"epoch {epoch + 1}{total}"

    def _begin_stage(self, epoch: int, start: int) -> None:
        before = epoch * (self._batches or 0)
        self._display.progress.begin_stage(
            self._title(epoch),
            self._batches,
            before=before,
            batch=start,
            batches_per_step=self._session.accumulate,
        )
