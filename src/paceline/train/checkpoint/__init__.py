"""Write checkpoints by all ranks together, commit them last, and read them at any world size.

Names are loaded on first use (PEP 562), because listing and verifying checkpoints needs no torch
and must not wait for its import.

checkpoints      save, find and load in one run folder: what sessions call
folder           the folders: begun, committed, listed, verified and deleted
write            a save: draft, plan, files, commit
staging          the copy that is written while training continues
read             a load: description, files, values
unpickling       plain data without code that a file names
division         which rank writes, reads and checks what
exchange         values and failures between ranks
portable         state as entries that any number of ranks can load
optimizer_state  the state of an optimizer under the names of its parameters
foreign          weights of files that others wrote
model_export     a checkpoint without a Session, and its model as one file
description      checkpoints as a table and as JSON
findings         what is wrong with a checkpoint, in words
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.train.checkpoint.checkpoints import Checkpoints as Checkpoints
    from paceline.train.checkpoint.description import describe as describe
    from paceline.train.checkpoint.description import render as render
    from paceline.train.checkpoint.folder import list_of as list_of
    from paceline.train.checkpoint.folder import remove as remove
    from paceline.train.checkpoint.folder import resolve as resolve
    from paceline.train.checkpoint.folder import unneeded as unneeded
    from paceline.train.checkpoint.folder import verify as verify
    from paceline.train.checkpoint.foreign import read_saved as read_saved
    from paceline.train.checkpoint.model_export import export as export
    from paceline.train.checkpoint.model_export import load_entries as load_entries

_HOMES = {
    "Checkpoints": "checkpoints",
    "describe": "description",
    "export": "model_export",
    "list_of": "folder",
    "load_entries": "model_export",
    "read_saved": "foreign",
    "remove": "folder",
    "render": "description",
    "resolve": "folder",
    "unneeded": "folder",
    "verify": "folder",
}

_WITH_TORCH = ("Checkpoints", "export", "load_entries", "read_saved")

__all__ = [
    "Checkpoints",
    "describe",
    "export",
    "list_of",
    "load_entries",
    "read_saved",
    "remove",
    "render",
    "resolve",
    "unneeded",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline.train.checkpoint' has no attribute {name!r}")
    from importlib import import_module

    if name in _WITH_TORCH:
        from paceline.machine import torch_requirements

        torch_requirements.require()
    value = getattr(import_module(f"paceline.train.checkpoint.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
