"""Data-parallel PyTorch from one process to many nodes.

The public names are loaded on first use (PEP 562), so that ``import paceline`` and ``paceline
--help`` never wait for torch.

PYTEST_DONT_REWRITE: where ``paceline run -m pytest`` starts pytest, the rank has imported this
package, and pytest would warn that it cannot rewrite its assertions.

    callbacks   ready-made callbacks of the Trainer: the public names of
                ``paceline.train.trainer.callbacks``
    cli         the command line of paceline: arguments, help, error messages, and calls of the
                packages that do the work
    codes       the names and codes of all findings, shared by every package that reports findings
    counters    the counters of a rank: a few integers in memory that its launcher shares, written
                at every step
    data        data in memory, loaded in whole batches: the public names of
                ``paceline.train.data``
    deadlines   all times that paceline waits before it reports something or ends something
    diagnose    explain what went wrong without running the user's program
    env         every environment variable that paceline reads or sets: name, meaning, default
    errors      the shape of bad news: the Finding, and the exceptions that carry one
    launch      the launcher behind ``paceline run``: start the ranks on torch's elastic engine and
                watch them
    loggers     loggers with the names and arguments of Lightning's; ``paceline.logging`` has the
                plain ones
    logging     loggers, where the numbers go that a script logs: the public names of
                ``paceline.train.logging``
    machine     facts about this computer: CPUs, GPUs, addresses, software versions, and Slurm's
                answers
    measure     measure a training run, explain where its time goes, and forecast it on more ranks
    plugins     says what to write instead of a name of Lightning's ``plugins``
    profilers   says what to write instead of a name of Lightning's ``profilers``
    rundir      the run folder: its files, which training it belongs to, and who is using it
    signatures  the error texts of libraries, and the fault that each of them means
    slurm       Slurm jobs: submit a script, follow its output, list runs, and requeue
    strategies  says what to write instead of a name of Lightning's ``strategies``
    testing     the pytest plugin: run tests on several gloo ranks of this machine, without GPUs
    text        format text, and parse scripts
    train       the training library: Session and Trainer, and the packages that they build on
    trainer     the Trainer, and what its users derive from: the public names of
                ``paceline.train.trainer``
    tuner       says what to write instead of a name of Lightning's ``tuner``
    utilities   what scripts take from Lightning's ``utilities`` and is another one here
    version     the version of paceline, and the folder of its modules
    why         explain a hang of a run that another launcher started
    world       what the launcher's variables say: the ranks of a run, tasks of mpirun, pods, hosts
                of a job
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.version import __version__ as __version__

if TYPE_CHECKING:
    from paceline import callbacks as callbacks
    from paceline import data as data
    from paceline import loggers as loggers
    from paceline.errors import Finding as Finding
    from paceline.errors import PacelineError as PacelineError
    from paceline.launch.run.inline import launch as launch
    from paceline.train.logging import CSVLogger as CSVLogger
    from paceline.train.logging import TensorBoardLogger as TensorBoardLogger
    from paceline.train.model.strategy import DDP as DDP
    from paceline.train.model.strategy import FSDP as FSDP
    from paceline.train.preemptible import preemptible as preemptible
    from paceline.train.session import Session as Session
    from paceline.train.trainer import Callback as Callback
    from paceline.train.trainer import DataModule as DataModule
    from paceline.train.trainer import Module as Module
    from paceline.train.trainer import Trainer as Trainer
    from paceline.train.trainer import seed_everything as seed_everything
    from paceline.trainer import LightningDataModule as LightningDataModule
    from paceline.trainer import LightningModule as LightningModule

# launch checks for torch when it is called.
_WITHOUT_TORCH = ("CSVLogger", "Finding", "PacelineError", "launch")

_HOMES = {
    "Callback": "paceline.trainer",
    "CSVLogger": "paceline.logging",
    "DDP": "paceline.train.model.strategy",
    "FSDP": "paceline.train.model.strategy",
    "DataModule": "paceline.trainer",
    "Finding": "paceline.errors",
    "LightningDataModule": "paceline.trainer",
    "LightningModule": "paceline.trainer",
    "Module": "paceline.trainer",
    "PacelineError": "paceline.errors",
    "Session": "paceline.train.session",
    "TensorBoardLogger": "paceline.logging",
    "Trainer": "paceline.trainer",
    "launch": "paceline.launch.run.inline",
    "preemptible": "paceline.train.preemptible",
    "seed_everything": "paceline.trainer",
}

__all__ = [
    "DDP",
    "FSDP",
    "CSVLogger",
    "Callback",
    "DataModule",
    "Finding",
    "LightningDataModule",
    "LightningModule",
    "Module",
    "PacelineError",
    "Session",
    "TensorBoardLogger",
    "Trainer",
    "__version__",
    "callbacks",
    "data",
    "launch",
    "loggers",
    "preemptible",
    "seed_everything",
]

_MODULES = ("callbacks", "data", "loggers", "utilities")


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        from paceline.signatures.lightning_names import refuse

        refuse(__name__, name)
    from importlib import import_module

    if name not in _WITHOUT_TORCH:
        from paceline.machine import torch_requirements

        torch_requirements.require()
    if name in _MODULES:
        return import_module(f"paceline.{name}")  # which makes it an attribute of the package
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
