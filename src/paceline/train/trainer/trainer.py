"""The public Trainer class: its arguments and methods; ``running`` and ``fitting`` do the work."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.errors import option_contradicted
from paceline.rundir.files import RunDir
from paceline.train.logging import Logger
from paceline.train.session import Session
from paceline.train.trainer import loggers as logger_kinds
from paceline.train.trainer import options, profiling
from paceline.train.trainer.arguments import (
    normalized,
    read_accelerator,
    read_devices,
    read_precision,
    read_strategy,
)
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.callbacks import ModelSummary, Timer
from paceline.train.trainer.checks import check_callbacks, check_task
from paceline.train.trainer.running import Running, RunSettings
from paceline.train.trainer.start import check_device, check_world, start_ranks


class Trainer(Running):
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
        min_epochs: Epochs before which neither ``should_stop`` nor ``patience`` ends training.
        min_steps: The same for optimizer steps.
        max_time: When to end training: ``"DD:HH:MM:SS"``, a timedelta, or its arguments in a dict.
        accelerator: Required device of the ranks: ``"auto"``, ``"cpu"`` or ``"gpu"``.
        devices: Ranks on a node; ``"auto"`` (or -1) keeps those of the launcher. A script started
            by ``python script.py`` restarts itself under ``paceline run``. A list of devices must
            count up from 0.
        num_nodes: Nodes that the run must have been started on.
        strategy: As for ``Session``, or in Lightning's spellings.
        sync_batchnorm: Whether batch norm computes its statistics over all ranks; on GPUs only.
        precision: As for ``Session``, or in Lightning's spellings.
        accumulate_grad_batches: Batches in an optimizer step.
        gradient_clip_val: Norm or value to clip gradients to; None or 0 for no clipping.
        gradient_clip_algorithm: ``"norm"`` or ``"value"``.
        log_every_n_steps: Steps between reports of ``on_step`` numbers; each is a collective. 0
            means never.
        val_check_interval: Batches, or fraction of them, between validations within an epoch; there
            is always one after the epoch.
        check_val_every_n_epoch: Validation runs in every n-th epoch only. None counts the batches
            of ``val_check_interval`` over epochs, without a validation after the epoch.
        num_sanity_val_steps: Batches to validate with before training; the results are discarded.
            -1 means all.
        reload_dataloaders_every_n_epochs: Epochs after which ``train_dataloader`` and
            ``val_dataloader`` are called again; 0 for once a ``fit``.
        limit_train_batches: Batches, or fraction of them, to train on in each epoch.
        limit_val_batches: The same for validation; 0 disables it.
        limit_test_batches: The same for tests.
        limit_predict_batches: The same for predictions.
        overfit_batches: Batches, or fraction of them, to train on in each epoch in the dataset's
            order, and to validate with. 0 means no such limit.
        fast_dev_run: Whether to run one batch of everything, or so many, and to leave no traces.
        deterministic: Whether torch must use deterministic algorithms; ``"warn"`` only warns where
            there are none. None leaves the setting as it is.
        benchmark: Whether cuDNN tries its algorithms; None leaves the setting as it is.
        inference_mode: Whether evaluations run in torch's inference mode instead of ``no_grad``.
        detect_anomaly: Whether backward reports which operation made a NaN; slow.
        profiler: ``"simple"`` for a table of the loop's parts, ``"pytorch"`` for torch's profiler,
            or a ``torch.profiler.profile``.
        use_distributed_sampler: Must be True: samples are shared out exactly.
        callbacks: Objects with some of the methods of ``paceline.trainer.Callback``.
        logger: True for ``metrics.csv`` in the run folder, False for none, or as
            ``loggers`` of Session, or loggers of ``paceline.loggers``, or any
            object with ``log_metrics``.
        enable_model_summary: Whether a ``fit`` begins with a table of the model's parts.
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
    """

    def __init__(
        self,
        *,
        max_epochs: int | None = None,
        max_steps: int | None = -1,
        min_epochs: int | None = None,
        min_steps: int | None = None,
        max_time: Any = None,
        accelerator: str | None = "auto",
        devices: int | str | list[int] | None = "auto",
        num_nodes: int = 1,
        strategy: Any = "ddp",
        sync_batchnorm: bool = False,
        precision: str | int | None = "32-true",
        accumulate_grad_batches: int | None = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = "norm",
        log_every_n_steps: int | None = 50,
        val_check_interval: int | float | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = 0,
        reload_dataloaders_every_n_epochs: int | None = 0,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float | None = 0,
        fast_dev_run: int | bool = False,
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        inference_mode: bool | None = False,
        detect_anomaly: bool = False,
        profiler: Any = None,
        use_distributed_sampler: bool | None = True,
        callbacks: Callback | Sequence[Any] | None = (),
        logger: bool | str | Logger | Sequence[Any] | None = True,
        enable_progress_bar: bool | None = True,
        enable_model_summary: bool | None = False,
        enable_checkpointing: bool | None = True,
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
        values = normalized(arguments)
        plan = options.TrainingPlan(
            **{field.name: values[field.name] for field in fields(options.TrainingPlan)}
        )
        callback_list = _callbacks(values)
        loggers = logger_kinds.read(values["logger"])
        device_type, num_ranks = read_accelerator(accelerator), read_devices(devices)
        start_ranks(num_ranks, options.count("num_nodes", num_nodes))
        for_session = {
            "precision": read_precision(precision),
            "accumulate": values["accumulate_grad_batches"],
            "strategy": read_strategy(strategy, sync_batchnorm=sync_batchnorm),
            "seed": seed,
            "run_dir": _shared(
                options.either("run_dir", run_dir, "default_root_dir", default_root_dir)
            ),
            "loggers": logger_kinds.for_session(loggers),
        }
        session = Session(**for_session)
        check_world(num_ranks, num_nodes, session)
        check_device(device_type, session)
        logger_kinds.join(loggers, session)
        settings = RunSettings(
            for_session=for_session,
            per_rank=per_rank_batch_size,
            resume=resume,
            seed=seed or 0,
            detects_anomaly=detect_anomaly,
            profiler=profiling.read(profiler),
        )
        super().__init__(plan, settings, session=session, callbacks=callback_list, loggers=loggers)
        self.shows_progress = values["enable_progress_bar"]
        self.inference_mode, self.profiler = values["inference_mode"], profiler
        _set_algorithms(deterministic, benchmark)

    # Methods

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train a task.

        Args:
            model: The task.
            train_dataloaders: A DataLoader, a list, dict or CombinedLoader of them, or the data
                object.
            val_dataloaders: A DataLoader to validate with, or several, without a data object.
            datamodule: The data object.
            ckpt_path: Checkpoint to resume from: ``"last"``, ``"best"`` or a path; else see
                ``resume``.
            weights_only: Accepted; the checkpoint is one that the Trainer saved.

        Raises:
            UsageError: The task or the data is unsuitable, or the checkpoint does not exist.
        """
        check_task(model, "training_step", "configure_optimizers")
        self._plan.check_has_end()
        loaders = {"train": train_dataloaders, "val": val_dataloaders}
        data = self._connect(model, train_dataloaders, datamodule, **loaders)
        self._run_fit(model, data, ckpt_path)

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Return the exact means over all samples of what ``validation_step`` logs, in a list.

        Args:
            model: The task. None means the last ``fit``'s, from its best checkpoint with a
                ``monitor`` or a ModelCheckpoint.
            dataloaders: A DataLoader, a list of them, or the data object; those of the last
                ``fit`` if None.
            ckpt_path: Checkpoint to evaluate instead: ``"last"``, ``"best"`` or a path.
            verbose: Whether to print the means.
            datamodule: The data object.
            weights_only: Accepted; the checkpoint is one that the Trainer saved.

        Returns:
            A dict for each loader.

        Raises:
            UsageError: The task, data or checkpoint is missing or unsuitable.
        """
        return self._evaluate(
            "validate", model, ckpt_path, verbose, dataloaders=dataloaders, datamodule=datamodule
        )

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Return the exact means over all samples of what ``test_step`` logs; as ``validate``."""
        return self._evaluate(
            "test", model, ckpt_path, verbose, dataloaders=dataloaders, datamodule=datamodule
        )

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> list[Any] | None:
        """Return what ``predict_step`` returns for each batch; the same on any number of ranks.

        Args:
            model: The task; as for ``validate``.
            dataloaders: A DataLoader, a list of them, or the data object; those of the last
                ``fit`` if None.
            datamodule: The data object.
            return_predictions: Whether to return them, and so to keep them in memory; True if
                None.
            ckpt_path: Checkpoint to predict with instead: ``"last"``, ``"best"`` or a path.
            weights_only: Accepted; the checkpoint is one that the Trainer saved.

        Returns:
            A list with the result for each batch, all samples in the dataset's order on every rank;
            with several loaders a list of these lists; None without ``return_predictions``.

        Raises:
            UsageError: The task, data or checkpoint is missing or unsuitable, or on several ranks
                a result is not made of tensors with a row for each sample.
        """
        return self._predict(
            model,
            ckpt_path,
            dataloaders=dataloaders,
            datamodule=datamodule,
            returns=return_predictions is not False,
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
        add_dataloader_idx: bool = True,
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
            reduce_fx: ``"mean"``; ``"sum"`` for numbers that are sums; ``"max"`` or ``"min"`` for
                those that are the greatest or the least of their rows.
            batch_size: Rows that the number is the mean of; taken from the batch if None.
            add_dataloader_idx: Whether the name ends in ``/dataloader_idx_0`` if an evaluation has
                several loaders.
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
            add_dataloader_idx=add_dataloader_idx,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
        )

    def save_checkpoint(
        self,
        filepath: str | os.PathLike[str],
        weights_only: bool | None = None,
        storage_options: Any = None,
    ) -> None:
        """Save a checkpoint to a path, on all ranks together.

        While an epoch ends (in ``on_train_epoch_end``, for example) it is saved when its schedulers
        have stepped; a file of weights is always written at once.

        Args:
            filepath: Folder of the checkpoint, which is replaced if it exists; or a file.
            weights_only: Whether to save only weights and hyperparameters in one file, as
                ``torch.load`` and Lightning read it.
            storage_options: Must be None.

        Raises:
            UsageError: No task was run before, or an option is unsuitable.
            RunError: The checkpoint cannot be written.
        """
        if storage_options is not None:
            raise options.invalid(
                "storage_options", storage_options, "None", fix="trainer.save_checkpoint(path)"
            )
        self._save_to(Path(filepath), weights_only=bool(weights_only))

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer; None means the Trainer's own arguments."""
        limit = self.gradient_clip_val if gradient_clip_val is None else gradient_clip_val
        algorithm = gradient_clip_algorithm or self.gradient_clip_algorithm
        if not limit:
            return
        if options.one_of("gradient_clip_algorithm", algorithm, ("norm", "value")) == "norm":
            self.session.clip_grad_norm(optimizer, limit)
        else:
            self.session.clip_grad_value(optimizer, limit)


def _callbacks(values: dict[str, Any]) -> list[Any]:
    """Return the callbacks, with those that other arguments stand for.

    Raises UsageError if a callback is unsuitable, or contradicts an argument.
    """
    requested = values["callbacks"]
    callbacks = list(requested) if isinstance(requested, list | tuple) else [requested]
    check_callbacks(callbacks)
    if values["max_time"] is not None:
        callbacks.append(Timer({"seconds": values["max_time"]}))
    if values["enable_model_summary"]:
        callbacks.append(ModelSummary())
    saves = [callback for callback in callbacks if hasattr(callback, "best_model_path")]
    if saves and not values["enable_checkpointing"] and not values["fast_dev_run"]:
        raise option_contradicted(
            f"enable_checkpointing=False, and there is a {type(saves[0]).__name__}",
            where="Trainer(callbacks=...)",
            fix="leave one of them out",
        )
    return callbacks


def _shared(run_dir: Any) -> Any:
    """Return a folder that several Sessions may use: the Trainer itself decides what may resume."""
    return None if run_dir is None else RunDir(Path(run_dir))


def _set_algorithms(deterministic: bool | str | None, benchmark: bool | None) -> None:
    """Set which algorithms torch chooses, for the whole process."""
    if deterministic is not None:
        if deterministic is not True and deterministic is not False:
            options.one_of("deterministic", deterministic, ("warn",))
        torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
    if benchmark is not None:
        torch.backends.cudnn.benchmark = benchmark
