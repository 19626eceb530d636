"""Ready-made callbacks of the Trainer: the public names of ``paceline.train.trainer.callbacks``."""

from functools import partial

from paceline.signatures.lightning_names import refuse
from paceline.train.trainer.callbacks import (
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)

__all__ = [
    "Callback",
    "EMAWeightAveraging",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "RichProgressBar",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "Timer",
    "WeightAveraging",
]

globals()["__getattr__"] = partial(refuse, __name__)  # hidden from type checkers
