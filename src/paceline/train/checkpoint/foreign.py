"""Read the weights of a model from files that others wrote: torch, Lightning, Hugging Face.

FILE.safetensors                 tensors by key
FILE.pt, .pth, .bin, .ckpt, ...  what torch.save wrote: a state_dict, or a dict with one in it
FOLDER                           of save_pretrained, also in several files; a checkpoint or a
                                 run of paceline
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.errors import RunError, SetupError, UsageError
from paceline.train.checkpoint import findings, folder, model_export, unpickling

SAFETENSORS = ".safetensors"
_IN_FOLDER = ("model.safetensors", "pytorch_model.bin", "diffusion_pytorch_model.safetensors")
# Where a dict of torch.save has the weights, by how common it is: Lightning; scripts of many kinds.
_INSIDE = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "weights")


@dataclass(frozen=True)
class Weights:
    """The tensors of a model in a file."""

    tensors: dict[str, torch.Tensor]  # the tensors, by key
    # which of several entries of the file they are, for a message; empty if there is one
    choice: str = ""


def read_weights(path: Path, *, trust: bool) -> Weights:
    """Return the tensors of a model in a file or folder, on the CPU.

    ``trust`` is as for ``unpickling.load``. Raises UsageError if the path does not exist, holds no
    tensors, or needs other classes; RunError if the file cannot be read; SetupError if safetensors
    is not installed.
    """
    if not path.exists():
        what = "this file or folder does not exist"
        raise findings.missing(path, what, fix=f"ls {path.parent}")
    if path.is_dir():
        return _read_folder(path, trust=trust)
    if path.suffix == SAFETENSORS:
        return Weights(_read_safetensors(path))
    return weights_in(read_saved(path, trust=trust), str(path))


def weights_in(content: Any, where: str) -> Weights:
    """Return the tensors in a loaded object: a state_dict, a dict that holds one, a module. Pure.

    Raises UsageError if there is none, or there are several under unusual names.
    """
    if isinstance(content, torch.nn.Module):
        return Weights(_tensors(content.state_dict()))
    if not isinstance(content, Mapping):
        raise _no_weights(where, f"a {type(content).__name__} is in it")
    inner = {name: part for name, part in content.items() if _is_state(part)}
    for name in _INSIDE:
        if name in inner:
            return Weights(_tensors(inner[name]), _describe_choice(inner, name))
    if _is_state(content):
        return Weights(_tensors(content))
    if len(inner) == 1:
        return Weights(_tensors(next(iter(inner.values()))))
    names = ", ".join(map(str, list(inner or content)[:8]))
    raise _no_weights(where, f"its entries: {names}" if names else "it is empty")


def _describe_choice(inner: Mapping[Any, Any], name: str) -> str:
    """Return which entry was taken, if others hold weights of the same keys, such as averages."""
    keys = set(_tensors(inner[name]))
    others = [repr(other) for other in inner if other != name and set(inner[other]) >= keys]
    return f"its entry {name!r}, not {', '.join(others)}" if others else ""


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(_tensors(value))


def _tensors(state: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, torch.Tensor)
    }


def _read_folder(path: Path, *, trust: bool) -> Weights:
    for name in _IN_FOLDER:
        if (path / f"{name}.index.json").is_file():
            return _read_parts(path, path / f"{name}.index.json", trust=trust)
        if (path / name).is_file():
            return read_weights(path / name, trust=trust)
    return weights_in(model_export.read_model(folder.resolve(path), trust=trust), str(path))


def _read_parts(path: Path, index: Path, *, trust: bool) -> Weights:
    """Return the tensors of a model that ``save_pretrained`` wrote in several files."""
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_weights(str(index), f"{type(error).__name__}: {error}") from error
    parts = [read_weights(path / Path(name).name, trust=trust) for name in files]
    return Weights({key: value for part in parts for key, value in part.tensors.items()})


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        what, fix = "safetensors is not installed", "pip install 'paceline[safetensors]'"
        raise SetupError.of("module-not-found", what, evidence=(str(error),), fix=fix) from error
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, str(error)) from error
    return tensors


def read_saved(path: Path, *, trust: bool, map_location: Any = "cpu") -> Any:
    """Return the object in a file of ``torch.save``; ``trust`` as for ``unpickling.load``.

    Raises UsageError if it needs classes that are not plain data, RunError if the file is damaged,
    or is not such a file.
    """
    with path.open("rb") as file:
        try:
            return unpickling.load(file, trust=trust, where=str(path), map_location=map_location)
        except UsageError:
            raise
        except Exception as error:  # torch raises many types for what is not a file of torch.save
            raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def _unreadable(path: Path, reason: str) -> RunError:
    first_sentence = reason.partition(". ")[0].splitlines()[0]
    return RunError.of(
        "checkpoint-damaged",
        "this file cannot be read: it is cut off or damaged, or holds no weights",
        where=str(path),
        evidence=(first_sentence,),
        why="nothing was loaded: the model is as it was",
        fix=f"ls -l {path}, and copy it again from where it came",
    )


def _no_weights(where: str, reason: str) -> UsageError:
    return UsageError.of(
        "checkpoint-missing",
        "no weights of a model in it",
        where=where,
        evidence=(reason.splitlines()[0],),
        fix='session.load(torch.load(FILE)["NAME"]): the dict of tensors in it',
    )
