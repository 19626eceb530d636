"""The public Trainer class: its arguments, properties and methods; ``fitting`` has the loop."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.optim import Optimizer

from paceline.errors import Finding, UsageError
from paceline.rundir.files import RunDir
from paceline.train.logging import Logger
from paceline.train.session import Session
from paceline.train.trainer import optimizers, options, resuming
from paceline.train.trainer.data import Data, is_data
from paceline.train.trainer.fitting import Evaluation, Fit, length_of
from paceline.train.trainer.hooks import Callback, Hooks, check_callbacks, check_data, check_task
from paceline.train.trainer.progress import Display, Progress
from paceline.train.trainer.recorder import Recorder
from paceline.train.trainer.start import check_device, check_world, start_ranks
from paceline.train.trainer.work import Work

STAGES = {"validation": ("val", "validate"), "test": ("test", "test")}  # for loaders and setup


class Trainer:
    """Runs the training loop of a task; the result is the same with any number of ranks.

        trainer = paceline.Trainer(max_epochs=10, monitor="val_loss", patience=3)
        trainer.fit(task, data)

    A task is any object with ``training_step(batch, batch_idx)``, which returns the loss as a mean
    over the batch's rows (or a dict with ``"loss"``), and ``configure_optimizers()``. It may have
    ``validation_step``, ``test_step`` and the methods of ``paceline.trainer.Callback``.
    ``paceline.Module`` adds ``log``. Data is any object with ``train_dataloader``,
    ``val_dataloader``, ``test_dataloader``, ``prepare_data`` (called once on a node) and
    ``setup(stage)`` (its random numbers depend on ``seed`` only, not on rank or run), or plain
    DataLoaders. Batch sizes are global.

    Args:
        max_epochs: Epochs to train. None, if ``max_steps`` is set, or -1 means no limit.
        max_steps: Optimizer steps to train; -1 means no limit.
        accelerator: Required device of the ranks: ``"auto"``, ``"cpu"`` or ``"gpu"``.
        devices: Ranks on a node; ``"auto"`` (or -1) keeps those of the launcher. A script started
            by ``python script.py`` restarts itself under ``paceline run``.
        num_nodes: Nodes that the run must have been started on.
        strategy: As for ``Session``.
        precision: As for ``Session``, or in Lightning's spellings.
        accumulate_grad_batches: Batches in an optimizer step.
        gradient_clip_val: Norm or value to clip gradients to; None for no clipping.
        gradient_clip_algorithm: ``"norm"`` or ``"value"``.
        log_every_n_steps: Steps between reports of ``on_step`` numbers; each is a collective.
        val_check_interval: Batches, or fraction of them, between validations within an epoch; there
            is always one after the epoch.
        check_val_every_n_epoch: Validation runs in every n-th epoch only.
        num_sanity_val_steps: Batches to validate with before training; the results are discarded.
        limit_train_batches: Batches, or fraction of them, to train on in each epoch.
        limit_val_batches: The same for validation; 0 disables it.
        limit_test_batches: The same for tests.
        callbacks: Objects with some of the methods of ``paceline.trainer.Callback``.
        logger: True for ``metrics.csv`` in the run folder, False for none, or as ``loggers`` of
            Session.
        enable_progress_bar: Whether to show a bar, on a terminal, and a line for each epoch.
        enable_checkpointing: Whether to save after each epoch, and keep the last two and the best.
        monitor: Metric that determines the best checkpoint, and when to stop.
        mode: ``"min"`` if smaller values of it are better, ``"max"`` if greater ones are.
        patience: Validated epochs without improvement after which to stop; None means never.
        min_delta: Least improvement that counts.
        save_top_k: Number of best checkpoints to keep.
        resume: Whether to resume from the latest checkpoint in the run folder. None: only in the
            folder of a ``paceline run``, which is new unless it was given another to resume, and
            not for a second ``fit`` of the process.
        per_rank_batch_size: Whether batch sizes of DataLoaders are per rank.
        run_dir: As for ``Session``.
        default_root_dir: Lightning's name of ``run_dir``.
        seed: As for ``Session``.
        **unknown: Refused; the error names the replacement.

    Raises:
        UsageError: An argument is unknown, invalid, or contradicts how the run was started.

    Attributes:
        session: The Session of the Trainer.
        callback_metrics: Values logged last, by name: exact means as tensors.
        should_stop: Set it to end training after the epoch; one rank is enough.
        console: Console of the progress, rich's for stderr.
    """

    def __init__(
        self,
        *,
        max_epochs: int | None = None,
        max_steps: int = -1,
        accelerator: str = "auto",
        devices: int | str = "auto",
        num_nodes: int = 1,
        strategy: Any = "ddp",
        precision: str | int = "32-true",
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        log_every_n_steps: int = 50,
        val_check_interval: int | float | None = None,
        check_val_every_n_epoch: int = 1,
        num_sanity_val_steps: int = 0,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        callbacks: Callback | Sequence[Any] = (),
        logger: bool | str | Logger | Sequence[Logger | str] = True,
        enable_progress_bar: bool = True,
        enable_checkpointing: bool = True,
        monitor: str | None = None,
        mode: str = "min",
        patience: int | None = None,
        min_delta: float = 0.0,
        save_top_k: int = 1,
        resume: bool | None = None,
        per_rank_batch_size: bool = False,
        run_dir: str | os.PathLike[str] | None = None,
        default_root_dir: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        arguments = dict(locals())
        options.refuse_unknown(unknown, set(inspect.signature(Trainer).parameters) - {"unknown"})
        self._plan = options.Plan(
            **{field.name: arguments[field.name] for field in fields(options.Plan)}
        )
        self._callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        check_callbacks(self._callbacks)
        device_type = options.read_accelerator(accelerator)
        num_ranks = options.read_devices(devices)
        start_ranks(num_ranks, options.count("num_nodes", num_nodes))
        self._for_session = {
            "precision": options.read_precision(precision),
            "accumulate": accumulate_grad_batches,
            "strategy": "ddp" if strategy == "auto" else strategy,
            "seed": seed,
            "run_dir": _shared(
                options.either("run_dir", run_dir, "default_root_dir", default_root_dir)
            ),
            "loggers": _loggers(logger),
        }
        self.session = Session(**self._for_session)
        check_world(num_ranks, num_nodes, self.session)
        check_device(device_type, self.session)
        self._seed, self._per_rank, self._resume = seed or 0, per_rank_batch_size, resume
        self._with_bar, self.console = enable_progress_bar, Console(stderr=True)
        self._progress = Progress()
        self._recorder = Recorder(self._progress)
        self._work: Work | None = None
        self._data: Data | None = None
        self.optimizers: list[Optimizer] = []
        self.num_training_batches: int | None = None
        self.current_epoch = 0
        self.should_stop = False
        self.callback_metrics: dict[str, torch.Tensor] = {}

    # Properties

    @property
    def global_step(self) -> int:
        """Number of optimizer steps so far."""
        return self.session.step

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
        return self.session.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.session.is_main

    @property
    def max_epochs(self) -> int | None:
        """The argument ``max_epochs``."""
        return self._plan.max_epochs

    @property
    def max_steps(self) -> int:
        """The argument ``max_steps``."""
        return self._plan.max_steps

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the whole ``fit``, for a scheduler; ``inf`` if unknown."""
        steps = self._plan.steps(self.num_training_batches)
        return steps if math.isinf(steps) else int(steps)

    # Methods

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train a task.

        Args:
            model: The task.
            train_dataloaders: A DataLoader, or the data object.
            val_dataloaders: A DataLoader to validate with, without a data object.
            datamodule: The data object.
            ckpt_path: Checkpoint to resume from: ``"last"``, ``"best"`` or a path; else see
                ``resume``.

        Raises:
            UsageError: The task or the data is unsuitable, or the checkpoint does not exist.
        """
        check_task(model, "training_step", "configure_optimizers")
        self._plan.check_has_end()
        data = self._connect(
            model, train_dataloaders, datamodule, train=train_dataloaders, val=val_dataloaders
        )
        if self._work is not None:  # another fit is a new run, with other steps and models
            self.session = self._another_session()
        data.prepare(self.session, "fit", seed=self._seed)
        train = self._loader(data, "train")
        validates = callable(getattr(model, "validation_step", None))
        val = self._loader(data, "val") if validates else None
        self.num_training_batches = self._plan.train_batches(length_of(train))
        self.optimizers, schedules = optimizers.read(model.configure_optimizers())
        self.should_stop, self.callback_metrics = False, {}
        self._work = Work(model, self.session, self.optimizers)
        evaluation = self._evaluation(self._work)
        fit = Fit(evaluation, self._plan, train=train, val=val, schedules=schedules)
        evaluation.hooks.call("on_fit_start")
        self.session.register(trainer=fit, **optimizers.with_state(schedules))
        resuming.restore_for_fit(
            self.session,
            ckpt_path,
            resume=self._resume,
            chose_folder=self._for_session["run_dir"] is not None,
        )
        fit.run()
        evaluation.hooks.call("on_fit_end")

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Return the exact means over all samples of what ``validation_step`` logs, in a list.

        Args:
            model: The task. None means the last ``fit``'s, from its best checkpoint with a
                ``monitor``.
            dataloaders: A DataLoader, or the data object; those of the last ``fit`` if None.
            ckpt_path: Checkpoint to evaluate instead: ``"last"``, ``"best"`` or a path.
            verbose: Whether to print the means.
            datamodule: The data object.

        Raises:
            UsageError: The task, data or checkpoint is missing or unsuitable.
        """
        return self._evaluate(
            "validation", model, ckpt_path, verbose, dataloaders=dataloaders, datamodule=datamodule
        )

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
    ) -> list[dict[str, float]]:
        """Return the exact means over all samples of what ``test_step`` logs; as ``validate``."""
        return self._evaluate(
            "test", model, ckpt_path, verbose, dataloaders=dataloaders, datamodule=datamodule
        )

    def log(
        self,
        name: str,
        value: Any,
        *,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **without_effect: Any,
    ) -> None:
        """Log a number from inside a step or a hook of the epoch's end. Call it on all ranks.

        Args:
            name: Name of the number.
            value: A number, a tensor with one element, or an object with ``compute`` and ``reset``
                (torchmetrics), whose value is the epoch's.
            prog_bar: Whether the progress bar shows it.
            logger: Whether loggers get it.
            on_step: Whether loggers get the number every ``log_every_n_steps``, over all ranks; the
                default in ``training_step``. (The progress bar shows rank 0's at once.)
            on_epoch: Whether loggers get the mean over all rows of the epoch; the default
                elsewhere. With both, the names end in ``_step`` and ``_epoch``.
            reduce_fx: ``"mean"``, or ``"sum"`` for numbers that are sums.
            batch_size: Rows that the number is the mean of; taken from the batch if None.
            **without_effect: ``sync_dist`` and others of Lightning; means are always exact.

        Raises:
            UsageError: The value is not a number, or there is no current epoch or evaluation.
        """
        if without_effect:
            options.refuse_unknown_log(without_effect)
        self._recorder.log(
            name,
            value,
            batch_size=batch_size,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
        )

    def take(self, values: Mapping[str, float]) -> None:
        """Store exact values for callbacks."""
        self.callback_metrics.update(
            {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
        )

    # Implementation

    def _connect(self, task: Any, first: Any, datamodule: Any, **loaders: Any) -> Data:
        """Connect task and data to this trainer."""
        if is_data(first):
            loaders = {
                stage: None if loader is first else loader for stage, loader in loaders.items()
            }
            datamodule = options.either("the second argument", first, "datamodule", datamodule)
        if datamodule is not None and any(loader is not None for loader in loaders.values()):
            raise options.contradiction(
                "a data object and loaders are both given",
                where="Trainer",
                fix="trainer.fit(task, data), or trainer.fit(task, train_loader, val_loader)",
            )
        check_data(datamodule)
        for owner in (task, datamodule):
            if owner is not None:
                with contextlib.suppress(AttributeError):  # a class with slots works without it
                    owner.trainer = self
        self._data = Data(task, datamodule, loaders)
        return self._data

    def _loader(self, data: Data, stage: str, *, evaluates: bool = False) -> Any:
        loader = data.loader(self.session, stage, per_rank=self._per_rank, evaluates=evaluates)
        if loader is None and stage != "val":
            raise UsageError(
                Finding(
                    "option-invalid",
                    f"there is no loader for {stage}",
                    where=f"trainer.{'fit' if stage == 'train' else stage}(...)",
                    fix=f"def {stage}_dataloader(self): return DataLoader(...), or pass one",
                )
            )
        return loader

    def _evaluation(self, work: Work) -> Evaluation:
        display = Display(
            self._progress, self.console, enabled=self._with_bar and self.session.is_main
        )
        return Evaluation(
            self, work, self._recorder, display, Hooks(self, work.task, self._callbacks)
        )

    def _evaluate(
        self,
        stage: str,
        model: Any,
        ckpt_path: str | os.PathLike[str] | None,
        verbose: bool,
        *,
        dataloaders: Any,
        datamodule: Any,
    ) -> list[dict[str, float]]:
        if model is None and self._work is not None:
            model = self._work.task
            ckpt_path = ckpt_path or ("best" if self._plan.saves_best else None)
        check_task(model, f"{stage}_step")
        loader_stage, data_stage = STAGES[stage]
        is_known = self._work is not None and self._work.task is model
        has_new_data = dataloaders is not None or datamodule is not None
        data = self._data
        if data is None or has_new_data or not is_known:
            data = self._connect(model, dataloaders, datamodule, **{loader_stage: dataloaders})
        work = self._work_of(model)
        data.prepare(self.session, data_stage, seed=self._seed)
        if ckpt_path is not None:
            # By its folder, so that the message reports a loaded checkpoint: nothing is resumed
            # here.
            folder = self.session.run_dir.checkpoints
            resuming.restore(self.session, folder if ckpt_path == "last" else ckpt_path)
        loader = self._loader(data, loader_stage, evaluates=True)
        option = f"limit_{loader_stage}_batches"
        limit = options.num_batches(option, getattr(self._plan, option), length_of(loader))
        evaluation = self._evaluation(work)
        with evaluation.display.bar():
            values = evaluation.run(stage, loader, limit=limit).for_loggers
        self.session.log(values)
        if verbose:
            evaluation.display.line(stage, values)
        return [values]

    def _work_of(self, task: Any) -> Work:
        """Return a task that is set up, in a new Session if another task used this one."""
        if self._work is not None and self._work.task is task:
            return self._work
        if self._work is not None:
            self.session = self._another_session()
        self._work = Work(task, self.session)
        return self._work

    def _another_session(self) -> Session:
        """Return a new Session in the same run folder; ``restore_for_fit`` keeps fits separate."""
        return Session(**{**self._for_session, "run_dir": self.session.run_dir})


def _shared(run_dir: Any) -> Any:
    """Return a folder that several Sessions may use: the Trainer itself decides what may resume."""
    return None if run_dir is None else RunDir(Path(run_dir))


def _loggers(logger: Any) -> Sequence[Logger | str]:
    """Return the loggers for Session."""
    if isinstance(logger, bool):
        return ("csv",) if logger else ()
    loggers = list(logger) if isinstance(logger, list | tuple) else [logger]
    for target in loggers:
        if not isinstance(target, str) and not _can_log(target):
            raise options.invalid(
                "logger",
                type(target).__name__,
                "a name, or an object with log(values, step) and close()",
                fix='Trainer(logger="tensorboard")',
            )
    return loggers


def _can_log(target: Any) -> bool:
    return all(callable(getattr(target, method, None)) for method in ("log", "close"))
