"""The Trainer: a ready-made training loop, built on Session's public members only."""

from paceline.train.trainer import callbacks as callbacks
from paceline.train.trainer import loggers as loggers
from paceline.train.trainer.callback import Callback as Callback
from paceline.train.trainer.combining import CombinedLoader as CombinedLoader
from paceline.train.trainer.module import DataModule as DataModule
from paceline.train.trainer.module import Module as Module
from paceline.train.trainer.seeding import seed_everything as seed_everything
from paceline.train.trainer.trainer import Trainer as Trainer

__all__ = [
    "Callback",
    "CombinedLoader",
    "DataModule",
    "Module",
    "Trainer",
    "callbacks",
    "loggers",
    "seed_everything",
]
