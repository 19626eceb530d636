"""Ready-made callbacks, with the names and arguments of Lightning's.

accumulation      accumulate another number of batches in a step from given epochs on
averaging         train with averages of the weights: over steps, exponentially, or over the
                  last epochs
display           callbacks that choose what is shown: the progress bar and a summary of the
                  model
early_stopping    stop a training run when a metric no longer improves, diverges, or is good
                  enough
functions         a callback made of functions
model_checkpoint  save checkpoints under names with metrics, and keep the best of them
rates             log the learning rates of a training run
timer             end a training run after some time, and measure how long it took
"""

from paceline.train.trainer.callback import Callback as Callback
from paceline.train.trainer.callbacks.accumulation import (
    GradientAccumulationScheduler as GradientAccumulationScheduler,
)
from paceline.train.trainer.callbacks.averaging import EMAWeightAveraging as EMAWeightAveraging
from paceline.train.trainer.callbacks.averaging import (
    StochasticWeightAveraging as StochasticWeightAveraging,
)
from paceline.train.trainer.callbacks.averaging import WeightAveraging as WeightAveraging
from paceline.train.trainer.callbacks.display import ModelSummary as ModelSummary
from paceline.train.trainer.callbacks.display import RichProgressBar as RichProgressBar
from paceline.train.trainer.callbacks.display import TQDMProgressBar as TQDMProgressBar
from paceline.train.trainer.callbacks.early_stopping import EarlyStopping as EarlyStopping
from paceline.train.trainer.callbacks.functions import LambdaCallback as LambdaCallback
from paceline.train.trainer.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
from paceline.train.trainer.callbacks.rates import LearningRateMonitor as LearningRateMonitor
from paceline.train.trainer.callbacks.timer import Timer as Timer
