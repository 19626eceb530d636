"""The Trainer, and what its users derive from: the public names of ``paceline.train.trainer``.

``LightningModule`` and ``LightningDataModule`` are other names of ``Module`` and ``DataModule``.
"""

from functools import partial

from paceline.signatures.lightning_names import refuse
from paceline.train.trainer import (
    Callback,
    CombinedLoader,
    DataModule,
    Module,
    Trainer,
    callbacks,
    loggers,
    seed_everything,
)

LightningModule, LightningDataModule = Module, DataModule

__all__ = [
    "Callback",
    "CombinedLoader",
    "DataModule",
    "LightningDataModule",
    "LightningModule",
    "Module",
    "Trainer",
    "callbacks",
    "loggers",
    "seed_everything",
]

globals()["__getattr__"] = partial(refuse, __name__)  # hidden from type checkers
