"""Loggers as scripts for Lightning know them, on top of those of ``paceline.logging``."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.rundir.files import write_whole
from paceline.train import logging
from paceline.train.session import Session
from paceline.train.trainer.options import invalid

HPARAMS = "hparams.yaml"


class Silent:
    """An object whose methods do nothing: the experiment of ranks other than 0."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self


class Logger:
    """Base class of loggers; deriving from it is not needed.

    A Trainer takes any object with ``log_metrics(metrics, step)``, such as a logger of Lightning,
    or with ``log(values, step)`` and ``close()``, as in ``paceline.logging``. Both are called on
    rank 0 only.
    """

    name: str | None = None
    version: int | str | None = None
    save_dir: str | None = None

    @property
    def log_dir(self) -> str | None:
        """Folder of the files; None without files."""
        return None

    @property
    def experiment(self) -> Any:
        """The object of the library behind this logger."""
        return Silent()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers by name."""

    def log_hyperparams(self, params: Any, *args: Any, **options: Any) -> None:
        """Record hyperparameters."""

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Record the graph of a model; does nothing unless overridden."""

    def save(self) -> None:
        """Write pending data."""

    def finalize(self, status: str) -> None:
        """Write all pending data at the end; ``status`` is "success"."""


class FileLogger(Logger):
    """A logger with files in a folder of its own.

    Args:
        target: Writes the numbers; None until the run folder is known.
        folder: Folder of the files; None until then.
    """

    def __init__(self, target: Any = None, folder: Path | None = None) -> None:
        self._target, self._folder = target, folder
        self._is_main, self._last_step = True, 0

    def __getattr__(self, name: str) -> Any:
        """Return a method of ``paceline.logging`` that only some loggers have."""
        if name not in ("log_image", "log_text", "log_hyperparameters"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._target, name)

    def join(self, session: Session) -> None:
        """Take part in a training run: decide on the folder, the same on all ranks."""
        self._is_main = session.is_main

    @property
    def log_dir(self) -> str | None:
        """Folder of the files."""
        return None if self._folder is None else str(self._folder)

    @property
    def root_dir(self) -> str | None:
        """Folder of the folders of all versions."""
        return None if self._folder is None else str(self._folder.parent)

    @property
    def experiment(self) -> Any:
        """What writes the numbers: TensorBoard's writer, or this logger; silent on other ranks."""
        if not self._is_main:
            return Silent()
        return getattr(self._target, "experiment", self)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name."""
        self._last_step = step
        if self._is_main and self._target is not None:
            self._target.log(values, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers by name; ``step`` is that of the last numbers if None."""
        numbers = {name: float(value) for name, value in metrics.items()}
        self.log(numbers, self._last_step if step is None else step)

    def log_hyperparams(self, params: Any, *args: Any, **options: Any) -> None:
        """Write hyperparameters to a tracker and ``hparams.yaml``, on rank 0.

        The file is JSON, which is YAML too; what JSON has no type for becomes a text.
        """
        if not self._is_main or self._folder is None:
            return
        values = vars(params) if isinstance(params, Namespace) else dict(params)
        if hasattr(self._target, "log_hyperparameters"):
            self._target.log_hyperparameters(values)
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(values, indent=2, default=str) + "\n"
        write_whole(self._folder / HPARAMS, text)

    def close(self) -> None:
        """Write all pending data."""
        if self._target is not None:
            self._target.close()

    def finalize(self, status: str) -> None:
        """Write all pending data."""
        self.close()


class RunLogger(FileLogger):
    """A logger of ``paceline.logging``, by name in the run folder, or an object of the user's."""

    def __init__(
        self,
        logger: str | logging.Logger,  # name of one, or a logger
    ) -> None:
        super().__init__(None if isinstance(logger, str) else logger)
        self._logger = logger
        self._images: logging.TensorBoardLogger | None = None  # beside a table of numbers
        self._image_folder = Path()
        self.name = logger if isinstance(logger, str) else type(logger).__name__
        self.version = ""

    def join(self, session: Session) -> None:
        """Open the logger in the run folder."""
        super().join(session)
        if self._folder == session.run_dir.root:
            return  # another Session of the same training
        self._folder, self._image_folder = session.run_dir.root, session.run_dir.tensorboard
        self.save_dir = str(self._folder)
        self._target = logging.of_name(self._logger, session.run_dir)

    @property
    def experiment(self) -> Any:
        """The object of the library behind it; an object of the user's; silent on other ranks.

        Beside a table of numbers it is TensorBoard's writer, for images and text. Raises SetupError
        if tensorboard is not installed.
        """
        if not self._is_main:
            return Silent()
        if not isinstance(self._logger, str):
            return self._logger
        if self._logger != "csv":
            return self._target.experiment
        if self._images is None:
            self._images = logging.TensorBoardLogger(self._image_folder)
        return self._images.experiment

    def close(self) -> None:
        """Write all pending data."""
        super().close()
        if self._images is not None:
            self._images.close()


