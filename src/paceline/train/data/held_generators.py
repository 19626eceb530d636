"""Find the random generators that a dataset or its transforms hold, and set them for each sample.

A generator of Python, NumPy or torch may be in an attribute of an object or class, in a list or
dict, in a closure, or in a global variable that a method uses. Where it is does not matter: its
state becomes a function of seed, epoch, index, and its number in the order in which it is found.
The seed that the script gave it is not used. It keeps its kind, so that a script may still seed it,
and after each batch it has the state again that it had before.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from paceline.train.data.generator_states import (
    ROWS,
    NumpyTwister,
    PythonTwister,
    TorchTwister,
    numpy_random,
    python_generator,
    rows_of,
)

# Looking takes at most 1 ms.
_MOST_OBJECTS = 250  # looked into
_MOST_LOOKED_AT = 2000  # parts of them, with those of the last one
_MOST_PARTS = 64  # of a container; of a longer one, such as a list of files, the first only
_MOST_ATTRIBUTES = 256  # of an object
_MOST_DEPTH = 12  # steps from the dataset: a Subset, a Compose, and those inside of it

_PLAIN = (str, bytes, int, float, complex, type(None), ModuleType, torch.Tensor, np.ndarray)
_LIBRARIES = ("builtins", "abc", "collections", "enum", "functools", "numpy", "torch", "typing")
_CODE = (FunctionType, MethodType, functools.partial)
_MT19937, _PCG64, _PHILOX = "MT19937", "PCG64", "Philox"
_SET_BY_STATE = (_PCG64, "PCG64DXSM", _PHILOX, "SFC64")
_NUM_WORDS = 8


@dataclass(frozen=True)
class Held:
    """A generator that was found."""

    place: str  # such as ``dataset.transform.rng``
    generator: Any
    is_one_of_many: bool = False  # whether it is the first of a list that is not looked through

    @property
    def can_be_set(self) -> bool:
        """Whether its state can be set before each sample."""
        return not self.is_one_of_many and _setter_type(self.generator) is not None


def find(root: Any, name: str = "dataset") -> list[Held]:
    """Return the generators that a dataset or function holds, except for the global ones.

    Nothing is called and no property is read. The order is the same in every process. ``name`` is
    what it is called in ``Held.place``.
    """
    found: list[Held] = []
    pending = deque([(name, root, 0)])
    # The parts are kept with their ids: that of a temporary dict would be another object's later.
    of_process = (python_generator(), numpy_random().rand.__self__, torch.default_generator)
    visited = {id(part): part for part in of_process}
    num_objects = num_parts = 0
    while pending and num_objects < _MOST_OBJECTS and num_parts < _MOST_LOOKED_AT:
        place, value, depth = pending.popleft()
        is_first_of_many = _is_container(value) and len(value) > _MOST_PARTS
        num_objects += 1
        for suffix, part in _parts_of(value):
            num_parts += 1
            if isinstance(part, _PLAIN) or id(part) in visited:
                continue
            visited[id(part)] = part
            if is_generator(part):
                found.append(Held(place + suffix, part, is_first_of_many))
            elif depth < _MOST_DEPTH:
                pending.append((place + suffix, part, depth + 1))
    return found


def is_generator(value: Any) -> bool:
    """Return whether an object draws random numbers, by its type."""
    return isinstance(value, _kinds())


@functools.cache
def _kinds() -> tuple[type, ...]:
    """Return the types of generators; NumPy imports its own when they are first used."""
    return np.random.Generator, np.random.RandomState, random.Random, torch.Generator


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | deque)


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's parts, each with what to append to its place."""
    if _is_container(value):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in islice(items, None if len(value) <= _MOST_PARTS else 1):
            yield f"[{key!r}]", part
    if isinstance(value, _CODE):
        yield from _parts_of_code(value)
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    else:
        yield from _attributes_of(value)


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        for name, part in islice(attributes.items(), _MOST_ATTRIBUTES):
            yield f".{name}", part
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] in _LIBRARIES:
            continue
        yield "", kind
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType):
                yield f".{name}", getattr(value, name, None)


def _parts_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the generators of a class, and its methods that use something outside of them."""
    for name, part in vars(kind).items():
        inner = getattr(part, "__func__", part)  # of a static method
        is_closed = isinstance(inner, FunctionType) and bool(_outside_of(inner))
        if is_closed or is_generator(inner) or _is_container(inner):
            yield f".{name}", inner


def _parts_of_code(code: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function, bound method or partial refers to."""
    if isinstance(code, MethodType):
        yield "", code.__self__
        yield "", code.__func__
    elif isinstance(code, functools.partial):
        yield "", code.func
        yield "", code.args
        yield "", code.keywords
    else:
        yield from _outside_of(code).items()


