"""The Trainer's attributes: what scripts and callbacks read, under Lightning's names."""

from __future__ import annotations

import builtins
import math
import sys
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import Notice
from paceline.signatures.lightning_names import missing_attribute
from paceline.text import terminal
from paceline.train.session import Session
from paceline.train.trainer import meters
from paceline.train.trainer.combining import length_of
from paceline.train.trainer.optimizers import Schedule
from paceline.train.trainer.options import TrainingPlan, num_batches
from paceline.train.trainer.progress import Progress
from paceline.train.trainer.start import local_world_size
from paceline.train.trainer.state import TrainerState


def _argument(name: str) -> Any:
    """Return a property that reads an argument of the Trainer."""
    return property(attrgetter(f"_plan.{name}"))


class Attributes:
    """What a Trainer knows; ``Trainer`` documents what can be set.

    The arguments that say how it trains are attributes too, from ``max_epochs`` to ``mode``.

    Attributes:
        session: The Session of the Trainer.
        state: What it is doing.
        callbacks: The callbacks.
        optimizers: The optimizers of the last ``fit``.
        lr_scheduler_configs: Its schedulers, each with ``interval``, ``frequency`` and ``name``.
        callback_metrics: Values logged last, by name: exact means as tensors.
        logged_metrics: Of these what loggers get, under the names that loggers get.
        num_training_batches: Batches of an epoch of the last ``fit``; None if unknown.
        num_val_batches: Batches of its validation loaders, in a list.
        num_test_batches: Batches of the last test's loaders, in a list.
        num_predict_batches: Batches of the last prediction's loaders, in a list.
        train_dataloader: The user's training loader of the last ``fit``.
        val_dataloaders: The user's validation loaders.
        test_dataloaders: The user's test loaders.
        predict_dataloaders: The user's prediction loaders.
        datamodule: The data object; None without one.
        ckpt_path: The checkpoint that was restored last; None without one.
        current_epoch: Number of the epoch, from 0.
        batch_idx: Number of the training batch in it.
        should_stop: Set it to end training after the epoch; one rank is enough.
        stops_at_once: Set it, on all ranks at the same batch, to end training after the batch.
        inference_mode: The argument.
        profiler: The argument.
    """

    max_epochs: int | None = _argument("max_epochs")
    min_epochs: int | None = _argument("min_epochs")
    max_steps: int = _argument("max_steps")
    min_steps: int | None = _argument("min_steps")
    gradient_clip_val: float | None = _argument("gradient_clip_val")
    gradient_clip_algorithm: str = _argument("gradient_clip_algorithm")
    log_every_n_steps: int = _argument("log_every_n_steps")
    val_check_interval: int | float | None = _argument("val_check_interval")
    check_val_every_n_epoch: int | None = _argument("check_val_every_n_epoch")
    num_sanity_val_steps: int = _argument("num_sanity_val_steps")
    fast_dev_run: int | bool = _argument("fast_dev_run")
    overfit_batches: int | float = _argument("overfit_batches")
    reload_dataloaders_every_n_epochs: int = _argument("reload_dataloaders_every_n_epochs")
    limit_train_batches: int | float | None = _argument("limit_train_batches")
    limit_val_batches: int | float | None = _argument("limit_val_batches")
    limit_test_batches: int | float | None = _argument("limit_test_batches")
    limit_predict_batches: int | float | None = _argument("limit_predict_batches")
    monitor: str | None = _argument("monitor")
    mode: str = _argument("mode")

    def __init__(self, plan: TrainingPlan, session: Session, callbacks: list[Any]) -> None:
        self._plan, self.session, self.callbacks = plan, session, callbacks
        self.state = TrainerState()
        self._progress = Progress()
        self._task: Any = None
        self._announced: set[str] = set()  # names of numbers that depend on the number of ranks
        self._settings: Any = None
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[Schedule] = []
        self.callback_metrics: dict[str, torch.Tensor] = {}
        self.logged_metrics: dict[str, torch.Tensor] = {}
        self.num_training_batches: int | None = None
        self._loader_length: int | None = None  # batches of an epoch without a limit
        self.num_val_batches: list[int | None] = []
        self.num_test_batches: list[int | None] = []
        self.num_predict_batches: list[int | None] = []
        self.train_dataloader: Any = None
        self.val_dataloaders: Any = None
        self.test_dataloaders: Any = None
        self.predict_dataloaders: Any = None
        self.datamodule: Any = None
        self.ckpt_path: Any = None
        self.current_epoch = self.batch_idx = 0
        self.should_stop = self.stops_at_once = False
        self.inference_mode = False
        self.profiler: Any = None
        self._loggers: list[Any] = []
        self._says_no_size = False  # whether it was said that batch sizes are global

    def __getattr__(self, name: str) -> Any:
        default = AttributeError(f"'Trainer' object has no attribute {name!r}")
        raise missing_attribute("trainer", "Trainer", name) or default

    # The ranks

    @property
    def global_rank(self) -> int:
        """Global rank of this process."""
        return self.session.rank

    @property
    def local_rank(self) -> int:
        """Rank on this node."""
        return self.session.local_rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        self._note_size("world_size")
        return self.session.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.session.is_main

    @property
    def num_nodes(self) -> int:
        """Number of nodes, each with as many ranks as this one."""
        return max(1, self.world_size // self.num_devices)

    @property
    def num_devices(self) -> int:
        """Number of ranks on this node."""
        self._note_size("num_devices")
        return local_world_size()

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return self.session.rank // self.num_devices

    @property
    def device_ids(self) -> list[int]:
        """Numbers of the devices of this node's ranks."""
        return list(range(self.num_devices))

    @property
    def precision(self) -> str:
        """Precision of the computation, such as "bf16-mixed"."""
        return str(self._settings.for_session["precision"])

    # Limits

    @property
    def global_step(self) -> int:
        """Number of optimizer steps so far."""
        fit = self.__dict__.get("_fit")
        return self.session.step if fit is None else int(fit.optimization.num_steps)

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches in a step; hooks of an epoch's start may set it.

        Raises:
            UsageError: It is set in the middle of an epoch, or to a number that
                ``limit_train_batches`` cuts through.
        """
        return self.session.accumulate

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, batches: int) -> None:
        self.check_accumulation(batches)
        self.session.accumulate = batches

    def check_accumulation(self, batches: int) -> None:
        """Refuse a number of accumulated batches that does not fit the batches of an epoch."""
        self._plan.train_batches(self._loader_length, batches)

    @property
    def enable_validation(self) -> bool:
        """Whether the last ``fit`` validates."""
        return any(number != 0 for number in self.num_val_batches)

    @property
    def num_sanity_val_batches(self) -> list[int | None]:
        """Batches of each validation loader in the validation before training."""
        most = self.num_sanity_val_steps
        return [most if number is None else min(most, number) for number in self.num_val_batches]

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the whole ``fit``, for a scheduler; ``inf`` if unknown."""
        steps = self._plan.steps(self.num_training_batches, self.accumulation_by_epoch)
        return steps if math.isinf(steps) else int(steps)

    @property
    def accumulation_by_epoch(self) -> dict[int, int]:
        """For each epoch in which it changes, how many batches make a step."""
        for scheduler in self._callbacks_named("get_accumulate_grad_batches"):
            return dict(scheduler.scheduling)
        return {0: self._plan.accumulate_grad_batches}

    # What it does

    @property
    def training(self) -> bool:
        """Whether it trains."""
        return self.state.stage == "train"

    @property
    def validating(self) -> bool:
        """Whether it validates, also during a training run."""
        return self.state.stage == "validate"

    @property
    def testing(self) -> bool:
        """Whether it tests."""
        return self.state.stage == "test"

    @property
    def predicting(self) -> bool:
        """Whether it predicts."""
        return self.state.stage == "predict"

    @property
    def sanity_checking(self) -> bool:
        """Whether it validates before training."""
        return self.state.stage == "sanity_check"

    @property
    def evaluating(self) -> bool:
        """Whether it validates or tests."""
        return self.validating or self.testing

    @property
    def interrupted(self) -> bool:
        """Whether the last method ended with an exception."""
        return self.state.status == "interrupted"

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch is the last of its epoch; False if that is unknown."""
        return self.batch_idx + 1 == self.num_training_batches

    def _announce_metric(self, name: str, value: Any) -> None:
        """Say, once for each name, that a logged number is a metric of a rank's part of a batch."""
        if self.world_size == 1 or not isinstance(self._task, nn.Module):
            return
        metric = meters.metric_of(value, self._task)
        if metric is None or name in self._announced:
            return
        self._announced.add(name)
        if self.is_global_zero:
            terminal.say(
                f"results depend on the number of ranks here: self.log({name!r}) gets the"
                f" {type(metric).__name__} of each rank's part of the batch; update the metric and"
                f" log it, self.log({name!r}, self.METRIC), for its value over all rows"
            )

    @property
    def lightning_module(self) -> Any:
        """The task."""
        return self._task

    @property
    def model(self) -> Any:
        """The task; on several ranks too, without DDP around it."""
        return self._task

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The numbers that the bar shows."""
        return {name: float(value) for name, value in self._progress.shown.items()}

    # Folders, loggers and callbacks

    @property
    def default_root_dir(self) -> str:
        """The run folder."""
        return str(self.session.run_dir.root)

    @property
    def logger(self) -> Any:
        """The first logger; None without one."""
        return self._loggers[0] if self._loggers else None

    @property
    def loggers(self) -> list[Any]:
        """The loggers."""
        return self._loggers

    @property
    def log_dir(self) -> str:
        """Folder of the first logger's files; the run folder if it has none."""
        folder = getattr(self.logger, "log_dir", None)
        return self.default_root_dir if folder is None else str(folder)

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """The ModelCheckpoints among the callbacks."""
        return self._callbacks_named("best_model_path")

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        """The EarlyStoppings among the callbacks."""
        return self._callbacks_named("stopped_epoch")

    @property
    def early_stopping_callback(self) -> Any:
        """The first EarlyStopping among the callbacks; None without one."""
        return next(iter(self.early_stopping_callbacks), None)

    def _callbacks_named(self, attribute: str) -> list[Any]:
        """Return the callbacks that have an attribute."""
        return [callback for callback in self.callbacks if hasattr(callback, attribute)]

    def print(self, *values: object, **options: Any) -> None:
        """Print on rank 0 only, with the options of Python's ``print``."""
        if self.is_global_zero:
            builtins.print(*values, **{"flush": True, **options})

    # For the implementation

    def _note_size(self, attribute: str) -> None:
        """Say, once, to data that may divide its batch size by the ranks that this is done here."""
        has_said = self._says_no_size or self.session.world_size == 1
        if has_said or self._settings.per_rank or not (hook := _data_hook(sys._getframe(2))):
            return
        self._says_no_size = True
        if self.is_global_zero:
            terminal.say(
                Notice(
                    f"{hook} reads trainer.{attribute}, and a batch size is that of all ranks"
                    " together here: it is not to be divided",
                    advice="DataLoader(..., batch_size=self.hparams.batch_size), or"
                    " Trainer(per_rank_batch_size=True) for Lightning's meaning",
                ).render()
            )

    def _limits(self, stage: str, loaders: list[Any]) -> list[int | None]:
        """Return the number of batches of each loader of an evaluation; None if unknown."""
        option = f"limit_{stage}_batches"
        limit = getattr(self._plan, option)
        return [num_batches(option, limit, length_of(loader)) for loader in loaders]


def _data_hook(frame: FrameType | None) -> str:
    """Return the hook of a script's data in which a frame runs; empty outside of them."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("paceline."):
        name = frame.f_code.co_name
        if name == "setup" or name.endswith("_dataloader"):
            return name
        frame = frame.f_back
    return ""
