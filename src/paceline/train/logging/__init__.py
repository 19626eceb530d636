"""Loggers: write what a script logs. Session calls them on rank 0 only.

They open their files at the first number, so that they can be made on every rank. When ``log``
returns, the numbers have been passed to the operating system, or to the tracker's library.

    csv_file     a table of the numbers that a script logs: ``metrics.csv``
    logger       the interface of a logger, and what loggers share
    loggers      the loggers of a session: make them from names, and pass on numbers, images and
                 texts
    tensorboard  TensorBoard's event files, by torch's own writer
    trackers     experiment trackers: Weights & Biases, MLflow and Trackio
"""

from paceline.train.logging.csv_file import CSVLogger
from paceline.train.logging.logger import Logger
from paceline.train.logging.loggers import Loggers, of_name
from paceline.train.logging.tensorboard import TensorBoardLogger
from paceline.train.logging.trackers import MLflowLogger, TrackioLogger, WandbLogger

__all__ = [
    "CSVLogger",
    "Logger",
    "Loggers",
    "MLflowLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
    "of_name",
]
