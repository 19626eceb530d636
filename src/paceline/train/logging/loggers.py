"""The loggers of a session: make them from names, and pass on numbers, images and texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from paceline.errors import closest, option_invalid
from paceline.rundir.files import RunDir
from paceline.train.logging.csv_file import CSVLogger
from paceline.train.logging.logger import Logger
from paceline.train.logging.tensorboard import TensorBoardLogger
from paceline.train.logging.trackers import MLflowLogger, TrackioLogger, WandbLogger

_CHANNELS = (1, 3, 4)
_IMAGE = 3  # dimensions of an image
_MAKERS: dict[str, Callable[[RunDir], Logger]] = {
    "csv": lambda run_dir: CSVLogger(run_dir.metrics),
    "tensorboard": lambda run_dir: TensorBoardLogger(run_dir.tensorboard),
    "wandb": lambda _: WandbLogger(),
    "mlflow": lambda _: MLflowLogger(),
    "trackio": lambda _: TrackioLogger(),
}
NAMES = tuple(_MAKERS)


class LoggerKind(Enum):
    """What a value that is logged is."""

    NUMBER = "number"
    TEXT = "text"
    IMAGE = "image"


def of_name(logger: Logger | str, run_dir: RunDir) -> Logger:
    """Return the logger of a name, in a run folder, or a given logger, bound to the folder.

    Raises UsageError if the name is unknown; SetupError if the logger's package is not installed.
    """
    if isinstance(logger, str) and logger not in NAMES:
        near = closest(logger, NAMES) or "csv"
        what = f"{logger!r} is not one of {', '.join(NAMES)}"
        raise option_invalid(what, where="Session(loggers=...)", fix=f'loggers=["{near}"]')
    target = _MAKERS[logger](run_dir) if isinstance(logger, str) else logger
    bind = getattr(target, "bind", None)
    if callable(bind):
        bind(run_dir)
    return target


class Printer(Protocol):
    """What prints for a session."""

    is_main: bool

    def say_once(self, text: str) -> None:
        """Print a line, unless it was printed before."""


class Loggers:
    """The loggers of a session; they write on rank 0 only."""

    def __init__(
        self,
        loggers: Sequence[Logger | str] | None,  # names and objects; None for none
        run_dir: RunDir,
        printer: Printer,  # knows whether this is rank 0, and prints there
    ) -> None:
        if isinstance(loggers, str):
            loggers = (loggers,)
        targets = [of_name(logger, run_dir) for logger in loggers or ()]
        self._loggers = targets if printer.is_main else []
        self._printer = printer

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Pass values on by their kind: numbers together, images and texts one by one.

        Values are checked on every rank, so that a mistake (UsageError) ends all of them.
        """
        _require_dict(values, "log")
        kinds = {name: _kind(name, value) for name, value in values.items()}
        if not self._loggers:
            return
        numbers: dict[str, float] = {}
        for name, value in values.items():
            if kinds[name] is LoggerKind.TEXT:
                self._pass_on("log_text", name, value, step)
            elif kinds[name] is LoggerKind.IMAGE:
                self._pass_on("log_image", name, _as_array(value), step)
            else:
                numbers[name] = _number(value)
        if numbers:
            for logger in self._loggers:
                logger.log(numbers, step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Pass the arguments of the run on; raise UsageError if the values are not in a dict."""
        _require_dict(values, "log_hyperparameters")
        self._pass_on("log_hyperparameters", dict(values))

    def close(self) -> None:
        """Write all pending data."""
        for logger in self._loggers:
            logger.close()

    def _pass_on(self, method: str, *arguments: Any) -> None:
        takers = [logger for logger in self._loggers if hasattr(logger, method)]
        for logger in takers:
            getattr(logger, method)(*arguments)
        if not takers and self._loggers:
            kinds = {"log_text": "texts", "log_image": "images"}.get(method, "hyperparameters")
            self._printer.say_once(
                f'no logger takes {kinds}: Session(loggers=["csv", "tensorboard"]) does'
            )


def _require_dict(values: Any, method: str) -> None:
    if isinstance(values, Mapping):
        return
    what = f"{method} takes a dict of values by name, and got {type(values).__name__}"
    where, fix = f"session.{method}(...)", f'session.{method}({{"name": value}})'
    if hasattr(values, "__dict__") and not callable(values):
        fix = f"session.{method}(vars(options))"  # such as argparse's
    raise option_invalid(what, where=where, fix=fix)


def _is_image(value: Any) -> bool:
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # of Pillow
        return True
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) != _IMAGE or shape == (1, 1, 1):  # one element is a number
        return False
    return shape[0] in _CHANNELS or shape[2] in _CHANNELS


def _as_array(image: Any) -> Any:
    """Return an image as an array of bytes, shape ``[height, width, channels]``.

    The image is Pillow's; or an array or tensor of shape ``[channels, height, width]`` or
    ``[height, width, channels]``: bytes, or floats from 0 to 1.
    """
    import numpy as np
    import torch

    if hasattr(image, "getbands"):
        image = np.array(image.convert("RGB"))
    pixels = torch.as_tensor(image).detach().cpu()
    could_be_first, could_be_last = (pixels.shape[place] in _CHANNELS for place in (0, 2))
    if could_be_first and could_be_last:
        could_be_last = not isinstance(image, torch.Tensor)  # torch's order for a tensor
    if not could_be_last:
        pixels = pixels.permute(1, 2, 0)
    if pixels.is_floating_point():
        pixels = (pixels.clamp(0, 1) * 255).round()
    return pixels.to(torch.uint8).contiguous().numpy()


def _kind(name: str, value: Any) -> LoggerKind:
    """Return what a value is, without a look at its memory.

    Raises UsageError if it is neither a number, a text nor an image.
    """
    if isinstance(value, str):
        return LoggerKind.TEXT
    if _is_image(value):
        return LoggerKind.IMAGE
    shape = getattr(value, "shape", ())
    has_one = math.prod(shape) == 1
    if has_one and (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return LoggerKind.NUMBER
    kind = f"of type {type(value).__name__}" if has_one else f"of shape {list(shape)}"
    fix = f'session.log({{"{name}": value.mean()}}), or an image of 1, 3 or 4 channels'
    if has_one:
        fix = f'session.log({{"{name}": str(value)}}), or a number'
    what = f"{name} is {kind}: neither a number, nor a text, nor an image"
    raise option_invalid(what, where="session.log({...})", fix=fix)


def _number(value: Any) -> float:
    """Return a number, or the element of an array or tensor with one element."""
    return float(value.item() if hasattr(value, "item") else value)
