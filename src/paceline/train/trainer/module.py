"""Optional base classes of a task and its data: ``Module`` and ``DataModule``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from paceline.errors import option_invalid
from paceline.signatures.lightning_names import missing_attribute
from paceline.train.trainer import loading
from paceline.train.trainer.hparams import Configured
from paceline.train.trainer.task_hooks import TaskHooks
from paceline.train.trainer.transfer import BatchHooks

if TYPE_CHECKING:
    from typing_extensions import Self

    from paceline.train.trainer.attributes import Attributes


class Module(Configured, TaskHooks):
    """An ``nn.Module`` that can log, and has access to the Trainer that runs it.

    Define ``training_step(batch, batch_idx)``, which returns the loss as a mean over the batch's
    rows, and ``configure_optimizers()``; optionally ``validation_step``, ``test_step`` and
    ``predict_step``, and the hooks of ``paceline.trainer.Callback``.

    Attributes:
        automatic_optimization: Whether the Trainer runs backward and steps the optimizers. With
            False ``training_step`` does, with ``manual_backward``.
        example_input_array: For the script's own use.
        strict_loading: Whether ``load_from_checkpoint`` refuses missing and unexpected keys.
    """

    automatic_optimization: bool = True
    example_input_array: Any = None
    strict_loading: bool = True
    _trainer: Attributes | None = None
    _toggled: dict[nn.Parameter, bool] | None = None

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **arguments: Any,
    ) -> Self:
        """Make a module from a checkpoint: its saved hyperparameters and its weights.

        Args:
            checkpoint_path: A checkpoint of paceline (a folder), or a file of
                ``save_checkpoint(..., weights_only=True)`` or of Lightning.
            map_location: As for ``torch.load``; the CPU if None.
            hparams_file: Must be None.
            strict: Whether missing and unexpected keys are an error; ``strict_loading`` if None.
            weights_only: Whether to read plain data only; True if None. Otherwise the checkpoint
                may run any code.
            **arguments: Arguments of ``__init__``, in place of the saved ones.

        Raises:
            UsageError: There is no checkpoint, or it does not fit the class.
        """
        values = loading.read(
            checkpoint_path,
            map_location=map_location,
            hparams_file=hparams_file,
            weights_only=weights_only is not False,
        )
        module = loading.make(cls, values, arguments)
        loading.fill(module, values, strict=module.strict_loading if strict is None else strict)
        return module

    @property
    def trainer(self) -> Attributes:
        """The Trainer that runs this module.

        Raises:
            UsageError: No Trainer runs it yet.
        """
        if self._trainer is None:
            raise option_invalid(
                f"{type(self).__name__} has no trainer yet",
                where="self.trainer",
                fix="use it inside a method that the Trainer calls, from configure_optimizers on",
            )
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Attributes | None) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise missing_attribute("module", type(self).__name__, name) or error from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}  # a copy or pickle excludes the run

    # Logging

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log a number; see ``Trainer.log`` for options. Does nothing outside of a Trainer."""
        if args:
            options = {**dict(zip(("prog_bar", "logger"), args, strict=False)), **options}
        if self._trainer is not None:
            self._trainer.log(name, value, **options)

    def log_dict(self, values: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Log several numbers with the same options."""
        for name, value in values.items():
            self.log(name, value, *args, **options)

    @property
    def logger(self) -> Any:
        """The first logger of the Trainer; None without one, or without a Trainer."""
        return None if self._trainer is None else self._trainer.logger

    @property
    def loggers(self) -> list[Any]:
        """The loggers of the Trainer."""
        return [] if self._trainer is None else self._trainer.loggers

    def print(self, *values: object, **options: Any) -> None:
        """Print on rank 0 only, with the options of Python's ``print``."""
        self.trainer.print(*values, **options)

    # Place and progress

    @property
    def device(self) -> torch.device:
        """The device of the parameters; the CPU without parameters."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first parameter of a floating type; torch's default without one."""
        parameters = self.parameters()
        types = (value.dtype for value in parameters if value.is_floating_point())
        return next(types, torch.get_default_dtype())

    @property
    def on_gpu(self) -> bool:
        """Whether the parameters are on a GPU."""
        return self.device.type != "cpu"

    @property
    def current_epoch(self) -> int:
        """Number of the epoch, from 0."""
        return 0 if self._trainer is None else self._trainer.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer steps so far."""
        return 0 if self._trainer is None else self._trainer.global_step

    @property
    def global_rank(self) -> int:
        """Global rank of this process."""
        return 0 if self._trainer is None else self._trainer.global_rank

    @property
    def local_rank(self) -> int:
        """Rank on this node."""
        return 0 if self._trainer is None else self._trainer.local_rank

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all ranks, stacked in the order of ranks; detached.

        A single rank gets its own tensors as they are, as under Lightning. For the rows of a batch
        in the dataset's order use ``self.trainer.session.gather``.

        Args:
            data: A tensor of the same shape on all ranks, a number, or a dict, list or tuple.
            group: Must be None.
            sync_grads: Must be False.

        Raises:
            UsageError: ``group`` or ``sync_grads`` is given.
        """
        return self.trainer.all_gather(data, group=group, sync_grads=sync_grads)

    # Steps

    def predict_step(self, batch: Any, *_position: int) -> Any:
        """Return the predictions for a batch: what ``forward`` returns, unless overridden."""
        return self(batch)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizer, or a list if ``configure_optimizers`` returned several."""
        optimizers = self.trainer.optimizers
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)

    def lr_schedulers(self) -> Any:
        """Return the scheduler, a list if there are several, or None without one."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        if not schedulers:
            return None
        return schedulers[0] if len(schedulers) == 1 else schedulers

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Step an optimizer; override it to step differently.

        Args:
            epoch: Number of the epoch, from 0.
            batch_idx: Number of the batch in it.
            optimizer: The optimizer.
            optimizer_closure: Returns the loss. The gradients are complete already, on all ranks,
                so calling it, or passing it to ``step``, computes nothing again.
        """
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Clear the gradients of an optimizer after its step."""
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Step a scheduler; ``metric`` is what its ``monitor`` names, None without one."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer before its step."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer; for ``training_step`` of manual optimization too.

        Args:
            optimizer: The optimizer.
            gradient_clip_val: Norm or value to clip to; the Trainer's if None.
            gradient_clip_algorithm: ``"norm"`` or ``"value"``; the Trainer's if None.
        """
        self.trainer.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def manual_backward(self, loss: torch.Tensor, *args: Any, **options: Any) -> None:
        """Compute gradients in a ``training_step`` of manual optimization, averaged over ranks.

        Args:
            loss: The mean over this rank's rows of the batch.
            *args: Must be empty.
            **options: Must be empty.

        Raises:
            UsageError: An option is given, or the Trainer runs backward itself.
        """
        self.trainer.manual_backward(loss, *args, **options)

    def toggle_optimizer(self, optimizer: Optimizer) -> None:
        """Train only the parameters of one optimizer until ``untoggle_optimizer``."""
        mine = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        self._toggled = {
            parameter: parameter.requires_grad
            for other in self.trainer.optimizers
            for group in other.param_groups
            for parameter in group["params"]
            if parameter not in mine
        }
        for parameter in self._toggled:
            parameter.requires_grad = False

    def untoggle_optimizer(self, optimizer: Optimizer) -> None:
        """Undo ``toggle_optimizer``."""
        for parameter, requires_grad in (self._toggled or {}).items():
            parameter.requires_grad = requires_grad
        self._toggled = None

    @contextlib.contextmanager
    def toggled_optimizer(self, optimizer: Optimizer) -> Iterator[None]:
        """Train only the parameters of one optimizer inside the context."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def freeze(self) -> None:
        """Stop training all parameters, and switch to evaluation mode."""
        for parameter in self.parameters():
            parameter.requires_grad = False
        self.eval()

    def unfreeze(self) -> None:
        """Train all parameters, and switch to training mode."""
        for parameter in self.parameters():
            parameter.requires_grad = True
        self.train()


class DataModule(BatchHooks, Configured):
    """Data for the Trainer; define the methods that are needed.

    ``prepare_data`` runs once on each node, before the other methods. ``setup(stage)`` runs on
    every rank, with the same random numbers on all ranks. The others, ``train_dataloader``,
    ``val_dataloader``, ``test_dataloader`` and ``predict_dataloader``, return a DataLoader, whose
    batch size is global, or a list or dict of them.
    """

    trainer: Attributes | None = None
    name: str | None = None

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        **arguments: Any,
    ) -> Self:
        """Make a data object with the hyperparameters of a checkpoint; see that of ``Module``."""
        values = loading.read(
            checkpoint_path,
            map_location=map_location,
            hparams_file=hparams_file,
            weights_only=weights_only is not False,
        )
        return loading.make(cls, values, arguments)

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **arguments: Any,
    ) -> Self:
        """Make a data object of datasets, or lists or dicts of them; only training shuffles."""
        module = cls(**arguments)
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers}
        datasets = {
            "train": train_dataset,
            "val": val_dataset,
            "test": test_dataset,
            "predict": predict_dataset,
        }
        for stage, dataset in datasets.items():
            if dataset is not None:
                make = _loaders_of(dataset, shuffles=stage == "train", options=options)
                setattr(module, f"{stage}_dataloader", make)
        return module

    def prepare_data(self) -> None:
        """Download and convert; must not store anything in ``self``."""

    def setup(self, stage: str) -> None:
        """Make datasets; ``stage`` is ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``."""

    def teardown(self, stage: str) -> None:
        """Called at the end of each of them."""

    def on_exception(self, exception: BaseException) -> None:
        """Called on the rank that raises, before the exception leaves the Trainer."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores; it must be the same on all ranks."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        default = AttributeError(f"{kind!r} object has no attribute {name!r}")
        raise missing_attribute("data", kind, name) or default


def _loaders_of(dataset: Any, *, shuffles: bool, options: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that makes the loaders of a dataset, or of a list or dict of datasets."""

    def make(part: Any) -> DataLoader[Any]:
        is_stream = isinstance(part, IterableDataset)
        return DataLoader(part, shuffle=shuffles and not is_stream, **options)

    def loaders() -> Any:
        if isinstance(dataset, Mapping):
            return {name: make(part) for name, part in dataset.items()}
        if isinstance(dataset, list | tuple):
            return [make(part) for part in dataset]
        return make(dataset)

    return loaders
