"""Locate metric objects that compute their value over all ranks, on a rank that never logged them.

Metrics of torchmetrics are such objects. A rank without rows in an evaluation has not logged them,
but the other ranks wait for it in ``compute``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

_OF_UPDATES = ("_update_count", "_computed", "_forward_cache")  # beside a metric's states


_MEANS_OVER_ROWS = ("MeanMetric", "MeanSquaredError", "MeanAbsoluteError")


class MeterPlace(NamedTuple):
    """Location of an object in a task, the same on all ranks."""

    path: str  # name of the module or attribute
    # for each module in it, its states that are lists, each as a tensor without rows
    states: dict[str, dict[str, torch.Tensor]]


def place_of(meter: Any, parts: Iterable[tuple[str, Any]]) -> MeterPlace | None:
    """Return the location of an object; None if it is not among the ``parts`` of its task."""
    path = next((path for path, part in parts if part is meter), None)
    if path is None:
        return None
    return MeterPlace(path, {name: _pieces(module) for name, module in _modules(meter)})


def found_at(place: MeterPlace, parts: Iterable[tuple[str, Any]]) -> Any:
    """Return the object at a location, ready to compute without any rows.

    torchmetrics gathers an empty list as one of floats, regardless of the other ranks' type, so the
    collectives would not match.
    """
    meter = next(part for path, part in parts if path == place.path)
    for name, module in _modules(meter):
        for state, piece in place.states[name].items():
            if not len(getattr(module, state)):
                setattr(module, state, [piece.to(module.device)])
    return meter


def metric_of(value: Any, task: nn.Module) -> Any:
    """Return the metric of a task whose forward has just returned a value; None if there is none.

    Metrics that are means over rows are left out: the mean of the parts' values is theirs.
    """
    if not isinstance(value, torch.Tensor):
        return None
    for module in task.modules():
        if getattr(module, "_forward_cache", None) is value and not _is_mean_over_rows(module):
            return module
    return None


def _is_mean_over_rows(metric: Any) -> bool:
    # By name, so that torchmetrics, which a script may not have, is not imported.
    name = type(metric).__name__
    is_squared = getattr(metric, "squared", True)  # MeanSquaredError(squared=False) is a root
    if name == "BinaryAccuracy" or getattr(metric, "average", None) == "micro":
        return "Accuracy" in name
    return name in _MEANS_OVER_ROWS and is_squared


def kept_state(metric: Any) -> dict[str, Any]:
    """Return the state that a metric of torchmetrics has accumulated."""
    states = {name: getattr(metric, name) for name in metric.metric_state}
    copies = {
        name: list(state) if isinstance(state, list) else state.clone()
        for name, state in states.items()
    }
    own = {name: getattr(metric, name) for name in _OF_UPDATES if hasattr(metric, name)}
    return {**copies, **own}


def put_back(metric: Any, state: dict[str, Any]) -> None:
    """Undo the updates of a metric since ``kept_state``."""
    for name, value in state.items():
        setattr(metric, name, value)


def _modules(meter: Any) -> Iterator[tuple[str, Any]]:
    return meter.named_modules() if isinstance(meter, nn.Module) else iter(())


def _pieces(module: nn.Module) -> dict[str, torch.Tensor]:
    states = getattr(module, "metric_state", {})
    first = {name: state[0] for name, state in states.items() if isinstance(state, list) and state}
    return {name: tensor[:0].detach().cpu() for name, tensor in first.items() if tensor.dim()}
