"""Notice a collate function that draws random numbers, because it sees a rank's share only."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from paceline.errors import Finding
from paceline.text import terminal
from paceline.train.data.held_generators import find
from paceline.train.data.twisters import numpy_memory, python_memory

Collate = Callable[[list[Any]], Any]


class WatchedCollate:
    """A user's collate function, whose first call is compared with the generators before it."""

    def __init__(self, collate: Collate) -> None:
        self._collate = collate
        self._is_over = False
        # Shared with workers, which may be started for each epoch.
        self._is_said = torch.zeros(1, dtype=torch.bool).share_memory_()

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch."""
        if self._is_over:
            return self._collate(samples)
        self._is_over = True
        info = get_worker_info()
        if bool(self._is_said) or (info is not None and info.id):
            return self._collate(samples)
        before = _states(self._collate)
        batch = self._collate(samples)
        after = _states(self._collate)
        if drawn := [name for name, state in after.items() if before.get(name) != state]:
            self._is_said[0] = True
            terminal.say(_finding(drawn, _place_of(self._collate)).render())
        return batch


def _states(collate: Collate) -> dict[str, Any]:
    """Return the states of the global generators, and of those that a function holds."""
    states = {
        "random": python_memory(),
        "numpy.random": numpy_memory(),
        "torch": torch.default_generator.get_state().tolist(),
    }
    for held in filter(lambda held: held.can_be_set, find(collate, "collate_fn")):
        part = held.generator
        is_torchs = isinstance(part, torch.Generator)
        states[held.place] = part.get_state().tolist() if is_torchs else pickle.dumps(part)
    return states


def _place_of(collate: Any) -> str:
    inner = getattr(collate, "func", collate)  # of a partial
    code = getattr(inner if hasattr(inner, "__code__") else type(inner).__call__, "__code__", None)
    if code is None:
        return "collate_fn"
    return f"{code.co_name}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _finding(drawn: list[str], place: str) -> Finding:
    return Finding(
        "loop-draws-numbers",
        f"collate_fn draws random numbers ({', '.join(drawn)}) for a rank's share of the batch",
        where=place,
        why="the result depends on the number of ranks",
        fix="draw in the dataset's __getitem__, or in the loop: session.draws.rand(*x.shape[1:])",
        severity="hint",
    )
