"""Read and set what decides the order of a DataLoader's next epoch: counters and generators.

A sampler may be inside a batch sampler, that inside another one, and the DataLoader inside a
wrapper that counts epochs itself. Their state is read before a loop begins, so that setting it
before a loop makes that loop's order the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

# Of DistributedSampler and the like, Fabric's loader, Accelerate's, and SeedableRandomSampler.
_COUNTERS = ("epoch", "_num_iter_calls", "iteration", "initial_seed")
_INNER = ("_dataloader", "base_dataloader", "batch_sampler", "sampler")
_DEEPEST = 8  # wrappers around wrappers; a loop among objects ends here

State = dict[str, Any]


def read(loader: Any) -> dict[str, State]:
    """Return the state of a loader and of the samplers in it, by their places."""
    states = {}
    for place, part in _parts(loader):
        state = {
            name: _value_of(value)
            for name, value in vars(part).items()
            if name in _COUNTERS or _is_generator(value)
        }
        if state:
            states[place] = state
    return states


def write(loader: Any, states: dict[str, State]) -> None:
    """Set the state of a loader to what ``read`` returned; parts that it lacks are left out."""
    for place, part in _parts(loader):
        for name, value in states.get(place, {}).items():
            present = vars(part).get(name)
            if _is_generator(present):
                _set_generator(present, value)
            elif isinstance(value, int) and name in vars(part):
                vars(part)[name] = value


def _parts(loader: Any, place: str = "loader", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the objects that may have a part in the order, with their places."""
    if not hasattr(loader, "__dict__") or depth > _DEEPEST:
        return
    yield place, loader
    for name in _INNER:
        inner = vars(loader).get(name)
        if inner is not None:
            yield from _parts(inner, f"{place}.{name}", depth + 1)


def _is_generator(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy.random")
    is_numpy = numpy is not None and isinstance(value, numpy.Generator)
    return is_numpy or isinstance(value, torch.Generator | random.Random)


def _value_of(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    return value.bit_generator.state if _is_generator(value) else value


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
