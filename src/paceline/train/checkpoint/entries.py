"""Read the model and the registered objects of a checkpoint, without a Session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from paceline.train.checkpoint import folder, manifest, portable, read
from paceline.train.checkpoint.manifest import MODEL

_SESSION = "session"  # the entry with the state that is the same on all ranks


class Entries(NamedTuple):
    """What a checkpoint holds."""

    # parameters and buffers of the model, under the keys of its ``state_dict``. Those of a second
    # model keep its prefix: ``model.1/weight``.
    tensors: dict[str, Any]
    objects: dict[str, Any]  # all other state that was the same on all ranks, by name


def load_entries(path: Path, *, trust: bool = False) -> Entries:
    """Return the model and the other state of a checkpoint; not a collective.

    The folder of checkpoints or of a run means the latest in it. ``trust``: objects may be of any
    class, see ``unpickling.load``. Raises UsageError if there is no checkpoint, or it needs classes
    that are not plain data; RunError if it is damaged.
    """
    values = _read(path, lambda name: _is_of_session(name) or manifest.is_of_model(name), trust)
    state = portable.lower(values.get(_SESSION, {}), values)
    return Entries(_of_model(values), dict(state))


def load_model(path: Path, *, trust: bool) -> dict[str, Any]:
    """Return the model alone, with what is not a tensor in it; see ``load_entries``."""
    return _of_model(_read(path, manifest.is_of_model, trust))


def _read(path: Path, is_wanted: Callable[[str], bool], trust: bool) -> dict[str, Any]:
    """Return the entries with certain names, after a check of all files."""
    saved = read.describe(folder.resolve(path))
    read.check_files(saved, rank=0, world_size=1, where="")
    names = [*saved.tensors, *sorted(saved.objects)]
    return read.read(saved, {}, list(filter(is_wanted, names)), trust=trust)


def _is_of_session(name: str) -> bool:
    return name.split("/", maxsplit=1)[0] == _SESSION


def _of_model(values: dict[str, Any]) -> dict[str, Any]:
    of_model = filter(manifest.is_of_model, values)
    return {name.removeprefix(MODEL): values[name] for name in of_model}
