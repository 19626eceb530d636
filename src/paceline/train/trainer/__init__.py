"""The Trainer: a ready-made training loop, built on Session's public members only.

arguments    read the Trainer's arguments: Lightning's spellings, and arguments that stand for
             others
attributes   the Trainer's attributes: what scripts and callbacks read, under Lightning's names
callback     the hooks of a training run: the base class of callbacks, and the names of all
             hooks
callbacks    ready-made callbacks, with the names and arguments of Lightning's
checks       refuse tasks, data objects and callbacks that rely on methods that the Trainer
             never calls
combining    combine the batches of several training loaders, in one of the modes of a
             CombinedLoader
data         find a task's loaders in a data object, in DataLoaders, or in methods of the task
             itself
ends         combine numbers logged after the last batch: one on each rank, for all rows of the
             rank
evaluating   run a task over loaders without training it: validation and test
fit_loaders  the loaders of a fit, which are made again every few epochs if the script wants
             that
fitting      run the training loop: epochs of batches, with validations; Session handles all
             communication
gathering    gather values of any kind from all ranks, in the order of ranks
hooks        call the hooks of a task and of callbacks
hparams      collect the arguments that a task or a data object was made with
loading      make a module from a checkpoint: a folder of paceline, or a file of Lightning's
             form
loggers      loggers as scripts for Lightning know them, on top of those of
             ``paceline.logging``
meters       locate metric objects that compute their value over all ranks, on a rank that
             never logged them
metrics      accumulate logged numbers by name, and compute exact means over all rows of an
             epoch and ranks
module       optional base classes of a task and its data: ``Module`` and ``DataModule``
optimizers   read all forms that ``configure_optimizers`` may return, and step schedulers when
             due
optimizing   turn the result of ``training_step`` into steps of the optimizers, or let the task
             do so
options      validate the Trainer's arguments: read Lightning's spellings, refuse what is not
             supported
predicting   run a task's ``predict_step`` over loaders, and put the predictions of all ranks
             together
profiling    show where the time of a ``fit`` goes: ``Trainer(profiler="simple")`` or
             ``"pytorch"``
progress     show a run's progress on rank 0: a bar on a terminal during training, and a line
             for each epoch
recorder     record logged numbers, and assign them to their batch and to their epoch or
             evaluation
resuming     choose the checkpoint that a fit or an evaluation begins with, and restore it
running      run ``fit`` and the evaluations: connect task, data, Session, callbacks and
             checkpoints
saving       save the checkpoints of a fit: in the run folder, and where the script asks for
             them
seeding      seed the global generators, as ``lightning.seed_everything`` does
start        restart ``python train.py`` under ``paceline run`` for ``Trainer(devices=2)``
state        what the Trainer is doing, under Lightning's names
task_hooks   the hooks of a module with nothing in them, so that overriding methods may call
             ``super()``
trainer      the public Trainer class: its arguments and methods; ``running`` and ``fitting``
             do the work
transfer     pass a batch through the hooks that a script has around its way to the device
work         set up a task: wrap the module that ranks share, and call its methods through the
             wrapper
"""

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
