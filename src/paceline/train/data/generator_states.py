"""Seed, save, restore and compute the states of generators of Python, NumPy and torch.

All three are Mersenne twisters (MT19937: Matsumoto and Nishimura, "Mersenne twister", 1998). A
state is 624 words of 32 bits and a position. Each draw returns the next word, tempered; when all
are used, all are replaced. Seeding computes words that must be replaced before the first draw, in
2 to 5 µs together. Words that are random already only need to be copied, in 0.2 to 0.5 µs, and are
drawn themselves. (Times in a tight loop; between other work they are about twice as long.)

Python and NumPy have no public function that copies words in less than 5 µs, so the words are
copied into the generator's memory. This relies on its layout, which each process compares with the
public functions before it first writes, without a draw:

- Python: the object behind ``random.getstate`` holds a C int, the position, and then the words.
- NumPy: ``state_address``, which is public, is the address of the words, and then the position.
- torch: ``get_state`` returns 24 bytes and then 8 for each word. ``set_state`` is public and fast.

If Python's or NumPy's layout is another one, the public functions set the same words. If torch's
is, torch is seeded, so a sample draws other numbers from it than with other versions of torch.

Draws from the global generators are detected by their states, and by their memory.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch

from paceline.machine import accelerator
from paceline.train.data.order import derive

WORDS = 624
ROWS = 32  # states computed at once: 80 or 160 kB a generator, which stay in the cache

_WORD_BYTES = 4
_POSITION_BYTES = ctypes.sizeof(ctypes.c_int)
_NUMPY_BYTES = _WORD_BYTES * WORDS + _POSITION_BYTES
_TORCH_HEADER = 3  # seed, two ints of which one is a position, and another position: 8 bytes each


class Twister(Protocol):
    """A generator, and states that it can be set to."""

    words: np.ndarray  # words of the states, an array of integers of shape [ROWS, 624], to write to

    def use(self, row: int) -> None:
        """Set the generator to a state, so that its first word is drawn next.

        Torch's draws the second word first, which is the state after one draw. A number that is
        stored for the next call, as the second of two Gaussian numbers, is discarded.
        """


def twister_of(name: str) -> Twister:
    """Return the generator ``"python"``, ``"numpy"`` or ``"torch"``, and room for its states."""
    twisters: dict[str, type[Twister]] = {
        "python": PythonTwister,
        "numpy": NumpyTwister,
        "torch": TorchTwister,
    }
    return twisters[name]()


class PythonTwister:
    """A generator of Python; the global one if None."""

    def __init__(self, generator: Any = None) -> None:
        self.words = np.zeros((ROWS, WORDS), dtype=np.uint32)
        self._rows = rows_of(self.words)
        self._is_known = python_is_known()
        self._generator = python_generator() if generator is None else generator
        address = id(self._generator) + object.__basicsize__
        self._position = ctypes.c_int.from_address(address)
        self._memory = _bytes_at(address + _POSITION_BYTES)

    def use(self, row: int) -> None:
        """Set the generator to a state."""
        if not self._is_known:
            self._generator.setstate((3, (*self.words[row].tolist(), 0), None))
            return
        self._memory[:] = self._rows[row]
        self._position.value = 0
        self._generator.gauss_next = None


class NumpyTwister:
    """A generator that NumPy's functions use after ``use``, or what ``install`` passes it to."""

    def __init__(self, install: Callable[[Any], None] | None = None) -> None:
        self.words = np.zeros((ROWS, WORDS), dtype=np.uint32)
        self._rows = rows_of(self.words)
        self._is_known = numpy_is_known()
        self._generator: Any = np.random.MT19937(0)
        address = self._generator.ctypes.state_address
        self._position = ctypes.c_int.from_address(address + _WORD_BYTES * WORDS)
        self._memory = _bytes_at(address)
        # It also discards a stored number.
        self._install = numpy_random().set_bit_generator if install is None else install

    def use(self, row: int) -> None:
        """Set the generator to a state."""
        if self._is_known:
            self._memory[:] = self._rows[row]
            self._position.value = 0
        else:
            state = {"key": self.words[row], "pos": 0}
            self._generator.state = {"bit_generator": "MT19937", "state": state}
        self._install(self._generator)


