"""The Trainer, and what its users derive from: the public names of ``paceline.train.trainer``.

``LightningModule`` and ``LightningDataModule`` are other names of ``Module`` and ``DataModule``.
"""

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
