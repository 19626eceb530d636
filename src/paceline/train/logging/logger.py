"""The interface of a logger, and what loggers share."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Protocol

from paceline.errors import SetupError


class Logger(Protocol):
    """Interface of a logger: any object with these two methods.

    It may also have ``log_image(name, image, step)`` with an array of bytes, shape ``[height,
    width, channels]``; ``log_text(name, text, step)``; ``log_hyperparameters(values)``; and
    ``bind(run_dir)``, which is called before all others.
    """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name."""

    def close(self) -> None:
        """Write all pending data; nothing is logged afterwards."""


def require(package: str, logger: str) -> None:
    """Check that the package of a logger is installed; it is imported at the first number."""
    if importlib.util.find_spec(package) is None:
        raise SetupError.of(
            "module-not-found",
            f"{logger} needs {package}, which is not installed",
            where=f"{logger}(...)",
            fix=f'pip install "paceline[{package}]"',
        )
