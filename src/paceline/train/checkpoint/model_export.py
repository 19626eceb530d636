"""Read the model and the registered objects of a checkpoint without a Session, or export the model
as one file that can be read without paceline.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from paceline.errors import SetupError, UsageError, option_contradicted
from paceline.rundir import manifest, owned
from paceline.rundir.manifest import MODEL
from paceline.train.checkpoint import folder, portable, read

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


SAFETENSORS = ".safetensors"


def export(path: Path, outfile: Path) -> list[str]:
    """Write the model of a checkpoint to one file, by the keys of its ``state_dict``; return them.

    The suffix ``.safetensors`` selects that format, any other ``torch.save``. Raises UsageError if
    there is no checkpoint or no model in it, or safetensors cannot hold the model; RunError if the
    checkpoint is damaged; SetupError if safetensors is not installed, or the file cannot be
    written.
    """
    values = read_model(folder.resolve(path))
    try:
        with owned.whole(outfile) as file:
            if outfile.suffix == SAFETENSORS:
                _save_safetensors(values, Path(file.name))
            else:
                torch.save(values, file)
    except OSError as error:
        raise _not_written(outfile, error) from error
    return list(values)


def read_model(path: Path, *, trust: bool = True) -> dict[str, Any]:
    """Return the model of a checkpoint, by the keys of its ``state_dict``.

    ``trust``: its extra state may be of any class, see ``unpickling.load``. Raises UsageError if
    there is no model in it, or it needs classes that are not plain data; RunError if it is damaged.
    """
    model = load_model(path, trust=trust)
    if model:
        return model
    what = "there is no model in this checkpoint"
    raise UsageError.of("checkpoint-missing", what, where=str(path), fix="paceline checkpoint list")


def _save_safetensors(values: dict[str, Any], path: Path) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        what = "safetensors is not installed"
        fix = "pip install 'paceline[safetensors]', or export to a .pt file"
        raise SetupError.of("module-not-found", what, evidence=(str(error),), fix=fix) from error
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if others := sorted(set(values) - set(tensors)):
        what = f"safetensors holds tensors only, and the model has other state: {', '.join(others)}"
        raise option_contradicted(what, where="OUTFILE", fix="export to a .pt file")
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _not_written(outfile: Path, error: OSError) -> SetupError:
    what = f"{outfile} cannot be written"
    fix = "paceline checkpoint export PATH OUTFILE, with a file that this user may write"
    return SetupError.of(
        "folder-not-writable", what, where=str(outfile), evidence=(str(error),), fix=fix
    )
