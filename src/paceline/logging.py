"""Loggers, where the numbers go that a script logs: the public names of
``paceline.train.logging``.
"""

from paceline.train.logging import (
    CSVLogger,
    Logger,
    MLflowLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
)

__all__ = [
    "CSVLogger",
    "Logger",
    "MLflowLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
]
