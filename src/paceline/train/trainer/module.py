"""Optional base classes of a task and its data: ``Module`` and ``DataModule``."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import Finding, UsageError

if TYPE_CHECKING:
    from paceline.train.trainer.trainer import Trainer


class HParams(dict[str, Any]):
    """A dict whose keys are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no hyperparameter {name!r}; there are {', '.join(self) or 'none'}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Configured:
    """Base class that stores the arguments that an object was made with."""

    @property
    def hparams(self) -> HParams:
        """The collected arguments, as ``hparams.lr`` or ``hparams["lr"]``."""
        hparams: HParams = self.__dict__.setdefault("_hparams", HParams())
        return hparams

    def save_hyperparameters(
        self,
        *names: str | Mapping[str, Any] | Namespace | SimpleNamespace,
        ignore: str | Iterable[str] = (),
        logger: bool = True,
    ) -> None:
        """Collect the arguments of the calling ``__init__`` as ``hparams``.

        If the ``__init__`` of a derived class called that one, its arguments are collected too.

        Args:
            *names: Only these arguments; a mapping or namespace is added as it is.
            ignore: Arguments to leave out.
            logger: Accepted for compatibility with Lightning; has no effect.

        Raises:
            UsageError: A name is not an argument, or an element of ``names`` is of another type.
        """
        frame = inspect.currentframe()
        arguments = _arguments(self, frame.f_back if frame else None)
        named = [name for name in names if isinstance(name, str)]
        mappings = [_mapping(name) for name in names if not isinstance(name, str)]
        if named:
            _check_names(named, arguments)
            mappings.insert(0, {key: arguments[key] for key in arguments if key in named})
        if not names:
            mappings = [arguments]
        ignored = {ignore} if isinstance(ignore, str) else set(ignore)
        for mapping in mappings:
            self.hparams.update(
                {key: value for key, value in mapping.items() if key not in ignored}
            )


def _check_names(names: Sequence[str], arguments: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in arguments]
    if unknown:
        raise UsageError(
            Finding(
                "option-invalid",
                f"{', '.join(unknown)}: no argument of __init__; there are"
                f" {', '.join(arguments) or 'none'}",
                where="save_hyperparameters(...)",
                fix="self.save_hyperparameters() takes all of them",
            )
        )


def _mapping(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Namespace | SimpleNamespace):
        return vars(config)
    if isinstance(config, Mapping):
        return config
    raise UsageError(
        Finding(
            "option-invalid",
            f"an object of type {type(config).__name__} is not the name of an argument, a mapping"
            " or a namespace",
            where="save_hyperparameters(...)",
            fix="self.save_hyperparameters(vars(config))",
        )
    )


def _arguments(owner: object, frame: FrameType | None) -> dict[str, Any]:
    """Return the arguments of all running ``__init__`` of ``owner``; outer ones take precedence."""
    arguments: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        names, _, kwargs, values = inspect.getargvalues(frame)
        if not names or values[names[0]] is not owner:
            break
        arguments.update({name: values[name] for name in names[1:]})
        arguments.update(values[kwargs] if kwargs else {})
        frame = frame.f_back
    return {name: value for name, value in arguments.items() if not name.startswith("__")}


class Module(Configured, nn.Module):
    """An ``nn.Module`` that can log, and has access to the Trainer that runs it.

    Define ``training_step(batch, batch_idx)``, which returns the loss as a mean over the batch's
    rows, and ``configure_optimizers()``; optionally ``validation_step`` and ``test_step``.
    """

    _trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        """The Trainer that runs this module.

        Raises:
            UsageError: No Trainer runs it yet.
        """
        if self._trainer is None:
            raise UsageError(
                Finding(
                    "option-invalid",
                    f"{type(self).__name__} has no trainer yet",
                    where="self.trainer",
                    fix=(
                        "use it inside a method that the Trainer calls, from"
                        " configure_optimizers on"
                    ),
                )
            )
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        self._trainer = trainer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}  # a copy or pickle excludes the run

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Log a number; see ``Trainer.log`` for options. Does nothing outside of a Trainer."""
        if self._trainer is not None:
            self._trainer.log(name, value, **options)

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Log several numbers with the same options."""
        for name, value in values.items():
            self.log(name, value, **options)

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        self.trainer.session.print(*values)

    def optimizers(self) -> Any:
        """Return the optimizer, or a list if ``configure_optimizers`` returned several."""
        optimizers = self.trainer.optimizers
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)

    @property
    def device(self) -> torch.device:
        """The device of the parameters; the CPU without parameters."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def current_epoch(self) -> int:
        """Number of the epoch, from 0."""
        return 0 if self._trainer is None else self._trainer.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer steps so far."""
        return 0 if self._trainer is None else self._trainer.global_step


class DataModule(Configured):
    """Data for the Trainer; define the methods that are needed.

    ``prepare_data`` runs once on each node, before the other methods. ``setup(stage)`` runs on
    every rank, with the same random numbers on all ranks. The other methods return a DataLoader,
    whose batch size is global.
    """

    trainer: Trainer | None = None

    def prepare_data(self) -> None:
        """Download and convert; must not store anything in ``self``."""

    def setup(self, stage: str) -> None:
        """Make datasets; ``stage`` is ``"fit"``, ``"validate"`` or ``"test"``."""
