"""Loggers with the names and arguments of Lightning's; ``paceline.logging`` has the plain ones."""

from paceline.train.trainer.loggers import CSVLogger, Logger, TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "TensorBoardLogger"]