def _outside_of(function: FunctionType) -> dict[str, Any]:
    """Return a function's closure and defaults, and global variables that are generators."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[f": {name}"] = cell.cell_contents
        except ValueError:  # empty as yet
            continue
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        found[f": default {len(found)}"] = value
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        if is_generator(value):
            found[f": {name}"] = value
    return found


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, also inside of its comprehensions and lambdas."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class HeldGenerators:
    """The generators of a dataset, set for each sample by ``SampleStates``."""

    def __init__(self, dataset: Any) -> None:
        found = [held.generator for held in find(dataset) if held.can_be_set]
        self._generators = found
        # a Twister for each that can be set, which also has keep and restore, in the order in which
        # they were found
        self.setters: list[Any] = [_setter_type(part)(part) for part in found]

    def __bool__(self) -> bool:
        return bool(self.setters)

    def are_those_of(self, dataset: Any) -> bool:
        """Return whether a dataset still holds the same: some replace theirs in a worker."""
        found = [held.generator for held in find(dataset) if held.can_be_set]
        pairs = zip(found, self._generators, strict=False)
        return len(found) == len(self._generators) and all(one is other for one, other in pairs)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the generators at the end, as if nothing had been drawn from them."""
        states = [setter.keep() for setter in self.setters]
        try:
            yield
        finally:
            for setter, state in zip(self.setters, states, strict=True):
                setter.restore(state)


class _PythonSetter(PythonTwister):
    def keep(self) -> Any:
        return self._generator.getstate()

    def restore(self, kept: Any) -> None:
        self._generator.setstate(kept)


class _TorchSetter(TorchTwister):
    def keep(self) -> Any:
        return self._generator.get_state()

    def restore(self, kept: Any) -> None:
        self._generator.set_state(kept)


class _NumpySetter(NumpyTwister):
    """Passes a generator another Mersenne twister, because setting the state of its own is slow."""

    def __init__(self, generator: Any) -> None:
        super().__init__(generator.__init__)
        self._users = generator

    def keep(self) -> Any:
        return self._users._bit_generator

    def restore(self, kept: Any) -> None:
        self._users.__init__(kept)


class _BitGeneratorSetter:
    """Sets the state of NumPy's other bit generators by their public property."""

    def __init__(self, generator: Any) -> None:
        self.words = np.zeros((ROWS, _NUM_WORDS), dtype=np.uint32)
        self._users, self._bits = generator, generator._bit_generator
        name = type(self._bits).__name__
        self._rows = rows_of(self.words)
        self._states = [_state_of(name, row) for row in self.words.view(np.uint64)]
        self._has_ints = name.startswith(_PCG64)

    def use(self, row: int) -> None:
        state = self._states[row]
        if self._has_ints:  # the arrays of the others are the words themselves
            first, second = self._rows[row][:16], self._rows[row][16:]
            state["state"]["state"] = int.from_bytes(first, "little")
            state["state"]["inc"] = int.from_bytes(second, "little") | 1
        self.restore(state)

    def keep(self) -> Any:
        return self._bits.state

    def restore(self, kept: Any) -> None:
        self._bits.state = kept
        if isinstance(self._users, np.random.RandomState):
            self._users.__init__(self._bits)  # type: ignore[misc]  # discards a stored number


def _state_of(name: str, numbers: np.ndarray) -> dict[str, Any]:
    """Return a state of a bit generator from four random numbers, without a stored number."""
    state: dict[str, Any] = {"bit_generator": name, "has_uint32": 0, "uinteger": 0}
    if name == _PHILOX:
        nothing = np.zeros(4, dtype=np.uint64)
        inner = {"counter": nothing, "key": numbers[:2]}
        return {**state, "state": inner, "buffer": nothing, "buffer_pos": 4}
    return {**state, "state": {"state": numbers}}


def _setter_type(generator: Any) -> Any:
    """Return the class that sets a generator; None if there is none."""
    if isinstance(generator, random.Random):
        is_twister = type(generator).setstate is random.Random.setstate
        return _PythonSetter if is_twister else None  # SystemRandom has no state
    if isinstance(generator, torch.Generator):
        return _TorchSetter
    kind = type(generator._bit_generator)
    if kind.__module__.partition(".")[0] != "numpy":
        return None
    if kind.__name__ == _MT19937:
        return _NumpySetter
    return _BitGeneratorSetter if kind.__name__ in _SET_BY_STATE else None


def describe_unset(dataset: Any, *, by_sample: bool) -> str:
    """Return a line about generators that cannot be set for each sample; empty without any."""
    unset = [held for held in find(dataset) if not (by_sample and held.can_be_set)]
    if not unset:
        return ""
    kind = type(unset[0].generator).__name__
    others = f" and {len(unset) - 1} more" if len(unset) > 1 else ""
    return (
        f"{unset[0].place}{others} ({kind}) cannot be set for each sample: what it draws depends on"
        " the number of ranks"
    )
