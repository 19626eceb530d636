"""Run ``fit`` and the evaluations: connect task, data, Session, callbacks and checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from paceline.errors import option_contradicted
from paceline.train.session import Session
from paceline.train.trainer import arguments, loading, optimizers, options, resuming
from paceline.train.trainer import loggers as logger_kinds
from paceline.train.trainer.attributes import Attributes
from paceline.train.trainer.checks import check_callbacks, check_task
from paceline.train.trainer.data import Data, is_data, no_loader
from paceline.train.trainer.evaluating import Evaluation
from paceline.train.trainer.fit_loaders import FitLoaders
from paceline.train.trainer.fitting import Fit
from paceline.train.trainer.gathering import gathered
from paceline.train.trainer.hooks import Hooks
from paceline.train.trainer.optimizers import Schedule
from paceline.train.trainer.optimizing import ManualOptimization
from paceline.train.trainer.options import TrainingPlan
from paceline.train.trainer.predicting import predict
from paceline.train.trainer.profiling import NoProfiler
from paceline.train.trainer.progress import Display
from paceline.train.trainer.recorder import Recorder
from paceline.train.trainer.resuming import RunCheckpoints
from paceline.train.trainer.saving import Saving
from paceline.train.trainer.work import Work

OF_METHODS = {"validate": ("val", "validation"), "test": ("test", "test")}


@dataclass(frozen=True)
class RunSettings:
    """What a Trainer was made with, beside its Plan."""

    for_session: dict[str, Any]  # arguments of its Sessions
    per_rank: bool  # whether batch sizes are per rank
    resume: bool | None  # the argument
    seed: int  # seed of ``setup`` of data; 0 if it was not given
    detects_anomaly: bool  # whether backward is checked for NaN
    profiler: NoProfiler  # measures a fit


class Running(Attributes):
    """A Trainer's implementation.

    Attributes:
        console: Console of the progress, rich's for stderr.
        shows_progress: Whether to show the bar, and a line for each epoch.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        settings: RunSettings,
        *,
        session: Session,
        callbacks: list[Any],
        loggers: list[Any],
    ) -> None:
        super().__init__(plan, session, callbacks)
        self._settings, self._loggers = settings, loggers
        self._own_callbacks = list(callbacks)
        self.console, self.shows_progress = Console(stderr=True), True
        self._recorder = Recorder(self._progress, self._announce_metric)
        self._work: Work | None = None
        self._data: Data | None = None
        self._fit: Fit | None = None
        self._saving: Saving | None = None

    # Fit

    def _run_fit(self, model: Any, data: Data, ckpt_path: str | os.PathLike[str] | None) -> None:
        """Train a task that was checked."""
        self._renew_session(model)
        with self._method("fit", model, data) as hooks:
            self._log_hparams(data)
            fit = self._make_fit(model, data, hooks)
            hooks.call("on_fit_start")
            self.session.register(trainer=fit, **optimizers.with_state(self.lr_scheduler_configs))
            self.ckpt_path = self._resolved(ckpt_path)
            resuming.restore_for_fit(
                self.session,
                self.ckpt_path,
                resume=self._settings.resume,
                chose_folder=self._settings.for_session["run_dir"] is not None,
            )
            with self._settings.profiler.running(self):
                fit.run()
            hooks.call("on_fit_end")

    def _renew_session(self, model: Any) -> None:
        """Make another Session if a fit used this one, or if it averages no partial gradients."""
        is_manual = getattr(model, "automatic_optimization", True) is False
        strategy = self._settings.for_session["strategy"]
        if is_manual:
            self._plan.check_manual()
        if is_manual and self.world_size > 1:
            strategy = arguments.for_manual(strategy)
        if self._work is not None or strategy != self._settings.for_session["strategy"]:
            self.session = self._another_session(strategy)

    def _make_fit(self, model: Any, data: Data, hooks: Hooks) -> Fit:
        if callable(getattr(model, "configure_model", None)):
            model.configure_model()
        self.current_epoch = 0
        loaders = FitLoaders(
            self,
            data,
            per_rank=self._settings.per_rank,
            in_order=bool(self._plan.overfit_batches),
            validates=callable(getattr(model, "validation_step", None)),
            seed=self._settings.seed,
            every=self._plan.reload_dataloaders_every_n_epochs,
        )
        self.optimizers, self.lr_scheduler_configs = optimizers.read(model.configure_optimizers())
        if getattr(model, "automatic_optimization", True):
            optimizers.check_steps(self.optimizers)
        # Of an earlier fit: a monitored metric that is not logged now must not be found.
        self.should_stop = self.stops_at_once = False
        self.callback_metrics, self.logged_metrics = {}, {}
        self._work = Work(model, self.session, self.optimizers)
        self._saving = Saving(
            self, self._plan, task=model, owners=data.owners(), callbacks=self.callbacks
        )
        self._fit = Fit(
            self._evaluation(self._work, hooks, data),
            self._plan,
            loaders=loaders,
            schedules=self.lr_scheduler_configs,
            saving=self._saving,
            profiler=self._settings.profiler,
        )
        return self._fit

    def take_loaders(self, length: int | None, val: list[Any], data: Data) -> None:
        """Note the loaders of a fit, and how many of their batches are used.

        Args:
            length: Training batches of an epoch without a limit; None if unknown.
            val: Validation loaders.
            data: What they were found in.
        """
        self._loader_length = length
        self.num_training_batches = self._plan.train_batches(length, self.session.accumulate)
        self.num_val_batches = self._limits("val", val)
        self.train_dataloader, self.val_dataloaders = data.found("train"), data.found("val")

    def replace_schedules(self, schedules: list[Schedule]) -> None:
        """Step other schedulers from now on; their state is their owner's to save."""
        self.lr_scheduler_configs = schedules
        if self._fit is not None:
            self._fit.take_schedules(schedules)

    def _log_hparams(self, data: Data) -> None:
        """Pass the hyperparameters of task and data to the loggers, on rank 0."""
        values: dict[str, Any] = {}
        for owner in data.owners():
            if getattr(owner, "logs_hparams", False):
                values.update(owner.hparams_initial)
        if not values or not self.is_global_zero:
            return
        for logger in self._loggers:
            log = getattr(logger, "log_hyperparams", None)
            if callable(log):
                log(values)

    # Evaluations

    def _evaluate(
        self,
        method: str,
        model: Any,
        ckpt_path: str | os.PathLike[str] | None,
        verbose: bool,
        *,
        dataloaders: Any,
        datamodule: Any,
    ) -> list[dict[str, float]]:
        """Run ``validate`` or ``test``."""
        loader_stage, stage = OF_METHODS[method]
        model, ckpt_path = self._model_or_last(model, ckpt_path)
        check_task(model, f"{stage}_step")
        data = self._data_for(model, loader_stage, dataloaders, datamodule)
        work = self._work_of(model)
        with self._method(method, model, data) as hooks:
            self._restore(ckpt_path)
            loaders = self._loaders(data, loader_stage, method)
            limits = self._limits(loader_stage, loaders)
            setattr(self, f"num_{loader_stage}_batches", limits)
            setattr(self, f"{loader_stage}_dataloaders", data.found(loader_stage))
            evaluation = self._evaluation(work, hooks, data)
            with evaluation.display.bar():
                values = evaluation.run(stage, loaders, limits).for_loggers
            self.session.log(values)
            if verbose:
                evaluation.display.line(stage, values)
        return _by_loader(values, len(loaders))

    def _predict(
        self,
        model: Any,
        ckpt_path: str | os.PathLike[str] | None,
        *,
        dataloaders: Any,
        datamodule: Any,
        returns: bool,
    ) -> list[Any] | None:
        model, ckpt_path = self._model_or_last(model, ckpt_path)
        check_task(model, "predict_step")
        data = self._data_for(model, "predict", dataloaders, datamodule)
        work = self._work_of(model)
        with self._method("predict", model, data) as hooks:
            self._restore(ckpt_path)
            loaders = self._loaders(data, "predict", "predict")
            self.num_predict_batches = self._limits("predict", loaders)
            self.predict_dataloaders = data.found("predict")
            evaluation = self._evaluation(work, hooks, data)
            with evaluation.display.bar(), self._recorder.within(None):
                return predict(evaluation, loaders, self.num_predict_batches, returns=returns)

    def _model_or_last(
        self, model: Any, ckpt_path: str | os.PathLike[str] | None
    ) -> tuple[Any, str | os.PathLike[str] | None]:
        """Return the task of the last fit, and its best checkpoint, where no task is given."""
        if model is not None or self._work is None:
            return model, ckpt_path
        has_best = self._plan.saves_best or any(
            callback.best_model_path for callback in self.checkpoint_callbacks
        )
        return self._work.task, ckpt_path or ("best" if has_best else None)

    def _data_for(self, model: Any, stage: str, dataloaders: Any, datamodule: Any) -> Data:
        """Return the data of an evaluation: what is given, or that of the last fit."""
        is_known = self._work is not None and self._work.task is model
        has_new_data = dataloaders is not None or datamodule is not None
        if self._data is not None and is_known and not has_new_data:
            return self._data
        return self._connect(model, dataloaders, datamodule, **{stage: dataloaders})

    def _restore(self, ckpt_path: str | os.PathLike[str] | None) -> None:
        path = self.ckpt_path = self._resolved(ckpt_path)
        if path is None:
            return
        if path not in ("best", "last") and Path(path).is_file():
            task = self._work.task if self._work else None
            assert isinstance(task, nn.Module)  # only modules have such files
            loading.fill(task, loading.read(path), strict=True)
            return
        # By its folder, so that the message reports a loaded checkpoint: nothing is resumed here.
        folder = self.session.run_dir.checkpoints
        resuming.restore(self.session, folder if path == "last" else path)

    def _resolved(self, ckpt_path: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
        """Return a path; of a ModelCheckpoint, if there is one, for "best" and "last"."""
        attributes = {"best": "best_model_path", "last": "last_model_path"}
        for callback in self.checkpoint_callbacks if ckpt_path in attributes else []:
            if path := getattr(callback, attributes[str(ckpt_path)]):
                return str(path)
        return ckpt_path

    # Parts

    @contextlib.contextmanager
    def _method(self, fn: str, model: Any, data: Data) -> Iterator[Hooks]:
        """Run a method inside the context: the setup and teardown of task, data and callbacks."""
        self._task = model
        self._take_callbacks(model)
        hooks = Hooks(self, model, self.callbacks)
        anomaly = torch.autograd.set_detect_anomaly(self._settings.detects_anomaly)
        with self.state.running(fn), anomaly:
            try:
                data.prepare(self.session, fn, seed=self._settings.seed)
                hooks.call_callbacks("setup", fn)
                yield hooks
            # Not SystemExit, by which a run ends that was asked to stop and has saved.
            except (Exception, KeyboardInterrupt) as error:
                hooks.call_callbacks("on_exception", error)
                data.call("on_exception", error)
                raise
            finally:
                hooks.call_callbacks("teardown", fn)
                data.call("teardown", fn)

    def _take_callbacks(self, model: Any) -> None:
        """Add the callbacks that a task configures; they replace others of their class."""
        configure = getattr(model, "configure_callbacks", None)
        configured = configure() if callable(configure) else []
        more = list(configured) if isinstance(configured, list | tuple) else [configured]
        check_callbacks(more)
        kinds = {type(callback) for callback in more}
        self.callbacks = [
            *(callback for callback in self._own_callbacks if type(callback) not in kinds),
            *more,
        ]

    def _connect(self, task: Any, first: Any, datamodule: Any, **loaders: Any) -> Data:
        """Connect task and data to this trainer."""
        if is_data(first):
            loaders = {
                stage: None if loader is first else loader for stage, loader in loaders.items()
            }
            datamodule = options.either("the second argument", first, "datamodule", datamodule)
        if datamodule is not None and any(loader is not None for loader in loaders.values()):
            raise option_contradicted(
                "a data object and loaders are both given",
                where="Trainer",
                fix="trainer.fit(task, data), or trainer.fit(task, train_loader, val_loader)",
            )
        for owner in (task, datamodule):
            if owner is not None:
                with contextlib.suppress(AttributeError):  # a class with slots works without it
                    owner.trainer = self
        self.datamodule = datamodule
        self._data = Data(task, datamodule, loaders)
        return self._data

    def _loaders(self, data: Data, stage: str, method: str) -> list[Any]:
        per_rank = self._settings.per_rank
        loaders = data.evaluated(self.session, stage, per_rank=per_rank, trains=False)
        if not loaders:
            raise no_loader(stage, method)
        return loaders

    def _evaluation(self, work: Work, hooks: Hooks, data: Data) -> Evaluation:
        display = Display(
            self._progress, self.console, enabled=self.shows_progress and self.session.is_main
        )
        return Evaluation(
            self, work, self._recorder, display, hooks, transfer=data.transfer(self.session)
        )

    def _work_of(self, task: Any) -> Work:
        """Return a task that is set up, in a new Session if another task used this one."""
        if self._work is not None and self._work.task is task:
            return self._work
        if self._work is not None:
            self.session = self._another_session()
        self._work, self._fit, self._saving = Work(task, self.session), None, None
        return self._work

    def _another_session(self, strategy: Any = None) -> Session:
        """Return a new Session in the same run folder; ``restore_for_fit`` keeps fits separate."""
        of_session = {**self._settings.for_session, "run_dir": self.session.run_dir}
        session = Session(**{**of_session, "strategy": strategy or of_session["strategy"]})
        logger_kinds.join(self._loggers, session)
        return session

    # Called by modules and callbacks

    def manual_backward(self, loss: torch.Tensor, *args: Any, **named: Any) -> None:
        """Compute gradients in a ``training_step`` of manual optimization.

        Raises:
            UsageError: An option is given, or the Trainer runs backward itself.
        """
        if args or named:
            raise option_contradicted(
                f"manual_backward takes a loss alone, not {', '.join(named) or 'more'}: gradients"
                " of ranks are averaged in one backward of each loss",
                where="self.manual_backward(loss)",
                fix="self.manual_backward(first_loss + second_loss)",
            )
        optimization = self._fit.optimization if self._fit is not None else None
        if not isinstance(optimization, ManualOptimization):
            raise option_contradicted(
                "the Trainer runs backward itself",
                where="self.manual_backward(loss)",
                fix="self.automatic_optimization = False in __init__",
            )
        optimization.backward(loss)

    def all_gather(self, data: Any, *, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all ranks, stacked; see ``Module.all_gather``."""
        if group is not None or sync_grads:
            with_gradients = "self.trainer.session.gather(rows, gradients=True)"
            raise option_contradicted(
                "all_gather returns detached tensors of all ranks",
                where="self.all_gather(data, group=None, sync_grads=False)",
                fix=with_gradients if sync_grads else "self.all_gather(data)",
            )
        return gathered(self.session, data)

    @property
    def checkpoint_callback(self) -> Any:
        """The first ModelCheckpoint; without one, the checkpoints of the run folder; or None."""
        callbacks = self.checkpoint_callbacks
        if callbacks:
            return callbacks[0]
        return RunCheckpoints(self) if self._plan.enable_checkpointing else None

    @property
    def pending_checkpoints(self) -> list[str]:
        """Paths of checkpoints that are saved when the epoch has ended."""
        return [] if self._saving is None else self._saving.pending

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Delete a checkpoint, on all ranks; after those that wait for the epoch's end."""
        if self._saving is not None:
            self._saving.drop(Path(filepath))

    def _save_to(self, path: Path, *, weights_only: bool) -> None:
        if self._work is None:
            raise option_contradicted(
                "no task was run before",
                where="trainer.save_checkpoint(...)",
                fix="trainer.fit(task, data) first",
            )
        if self._saving is None:  # an evaluation has no loop to resume
            data = self._data
            owners = data.owners() if data is not None else [self._work.task]
            self._saving = Saving(
                self, self._plan, task=self._work.task, owners=owners, callbacks=[]
            )
        self._saving.save(path, weights_only=weights_only)

    def take(
        self, values: Mapping[str, float], for_loggers: Mapping[str, float] | None = None
    ) -> None:
        """Store exact values for callbacks, and those that loggers get."""
        self.callback_metrics.update(_as_tensors(values))
        self.logged_metrics.update(_as_tensors(for_loggers or {}))


def _as_tensors(values: Mapping[str, float]) -> dict[str, torch.Tensor]:
    # float64, in which means are computed; the default type would round them.
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def _by_loader(values: dict[str, float], num_loaders: int) -> list[dict[str, float]]:
    """Return the means of each loader; those without a loader's ending belong to all."""
    if num_loaders == 1:
        return [values]
    endings = [f"/dataloader_idx_{number}" for number in range(num_loaders)]
    shared = {name: value for name, value in values.items() if not name.endswith(tuple(endings))}
    return [
        {**{name: value for name, value in values.items() if name.endswith(ending)}, **shared}
        for ending in endings
    ]