class TorchTwister:
    """A generator of torch; the global one of the CPU if None. On a GPU it is seeded."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = torch.default_generator if generator is None else generator
        self._is_known = torch_is_known() and self._generator.device.type == "cpu"
        states = np.tile(_torch_state().numpy(), (ROWS, 1))
        self.words = states.view(np.uint64)[:, _TORCH_HEADER : _TORCH_HEADER + WORDS]
        # Separate tensors: torch 2.13 crashes on a state that is a row of another tensor.
        self._states = [torch.from_numpy(state) for state in states]

    def use(self, row: int) -> None:
        """Set the generator to a state."""
        if self._is_known:
            self._generator.set_state(self._states[row])
        else:
            first, second = self.words[row, :2].tolist()
            self._generator.manual_seed(first << 32 | second)


def python_memory() -> Any:
    """Return the state of Python's generator in a form that is fast to read and to compare.

    The second number of a pair of Gaussian numbers is not in it. It is only used after the first
    one, which changes the memory.
    """
    return _read_python() if python_is_known() else random.getstate()


def numpy_memory() -> bytes:
    """Return the state of NumPy's generator as bytes."""
    generator = numpy_random().get_bit_generator()
    return ctypes.string_at(generator.ctypes.state_address, _NUMPY_BYTES)


def numpy_random() -> Any:
    """Return ``numpy.random``, whose annotations lack the functions that exchange its generator."""
    return np.random


@cache
def python_is_known() -> bool:
    """Return whether the memory of Python's generator is position and words, as in CPython."""
    if sys.implementation.name != "cpython":
        return False
    _, (*words, position), _ = random.getstate()
    state = _int_bytes(position) + np.array(words, dtype=np.uint32).tobytes()
    return _read_python().startswith(state)


@cache
def numpy_is_known() -> bool:
    """Return whether the memory of NumPy's generator is words and position."""
    generator: Any = np.random.MT19937(0)
    state = generator.state["state"]
    expected = state["key"].astype(np.uint32).tobytes() + _int_bytes(state["pos"])
    return bool(ctypes.string_at(generator.ctypes.state_address, _NUMPY_BYTES) == expected)


@cache
def torch_is_known() -> bool:
    """Return whether the words are where they are expected in the state of torch's generator."""
    state = torch.Generator("cpu").manual_seed(1).get_state().numpy()
    if state.nbytes % 8 or state.nbytes < 8 * (_TORCH_HEADER + WORDS):
        return False
    words = state.view(np.uint64)[_TORCH_HEADER : _TORCH_HEADER + WORDS]
    return bool(words.tolist() == _words_of_seed(1))


def _words_of_seed(seed: int) -> list[int]:
    """Return the words that a Mersenne twister computes from a seed below 2**32."""
    words = [seed]
    for number in range(1, WORDS):
        mixed = words[-1] ^ words[-1] >> 30
        words.append((1812433253 * mixed + number) & 0xFFFFFFFF)
    return words


def _torch_state() -> torch.Tensor:
    """Return a state after one draw; zeros if it is not known where its words are."""
    if not torch_is_known():
        return torch.zeros(8 * (_TORCH_HEADER + WORDS), dtype=torch.uint8, device="cpu")
    generator = torch.Generator("cpu").manual_seed(0)
    torch.rand((), generator=generator, device="cpu")
    return generator.get_state()


def _read_python() -> bytes:
    """Return the memory of the object behind ``random.getstate``, except for its header."""
    generator = python_generator()
    header, size = object.__basicsize__, random.Random.__mro__[1].__basicsize__
    return ctypes.string_at(id(generator) + header, size - header)


def python_generator() -> Any:
    """Return the generator behind the functions of ``random``."""
    return random.getstate.__self__  # type: ignore[attr-defined]


def _bytes_at(address: int) -> memoryview:
    """Return the memory of 624 words."""
    return memoryview((ctypes.c_byte * (_WORD_BYTES * WORDS)).from_address(address)).cast("B")


def rows_of(words: np.ndarray) -> list[memoryview]:
    """Return each row's memory. Copied as bytes, it takes half the time of NumPy's assignment."""
    return [memoryview(row).cast("B") for row in words]


def _int_bytes(number: int) -> bytes:
    return number.to_bytes(_POSITION_BYTES, sys.byteorder)


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
    on_cpu = device.type == "cpu"
    of_device = None if on_cpu else torch.get_device_module(device).get_rng_state()
    return {**random_state(), "cuda": of_device}  # of any device; checkpoints have the name


def set_device_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to a state that ``device_random_state`` returned."""
    set_random_state(state)
    if state["cuda"] is not None and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["cuda"])


def seed_device(seed: int) -> None:
    """Seed the global generators, including those of GPUs."""
    seed_all(seed)
    if (kind := accelerator.kind()) != "cpu":
        torch.get_device_module(kind).manual_seed_all(seed)


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
