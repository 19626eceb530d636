"""Run the training loop: epochs of batches, with validations; Session handles all communication."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from paceline.errors import Finding, UsageError
from paceline.train.trainer.hooks import Hooks
from paceline.train.trainer.metrics import Metrics, Values
from paceline.train.trainer.monitor import Monitor
from paceline.train.trainer.optimizers import Schedule, never_logged
from paceline.train.trainer.options import Plan, no_batches, num_batches
from paceline.train.trainer.progress import Display
from paceline.train.trainer.recorder import Recorder
from paceline.train.trainer.work import Work

if TYPE_CHECKING:
    from paceline.train.trainer.trainer import Trainer


class Evaluation:
    """Runs a task over a loader without training it.

    Args:
        trainer: Receives the means.
        work: The task.
        recorder: Records what the task logs.
        display: Shows the progress.
        hooks: Hooks called during the evaluation.
    """

    def __init__(
        self, trainer: Trainer, work: Work, recorder: Recorder, display: Display, hooks: Hooks
    ) -> None:
        self.trainer, self.work, self.recorder = trainer, work, recorder
        self.display, self.hooks = display, hooks

    def run(self, stage: str, loader: Any, *, limit: int | None, keep: bool = True) -> Values:
        """Return the exact means of what the task logged.

        Args:
            stage: ``"validation"`` or ``"test"``.
            loader: A loader of the session.
            limit: Maximum number of batches; None for all.
            keep: Whether the trainer receives the means.
        """
        metrics, progress = Metrics(self.trainer.session), self.display.progress
        has_run, num_rows = False, 0
        loader.takes_any = True
        with self.recorder.within(metrics), self.work.evaluating(), progress.aside(stage, limit):
            self.hooks.call(f"on_{stage}_start")
            self.hooks.call(f"on_{stage}_epoch_start")
            for batch_idx, batch in enumerate(itertools.islice(loader, limit)):
                self.recorder.begin_batch(loader.rows)
                if loader.rows:
                    self.work.evaluate(f"{stage}_step", batch, batch_idx)
                    has_run = True
                    num_rows += loader.rows
                elif self.work.is_sharded:  # every forward is a collective
                    with self.work.uncounted():
                        self.work.evaluate(f"{stage}_step", batch, batch_idx)
                progress.batch = batch_idx + 1
            metrics.has_rows = has_run
            self.recorder.end_batches(num_rows)
            self._agree_on_names(metrics, has_run=has_run)
            self._end(stage, metrics, has_run=has_run)
            values = metrics.of_epoch()
            self.recorder.remark(metrics, is_main=self.trainer.is_global_zero)
            metrics.end()
            if keep:
                self.trainer.take(values.of_all)
                progress.shown.update(metrics.in_bar(values))
            with self.recorder.within(None):  # the means are computed: later numbers are refused
                self.hooks.call(f"on_{stage}_end")
        return values

    def _end(self, stage: str, metrics: Metrics, *, has_run: bool) -> None:
        """Call the hooks of the end, which may log; ignore their errors on a rank without rows."""
        try:
            self.hooks.call(f"on_{stage}_epoch_end")
        except Exception:
            if has_run:
                raise
        self._agree_on_names(metrics, has_run=has_run)

    def _agree_on_names(self, metrics: Metrics, *, has_run: bool) -> None:
        """Make a rank without rows take part in the means of rank 0, which always has rows."""
        session = self.trainer.session
        if session.world_size > 1 and session.reduce(int(not has_run)):
            parts = list(self.work.parts())
            names = session.once(lambda: metrics.names(parts))
            if not has_run:
                metrics.take_names(names, parts)


class Fit:
    """Trains a task: epochs of batches, each followed by validation and a checkpoint.

    Args:
        evaluation: Validates the task; also holds the trainer, task and display.
        plan: The Trainer's arguments.
        train: Loader of batches to train on.
        val: Loader to validate with; None without validation.
        schedules: Schedulers and when they step.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        plan: Plan,
        *,
        train: Any,
        val: Any,
        schedules: Sequence[Schedule],
    ) -> None:
        self._plan, self._evaluation, self._train, self._val = plan, evaluation, train, val
        train.takes_any = True
        self._trainer, self._session = evaluation.trainer, evaluation.trainer.session
        self._work, self._recorder = evaluation.work, evaluation.recorder
        self._display, self._hooks = evaluation.display, evaluation.hooks
        self._of_steps = [schedule for schedule in schedules if schedule.interval == "step"]
        self._of_epochs = [schedule for schedule in schedules if schedule.interval == "epoch"]
        self._batches = plan.train_batches(length_of(train))
        self._val_batches = num_batches(
            "limit_val_batches", plan.limit_val_batches, None if val is None else length_of(val)
        )
        self._validates = val is not None and self._val_batches != 0
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
        self._begin_batch = self._hooks.caller("on_train_batch_start")
        self._after_backward = self._hooks.caller("on_after_backward")
        self._before_step = self._hooks.caller("on_before_optimizer_step")
        self._end_batch = self._hooks.caller("on_train_batch_end")

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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._trainer.take(state["metrics"])
        self._done = state.get("batches", 0)  # missing in older checkpoints
        if self._monitor and state["monitor"]:
            self._monitor.load_state_dict(state["monitor"])
        if state["epoch"]:
            self._metrics = Metrics(self._session)
            self._metrics.load_state_dict(state["epoch"])

    # The loop

    def run(self) -> None:
        """Train until the last epoch, the last step, or a stop."""
        session, progress, ran = self._session, self._display.progress, False
        self._hooks.call("on_train_start")
        if self._plan.num_sanity_val_steps and self._val is not None:
            self._evaluation.run(
                "validation", self._val, limit=self._plan.num_sanity_val_steps, keep=False
            )
        with self._display.bar():
            for epoch in () if self._is_over() else session.epochs(self._plan.epochs):
                start = self._batches_done()
                if not ran:
                    done = epoch * (self._batches or 0) + start
                    total = self._plan.batches(self._batches)
                    group = self._plan.accumulate_grad_batches
                    progress.begin(done=done, total=total, batches_per_step=group)
                ran = True
                if self._epoch(epoch, start):
                    break
        if not ran:
            self._display.line(
                f"nothing is left to train after step {session.step}; resume=False starts over", {}
            )
        self._hooks.call("on_train_end")

    def _batches_done(self) -> int:
        """Return how many batches of the beginning epoch were done before a checkpoint."""
        samples, size = self._train.state_dict()["done"], self._train.batch_size
        self._is_rest = samples > 0
        if not samples:
            self._metrics = None  # a new epoch has new means
            return 0
        return samples // size if size else self._done  # batches of a batch_sampler vary in size

    def _is_over(self) -> bool:
        """Whether training ends before its last epoch; a collective."""
        plan = self._plan
        stopped = self._session.reduce(int(self._trainer.should_stop)) > 0
        out_of_patience = self._monitor is not None and self._monitor.is_over
        return stopped or out_of_patience or 0 <= plan.max_steps <= self._session.step

    def _epoch(self, epoch: int, start: int) -> bool:
        """Train for the rest of an epoch; return whether training is over."""
        self._trainer.current_epoch = epoch
        metrics = self._metrics = self._metrics or Metrics(self._session)
        self._done, self._rows = start, 0
        self._begin_stage(epoch, start)
        # If the last step comes first, the loop stays open until the checkpoint: the epoch is
        # unfinished.
        with self._recorder.within(metrics), closing(iter(self._train)) as batches:
            self._hooks.call("on_train_epoch_start")
            whole = self._train_on(batches, start, between=self._batches_between_validations(epoch))
            if whole:
                batches.close()
                self._leave_rest()
            val = self._validate_if_due(epoch)
            if not whole:
                self._sums = metrics.state_dict()
            train = self._end_metrics(metrics)
            self._log({**train.for_loggers, **val.for_loggers})
            if whole:
                self._metrics, self._done = None, 0
                self._look_at(epoch, {**train.of_all, **val.of_all})
            is_over = self._is_over()
            is_last = is_over or epoch + 1 >= self._plan.epochs
            self._save({**train.of_all, **val.of_all}, is_last=is_last)
            self._show(epoch, {**train.for_loggers, **val.for_loggers})
            return is_over

    def _leave_rest(self) -> None:
        """Advance the loader to the next epoch if a limit left a rest of this one."""
        place = self._train.state_dict()
        if place["done"]:
            self._train.load_state_dict(
                {"epoch": place["epoch"] + 1, "done": 0, "length": place["length"]}
            )

    def _train_on(self, batches: Iterator[Any], start: int, *, between: int) -> bool:
        """Train on the rest of an epoch; return whether the epoch is complete."""
        plan, done = self._plan, start
        last = sys.maxsize if self._batches is None else self._batches
        for batch_idx, batch in enumerate(batches, start):
            if batch_idx >= last:  # 0 batches, or a checkpoint after the last batch
                break
            self._train_batch(batch, batch_idx)
            done = batch_idx + 1
            if done >= last:
                break
            if 0 <= plan.max_steps <= self._session.step:
                return False
            if between and done % between == 0:
                self._log(self._validate().for_loggers)
        if not done and last and not self._is_rest:
            raise no_batches()  # the length of a stream is unknown before
        return True

    def _train_batch(self, batch: Any, batch_idx: int) -> None:
        session, progress = self._session, self._display.progress
        rows = self._train.rows
        self._rows += rows
        self._recorder.begin_batch(rows, is_step=True)
        if self._begin_batch:
            self._begin_batch(batch, batch_idx)
        with nullcontext() if rows else self._work.uncounted():
            outputs = self._work.train(batch, batch_idx)
        loss = outputs if isinstance(outputs, torch.Tensor) else loss_of(outputs)
        weight = outputs.get("weight") if isinstance(outputs, Mapping) else None
        ends_group = session.backward(loss, weight)
        progress.loss, progress.batch = loss.detach(), batch_idx + 1
        if self._after_backward:
            self._after_backward()
        if ends_group:
            self._done = batch_idx + 1
            self._step()
        if self._end_batch:
            self._end_batch(outputs, batch, batch_idx)
        if ends_group and session.step % self._plan.log_every_n_steps == 0:
            self._log_step()

    def _step(self) -> None:
        plan, session, optimizers = self._plan, self._session, self._trainer.optimizers
        for optimizer in optimizers:
            if self._before_step:
                self._before_step(optimizer)
            if plan.gradient_clip_val is not None:
                if plan.gradient_clip_algorithm == "norm":
                    session.clip_grad_norm(optimizer, plan.gradient_clip_val)
                else:
                    session.clip_grad_value(optimizer, plan.gradient_clip_val)
            optimizer.step()
            optimizer.zero_grad()
        for schedule in self._of_steps:
            if session.step % schedule.frequency == 0:
                schedule.step(self._trainer.callback_metrics, required=False)

    def _log_step(self) -> None:
        assert self._recorder.metrics is not None
        values = self._recorder.metrics.of_step()
        self._trainer.take(values.of_all)
        self._log(values.for_loggers)

    def _log(self, values: dict[str, float]) -> None:
        if values:
            self._session.log({"epoch": self._trainer.current_epoch, **values})

    # After an epoch

    def _batches_between_validations(self, epoch: int) -> int:
        interval = self._plan.val_check_interval
        is_whole_epoch = isinstance(interval, float) and interval == 1
        if interval is None or is_whole_epoch or not self._is_due(epoch):
            return 0
        return num_batches("val_check_interval", interval, self._batches, least=1) or 0

    def _is_due(self, epoch: int) -> bool:
        return self._validates and (epoch + 1) % self._plan.check_val_every_n_epoch == 0

    def _validate_if_due(self, epoch: int) -> Values:
        return self._validate() if self._is_due(epoch) else Values({}, {})

    def _validate(self) -> Values:
        return self._evaluation.run("validation", self._val, limit=self._val_batches)

    def _end_metrics(self, metrics: Metrics) -> Values:
        """Call the hooks of the epoch's end, which may log too, and return the means."""
        self._recorder.end_batches(self._rows)
        self._hooks.call_task("on_train_epoch_end")
        self._trainer.take(metrics.of_epoch().of_all)
        self._hooks.call_callbacks("on_train_epoch_end")
        values = metrics.of_epoch()
        self._recorder.remark(metrics, is_main=self._session.is_main)
        metrics.end()
        self._trainer.take(values.of_all)
        self._display.progress.shown.update(metrics.in_bar(values))
        return values

    def _look_at(self, epoch: int, values: dict[str, float]) -> None:
        """Pass an epoch's values to schedulers and the monitor."""
        complete = self._is_due(epoch) or not self._validates  # no more metrics will be logged
        for schedule in self._of_epochs:
            if (epoch + 1) % schedule.frequency == 0:
                schedule.step(values, required=complete)
        if self._monitor is not None and self._monitor.name in values:
            self._monitor.see(values[self._monitor.name])
        elif self._monitor is not None and complete:
            raise never_logged(self._monitor.name, values, where="Trainer(monitor=...)")

    def _save(self, values: dict[str, float], *, is_last: bool) -> None:
        if self._plan.enable_checkpointing:
            self._session.save(
                values.get(self._monitor.name) if self._monitor else None,
                mode=self._plan.mode,
                keep_best=self._plan.save_top_k,
                wait=is_last,  # the script may end right after it
            )

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
            self._title(epoch), self._batches, before=before, batch=start
        )


def length_of(loader: Any) -> int | None:
    """Return the number of batches of a loader; None if it is unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


def loss_of(outputs: Any) -> torch.Tensor:
    """Return the loss in the result of ``training_step``.

    Raises:
        UsageError: The result holds no loss.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if isinstance(loss, torch.Tensor):
        return loss
    what = type(outputs).__name__
    if isinstance(outputs, Mapping):
        what = f"a dict with {', '.join(map(str, outputs))}"
    raise UsageError(
        Finding(
            "option-invalid",
            f"training_step returned {what}, and no loss",
            where="training_step",
            why="if one rank leaves out a batch, the others wait for it",
            fix=(
                'return the loss, a tensor or a dict with it as "loss"; to leave a batch out:'
                " return 0 * loss"
            ),
        )
    )
