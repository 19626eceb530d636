"""Data-parallel PyTorch from one process to many nodes.

The public names are loaded on first use (PEP 562), so that ``import paceline`` and ``paceline
--help`` never wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline import data as data
    from paceline.errors import Finding as Finding
    from paceline.errors import PacelineError as PacelineError
    from paceline.launch.run.inline import launch as launch
    from paceline.train.logging import CSVLogger as CSVLogger
    from paceline.train.logging import TensorBoardLogger as TensorBoardLogger
    from paceline.train.model.local_sgd import LocalSGD as LocalSGD
    from paceline.train.model.strategy import DDP as DDP
    from paceline.train.model.strategy import FSDP as FSDP
    from paceline.train.session import Session as Session
    from paceline.train.trainer import DataModule as DataModule
    from paceline.train.trainer import Module as Module
    from paceline.train.trainer import Trainer as Trainer

# launch checks for torch when it is called.
_WITHOUT_TORCH = ("CSVLogger", "Finding", "PacelineError", "launch")

_HOMES = {
    "CSVLogger": "paceline.logging",
    "DDP": "paceline.train.model.strategy",
    "FSDP": "paceline.train.model.strategy",
    "DataModule": "paceline.trainer",
    "Finding": "paceline.errors",
    "LocalSGD": "paceline.train.model.local_sgd",
    "Module": "paceline.trainer",
    "PacelineError": "paceline.errors",
    "Session": "paceline.train.session",
    "TensorBoardLogger": "paceline.logging",
    "Trainer": "paceline.trainer",
    "launch": "paceline.launch.run.inline",
}

__all__ = [
    "DDP",
    "FSDP",
    "CSVLogger",
    "DataModule",
    "Finding",
    "LocalSGD",
    "Module",
    "PacelineError",
    "Session",
    "TensorBoardLogger",
    "Trainer",
    "__version__",
    "data",
    "launch",
]


_MODULES = ("data",)


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
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
