"""The Trainer, and what its users derive from: the public names of ``paceline.train.trainer``."""

from paceline.train.trainer import Callback, DataModule, Module, Trainer

__all__ = ["Callback", "DataModule", "Module", "Trainer"]
