"""Seed, save and restore the global generators of Python, NumPy and torch, and detect draws."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from paceline.train.data.order import derive

NAMES = ("python", "numpy", "torch")

_MT19937_WORDS = 624
_MT19937_BYTES = _MT19937_WORDS * 4 + 4  # words of its state, and the position in them
_spare: list[Any] = []  # NumPy's generator inside ``kept_state``, at most one

# The state of Python's generator, and its memory then; at most one pair.
_last_python: list[tuple[Any, Any]] = []

Fingerprint = dict[str, Any]  # state of each generator by its name, to detect draws


def seeders_of(names: Sequence[str]) -> list[Callable[[int], object]]:
    """Return the functions that seed some generators; of NumPy's nothing before it is imported."""
    numpy: Any = sys.modules.get("numpy.random")
    seeders: dict[str, Callable[[int], object]] = {
        "python": random.seed,
        "torch": torch.default_generator.manual_seed,
    }
    if numpy is not None:
        seed_numpy = numpy.seed
        seeders["numpy"] = lambda seed: seed_numpy(seed & 0xFFFFFFFF)
    return [seeders[name] for name in names if name in seeders]


def seed_some(names: Sequence[str], seed: int) -> None:
    """Seed some of the global generators."""
    for seeder in seeders_of(names):
        seeder(seed)


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (if imported) and torch (the CPU's)."""
    seed_some(NAMES, seed)


def random_state() -> dict[str, Any]:
    """Return the state of the global generators that ``seed_all`` seeds."""
    numpy: Any = sys.modules.get("numpy.random")
    state = {"python": random.getstate(), "torch": torch.default_generator.get_state()}
    return {**state, "numpy": numpy.get_state()} if numpy else state


def set_random_state(state: dict[str, Any]) -> None:
    """Set the global generators to a state that ``random_state`` returned."""
    random.setstate(state["python"])
    torch.default_generator.set_state(state["torch"])
    numpy: Any = sys.modules.get("numpy.random")
    if numpy and "numpy" in state:
        numpy.set_state(state["numpy"])


@contextmanager
def kept_state() -> Iterator[Fingerprint]:
    """Restore the global random states at the end, as if nothing had been drawn.

    NumPy gets another generator meanwhile, because reading its state takes 40 to 80 µs. The only
    loss is the second of a pair of Gaussian numbers, which NumPy stores for the next call and then
    draws again. Python's state takes 8 µs to read, so the last one read is used again if it has not
    changed.
    """
    numpy: Any = sys.modules.get("numpy.random")
    users = numpy.get_bit_generator() if numpy else None
    if numpy:
        if not _spare:
            _spare.append(numpy.MT19937(0))
        numpy.set_bit_generator(_spare[0])
    python_state, python_memory = _python_state()
    torch_state = torch.default_generator.get_state()
    try:
        yield {
            "python": python_memory,
            "numpy": _numpy_memory(),
            "torch": _torch_memory(torch_state),
        }
    finally:
        if _python_memory() != python_memory:
            random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy:
            numpy.set_bit_generator(users)


def changed_since(before: Fingerprint, *, except_for: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the generators that were drawn from since ``kept_state`` was entered.

    Args:
        before: What ``kept_state`` has yielded.
        except_for: Names of generators to skip.
    """
    states = {
        "python": _python_memory,
        "numpy": _numpy_memory,
        "torch": lambda: _torch_memory(torch.default_generator.get_state()),
    }
    return tuple(
        name for name in NAMES if name not in except_for and states[name]() != before[name]
    )


def _torch_memory(state: torch.Tensor) -> bytes:
    """Return the state of a torch generator as bytes, without NumPy."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _numpy_memory() -> bytes:
    """Return the state of NumPy's generator as bytes; empty if NumPy is not imported."""
    numpy: Any = sys.modules.get("numpy.random")
    return (
        ctypes.string_at(numpy.get_bit_generator().ctypes.state_address, _MT19937_BYTES)
        if numpy
        else b""
    )


def _python_state() -> tuple[Any, Any]:
    """Return the state of Python's generator for ``random.setstate``, and its memory."""
    memory = _python_memory()
    if not _last_python or _last_python[0][1] != memory:
        _last_python[:] = [(random.getstate(), memory)]
    return _last_python[0]


def _python_memory() -> Any:
    """Return the state of Python's generator in a form that is fast to read and to compare."""
    return _read_generator() if _is_readable() else random.getstate()


@cache
def _is_readable() -> bool:
    """Return whether the memory of Python's generator holds its state, as in CPython."""
    if sys.implementation.name != "cpython":
        return False
    (*words, _) = random.getstate()[1]
    state = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return state in _read_generator()


def _read_generator() -> bytes:
    """Return the memory of the object behind ``random.getstate``, except for its header.

    The second number of a pair of Gaussian numbers is not in it. It is only used after the first
    one, which changes the memory.
    """
    generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
    header, size = object.__basicsize__, _generator_type().__basicsize__
    return ctypes.string_at(id(generator) + header, size - header)


def _generator_type() -> type:
    """Return the type in C that ``random.Random`` extends."""
    return random.Random.__mro__[1]


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed the global generators inside the context; afterwards they are as before."""
    with kept_state():
        seed_all(derive(*parts))
        yield
