"""Seed, save and restore the global generators of Python, NumPy and torch, and detect draws."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from paceline.train.data.order import derive
from paceline.train.data.twisters import numpy_memory, numpy_random, python_memory

NAMES = ("python", "numpy", "torch")

_spare: list[Any] = []  # NumPy's generator inside ``kept_state``, at most one

# The state of Python's generator, and its memory then; at most one pair.
_last_python: list[tuple[Any, Any]] = []

Fingerprint = dict[str, Any]  # state of each generator by its name, to detect draws


def seed_some(names: Sequence[str], seed: int) -> None:
    """Seed some of the global generators."""
    if "python" in names:
        random.seed(seed)
    if "numpy" in names:
        np.random.seed(seed & 0xFFFFFFFF)
    if "torch" in names:
        torch.default_generator.manual_seed(seed)


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (the CPU's).

    NumPy imports its generators when they are first used, so a script may not have imported them
    yet.
    """
    seed_some(NAMES, seed)


def random_state() -> dict[str, Any]:
    """Return the state of the global generators that ``seed_all`` seeds."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.default_generator.get_state(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Set the global generators to a state that ``random_state`` returned.

    A checkpoint may have no state of NumPy's generator.
    """
    random.setstate(state["python"])
    torch.default_generator.set_state(state["torch"])
    if "numpy" in state:
        np.random.set_state(state["numpy"])


def device_random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of the global generators, with that of the GPU that a rank uses."""
    cuda = torch.cuda.get_rng_state() if device.type == "cuda" else None
    return {**random_state(), "cuda": cuda}


def set_device_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to a state that ``device_random_state`` returned."""
    set_random_state(state)
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"])


def seed_device(seed: int) -> None:
    """Seed the global generators, including those of GPUs."""
    seed_all(seed)
    torch.cuda.manual_seed_all(seed)  # does nothing without a GPU


@contextmanager
def kept_state() -> Iterator[Fingerprint]:
    """Restore the global random states at the end, as if nothing had been drawn.

    NumPy gets another generator meanwhile, because reading its state takes 40 to 80 µs. The only
    loss is the second of a pair of Gaussian numbers, which NumPy stores for the next call and then
    draws again. Python's state takes 8 µs to read, so the last one read is used again if it has not
    changed.
    """
    numpy = numpy_random()
    users = numpy.get_bit_generator()
    if not _spare:
        _spare.append(numpy.MT19937(0))
    numpy.set_bit_generator(_spare[0])
    python_state, memory = _python_state()
    torch_state = torch.default_generator.get_state()
    try:
        yield {
            "python": memory,
            "numpy": numpy_memory(),
            "torch": _torch_memory(torch_state),
        }
    finally:
        if python_memory() != memory:
            random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        numpy.set_bit_generator(users)


def changed_since(before: Fingerprint, *, except_for: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the generators that were drawn from since ``kept_state`` was entered."""
    states = {
        "python": python_memory,
        "numpy": numpy_memory,
        "torch": lambda: _torch_memory(torch.default_generator.get_state()),
    }
    return tuple(
        name for name in NAMES if name not in except_for and states[name]() != before[name]
    )


def _torch_memory(state: torch.Tensor) -> bytes:
    """Return the state of a torch generator as bytes, without NumPy."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _python_state() -> tuple[Any, Any]:
    """Return the state of Python's generator for ``random.setstate``, and its memory."""
    memory = python_memory()
    if not _last_python or _last_python[0][1] != memory:
        _last_python[:] = [(random.getstate(), memory)]
    return _last_python[0]


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed the global generators inside the context; afterwards they are as before."""
    with kept_state():
        seed_all(derive(*parts))
        yield
