"""Set generators of Python, NumPy and torch to computed states, and read the global ones' memory.

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
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch

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
