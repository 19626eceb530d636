"""The Trainer: a ready-made training loop, built on Session's public members only."""

from paceline.train.trainer.hooks import Callback as Callback
from paceline.train.trainer.module import DataModule as DataModule
from paceline.train.trainer.module import Module as Module
from paceline.train.trainer.trainer import Trainer as Trainer

__all__ = ["Callback", "DataModule", "Module", "Trainer"]
