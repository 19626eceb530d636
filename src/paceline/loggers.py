"""Loggers with the names and arguments of Lightning's; ``paceline.logging`` has the plain ones."""

from functools import partial

from paceline.signatures.lightning_names import refuse
from paceline.train.trainer.loggers import CSVLogger, Logger, TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "TensorBoardLogger"]

globals()["__getattr__"] = partial(refuse, __name__)  # hidden from type checkers