class VersionedLogger(FileLogger):
    """A logger with a new folder for each run: ``save_dir/name/version_0``.

    Args:
        save_dir: Folder of all experiments.
        name: Name of the experiment.
        version: Number or name of the folder; the next free number if None.
        prefix: Put before each name, with a ``-`` in between.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.save_dir, self.name, self._version = os.fspath(save_dir), name or "", version
        self._prefix = prefix

    @property
    def version(self) -> int | str:  # type: ignore[override]
        """Number or name of the folder."""
        if self._version is None:
            self._version = _next_version(Path(self.root_dir))
        return self._version

    @property
    def root_dir(self) -> str:
        """Folder of the folders of all versions."""
        return os.path.join(self.save_dir or "", self.name or "")

    @property
    def log_dir(self) -> str:
        """Folder of this version."""
        version = self.version
        folder = version if isinstance(version, str) else f"version_{version}"
        return os.path.join(self.root_dir, folder)

    def join(self, session: Session) -> None:
        """Take the version that rank 0 chooses."""
        super().join(session)
        # Each rank would look for the next free number, and find that of a faster one taken.
        self._version = session.once(lambda: self.version)
        if self._target is None:
            self._folder = Path(self.log_dir)
            self._target = self._open(self._folder)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name, under the prefix."""
        if self._prefix:
            values = {f"{self._prefix}-{name}": value for name, value in values.items()}
        super().log(values, step)

    def _open(self, folder: Path) -> Any:
        """Return what writes the numbers."""
        raise NotImplementedError


class CSVLogger(VersionedLogger):
    """A table ``metrics.csv``, in ``save_dir/name/version_0``.

    Args:
        save_dir: Folder of all experiments.
        name: Name of the experiment.
        version: Number or name of the folder; the next free number if None.
        prefix: Put before each name, with a ``-`` in between.
        flush_logs_every_n_steps: Accepted; each row is written at once.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(save_dir, name, version, prefix)

    def _open(self, folder: Path) -> Any:
        return logging.CSVLogger(folder / "metrics.csv")


class TensorBoardLogger(VersionedLogger):
    """TensorBoard's event files, in ``save_dir/name/version_0``.

    Args:
        save_dir: Folder of all experiments.
        name: Name of the experiment.
        version: Number or name of the folder; the next free number if None.
        log_graph: Must be False.
        default_hp_metric: Accepted; hyperparameters are in ``hparams.yaml``.
        prefix: Put before each name, with a ``-`` in between.
        sub_dir: Folder inside the version's folder; None for none.

    Raises:
        SetupError: tensorboard is not installed.
        UsageError: ``log_graph`` is True.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | None = None,
    ) -> None:
        if log_graph:
            raise invalid(
                "log_graph",
                True,
                "possible here: a task has no forward of its own to trace",
                where="TensorBoardLogger",
                fix="self.logger.experiment.add_graph(net, example)",
            )
        super().__init__(save_dir, name, version, prefix)
        self._sub_dir = sub_dir or ""
        logging.TensorBoardLogger(save_dir)  # refuses at once if tensorboard is not installed

    @property
    def log_dir(self) -> str:
        """Folder of this version, with the ``sub_dir``."""
        return os.path.join(super().log_dir, self._sub_dir).rstrip(os.sep)

    def _open(self, folder: Path) -> Any:
        return logging.TensorBoardLogger(folder)


class Adapted:
    """Passes the numbers of a Session to a logger, the user's or Lightning's."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name."""
        self.logger.log_metrics(dict(values), step)

    def close(self) -> None:
        """Write all pending data."""
        finalize = getattr(self.logger, "finalize", None)
        if callable(finalize):
            finalize("success")


def read(logger: Any) -> list[Any]:
    """Return the loggers of a Trainer's argument, in the form that scripts see."""
    if isinstance(logger, bool):
        return [RunLogger("csv")] if logger else []
    loggers = list(logger) if isinstance(logger, list | tuple) else [logger]
    return [_read_one(target) for target in loggers]


def _read_one(logger: Any) -> Any:
    if isinstance(logger, FileLogger) or callable(getattr(logger, "log_metrics", None)):
        return logger
    can_log = all(callable(getattr(logger, method, None)) for method in ("log", "close"))
    if isinstance(logger, str) or can_log:
        return RunLogger(logger)
    raise invalid(
        "logger",
        type(logger).__name__,
        "a name, or an object with log(values, step) and close(), or with log_metrics",
        fix='Trainer(logger="tensorboard")',
    )


def for_session(loggers: list[Any]) -> list[Any]:
    """Return the loggers in the form that a Session takes."""
    return [logger if isinstance(logger, FileLogger) else Adapted(logger) for logger in loggers]


def join(loggers: list[Any], session: Session) -> None:
    """Open the loggers for a training run."""
    for logger in loggers:
        if isinstance(logger, FileLogger):
            logger.join(session)


def _next_version(root: Path) -> int:
    """Return the next free number of a version in a folder."""
    names = [path.name for path in root.glob("version_*")] if root.is_dir() else []
    numbers = [int(name[len("version_") :]) for name in names if name[8:].isdecimal()]
    return max(numbers, default=-1) + 1
