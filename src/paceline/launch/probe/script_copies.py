"""Find copies of parameters that a script keeps beside its optimizer, such as averaged weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from paceline.machine.parameters import modules, without_wrappers

_Copy = tuple[str, list[str], list[Any]]  # its name, and names and tensors of what it holds


def copies_of(parameters: Mapping[str, Any], is_users: Callable[[str], bool]) -> list[_Copy]:
    """Return what has the names of parameters, or their shapes in order, and is not trained."""
    trained = {id(parameter) for parameter in parameters.values()}
    copies = [*_in_modules(parameters, trained), *_in_variables(parameters, trained, is_users)]
    return list({name: (name, names, tensors) for name, names, tensors in copies}.values())


def _in_modules(parameters: Mapping[str, Any], trained: set[int]) -> Iterator[_Copy]:
    known = list(modules())
    inner = {id(child) for module in known for child in module.children()}
    for root in known:
        held = {without_wrappers(name): one for name, one in root.named_parameters()}
        is_copy = bool(held) and not trained & set(map(id, held.values()))
        if id(root) not in inner and is_copy and len(set(held) & set(parameters)) > len(held) / 2:
            yield f"{type(root).__name__} (copy)", list(held), list(held.values())


def _in_variables(
    parameters: Mapping[str, Any], trained: set[int], is_users: Callable[[str], bool]
) -> Iterator[_Copy]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                yield from _in_value(name, value, parameters, trained)
                own = getattr(type(value), "__module__", "") == "__main__"
                fields = vars(value) if own and hasattr(value, "__dict__") else {}
                for inner, part in fields.items():
                    yield from _in_value(f"{name}.{inner}", part, parameters, trained)
        frame = frame.f_back


def _in_value(
    name: str, value: Any, parameters: Mapping[str, Any], trained: set[int]
) -> Iterator[_Copy]:
    """Yield a variable that is a dict or a list of tensors like the parameters."""
    if type(value) is dict and value and all(isinstance(key, str) for key in value):
        names, tensors = [without_wrappers(key) for key in value], list(value.values())
    elif type(value) is list and len(value) > 1:
        names, tensors = list(parameters), value
    else:
        return
    if len(names) != len(tensors) or not all(isinstance(one, torch.Tensor) for one in tensors):
        return
    is_alike = len(set(names) & set(parameters)) == len(names) and all(
        tensor.numel() for tensor in tensors
    )
    if is_alike and not trained & set(map(id, tensors)):
        yield name, names, tensors
