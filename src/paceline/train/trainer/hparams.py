"""Collect the arguments that a task or a data object was made with."""

from __future__ import annotations

import copy
import inspect
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

from paceline.errors import option_invalid


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

    @property
    def hparams_initial(self) -> HParams:
        """The arguments as they were when ``save_hyperparameters`` collected them."""
        return HParams(self.__dict__.get("_hparams_initial", {}))

    @property
    def logs_hparams(self) -> bool:
        """Whether loggers get the arguments when a ``fit`` begins."""
        return bool(self.__dict__.get("_logs_hparams", False))

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
            logger: Whether loggers get them, too.

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
        self.__dict__["_hparams_initial"] = copy.deepcopy(dict(self.hparams))
        self.__dict__["_logs_hparams"] = logger


def _check_names(names: Sequence[str], arguments: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in arguments]
    if unknown:
        raise option_invalid(
            f"{', '.join(unknown)}: no argument of __init__; there are"
            f" {', '.join(arguments) or 'none'}",
            where="save_hyperparameters(...)",
            fix="self.save_hyperparameters() takes all of them",
        )


def _mapping(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Namespace | SimpleNamespace):
        return vars(config)
    if isinstance(config, Mapping):
        return config
    raise option_invalid(
        f"an object of type {type(config).__name__} is not the name of an argument, a mapping"
        " or a namespace",
        where="save_hyperparameters(...)",
        fix="self.save_hyperparameters(vars(config))",
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
