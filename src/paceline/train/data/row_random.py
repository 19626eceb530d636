"""Random numbers for the rows of the current batch: each row's belong to its place in the epoch.

They are computed on the batch's device, from a key of the row and a count. So a row has the same
numbers on any number of ranks, in any share, and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from paceline.errors import UsageError, option_invalid
from paceline.train.data.batch_tracker import BatchTracker
from paceline.train.data.counter_random import (
    FACTORS,
    GAMMA,
    SHIFTS,
    counted_bits,
    mixed_numbers,
)
from paceline.train.data.iteration import Iteration
from paceline.train.data.order import derive

_WHERE = "session.draws"
_MOST_INTEGERS = 1 << 31
_INTEGER_BITS = 32


class RowRandom:
    """Random numbers for the rows that a loader has yielded last, as tensors ``[rows, ...]``.

    They are a function of seed, epoch, the row's position in the epoch's order, and how many calls
    came before on this batch. So code that makes the same calls for each batch draws the numbers
    that a single rank would draw. The global generators are not touched. In nested loops the rows
    are those of the innermost loop that has not ended.

    A rank without rows computes another rank's row in training, and gets one row of numbers. Of
    streams that differ between ranks (``sharded=True``), rows and numbers depend on the ranks.

    ``session.draws`` makes it.

    Args:
        tracker: Knows which batch was yielded last.
        seed: Seed of the run.
        rank: Global rank.
        device: Device of the returned tensors.
    """

    def __init__(
        self, tracker: BatchTracker, *, seed: int, rank: int, device: torch.device
    ) -> None:
        self._tracker, self._seed, self._rank, self._device = tracker, seed, rank, device

    def rand(self, *shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return numbers in ``[0, 1)``.

        Args:
            *shape: Shape of a row's numbers, as ints or one sequence; nothing for one number.
            dtype: A floating-point type; torch's default if None.

        Returns:
            A tensor of shape ``[rows, *shape]``.

        Raises:
            UsageError: No loader has yielded a batch yet.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        sizes = _sizes(shape)
        return self._numbers(math.prod(sizes), lambda bits: _fractions(bits, dtype), sizes)

    def randn(self, *shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return numbers of the standard normal distribution; otherwise as ``rand``.

        They are computed in float64 if that is the type, else in float32, by the transform of Box
        and Muller, 1958.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        sizes = _sizes(shape)
        count = math.prod(sizes)
        computed = torch.float64 if dtype == torch.float64 else torch.float32
        num_fractions = count + count % 2
        fractions = self._numbers(
            num_fractions, lambda bits: _fractions(bits, computed), (num_fractions,)
        )
        normal = _normal(fractions)[:, :count].to(dtype)
        return normal.reshape(len(normal), *sizes)

    def randint(
        self, low: int, high: int, *shape: Any, dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        """Return integers from ``low`` to ``high - 1``, at most 2**31; otherwise as ``rand``.

        Raises:
            UsageError: The range is empty or too long, or no loader has yielded a batch yet.
        """
        count = high - low
        if not 0 < count <= _MOST_INTEGERS:
            raise _invalid(
                f"randint({low}, {high}) has {count} integers to choose from, not 1 to 2**31",
                fix="session.draws.randint(0, 1000)",
            )
        sizes = _sizes(shape)

        def chosen(bits: torch.Tensor) -> torch.Tensor:
            high_halves = _shifted(bits, 64 - _INTEGER_BITS)
            return ((high_halves * count >> _INTEGER_BITS) + low).to(dtype)

        return self._numbers(math.prod(sizes), chosen, sizes)

    def bernoulli(
        self, probability: float | torch.Tensor, *shape: Any, dtype: torch.dtype = torch.bool
    ) -> torch.Tensor:
        """Return what is true with a probability; otherwise as ``rand``.

        Args:
            probability: A number, or a tensor that broadcasts to the result.
            *shape: Shape of a row's numbers.
            dtype: Type of the result.
        """
        return (self.rand(*shape, dtype=torch.float32) < probability).to(dtype)

    def permutation(self) -> torch.Tensor:
        """Return a random permutation of the global batch, at this rank's rows.

        Returns:
            For each row of this rank another row's position in the global batch, int64 of shape
            ``[rows]``: ``session.gather(x)[session.draws.permutation()]`` is that row of all ranks.

        Raises:
            UsageError: No loader has yielded a batch, or each rank has a stream of its own.
        """
        loop = self._loop()
        if loop.shard is None:
            raise _invalid(
                "each rank has a stream of its own, so rows have no position in a global batch",
                fix="torch.randperm(len(x)), which permutes this rank's rows",
            )
        whole = loop.shard(loop.end).batches.span(loop.number)
        key = self._key(loop, "permutation", whole.start)
        generator = torch.Generator("cpu").manual_seed(key)
        order = torch.randperm(len(whole), generator=generator, device="cpu")
        places = [position - whole.start for position in _positions(loop, self._rank)]
        return order[places].to(self._device)

    def _numbers(
        self, count: int, made_of: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...]
    ) -> torch.Tensor:
        """Return what a function makes of random bits, of shape ``[rows, *sizes]``.

        It returns numbers of some rows, given ``count`` int64 bits for each, which it may
        overwrite.
        """
        loop = self._loop()
        positions = np.array(_positions(loop, self._rank), dtype=np.uint64)
        key = self._key(loop, "rows", self._rank if loop.shard is None else 0)
        states = mixed_numbers(key, positions)
        if self._device.type == "cpu":
            blocks = (bits.view(np.int64) for bits in counted_bits(states, 1, count))
            numbers = torch.cat([made_of(torch.from_numpy(block)) for block in blocks])
        else:
            numbers = made_of(bits_on(self._device, states, count))
        return numbers.reshape(len(states), *sizes)

    def _key(self, loop: Iteration, *parts: object) -> int:
        """Return the key of a call, and count it."""
        loop.num_draws += 1
        return derive("draws", self._seed, loop.loader, loop.epoch, loop.num_draws, *parts)

    def _loop(self) -> Iteration:
        loop = self._tracker.current
        if loop is None or loop.rows is None:
            raise _invalid(
                "no loader has yielded a batch, whose rows the numbers are for",
                fix="for x, y in session.loader(...): noise = session.draws.randn(*x.shape[1:])",
            )
        return loop


def _positions(loop: Iteration, rank: int) -> range:
    """Return the positions of the rows of a loop's last batch; of a borrowed one, the first."""
    assert loop.rows is not None
    num_rows = loop.borrowed[-1][1] if loop.has_borrowed else loop.rows.of_rank
    if loop.shard is None:
        return range(loop.own - loop.rows.of_rank, loop.own - loop.rows.of_rank + num_rows)
    shard = loop.shard(loop.end)
    start = shard.batches.span(loop.number).start
    if not loop.has_borrowed:
        start = shard.positions_of(loop.number, rank).start
    return range(start, start + num_rows)


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape that was passed as ints, or as one sequence of them."""
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        return tuple(shape[0])
    return tuple(shape)


def _fractions(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return multiples of the type's least fraction in ``[0, 1)``; ``bits`` may be overwritten."""
    num_bits = 1 - round(math.log2(torch.finfo(dtype).eps))
    return _shifted(bits, 64 - num_bits).to(dtype).mul_(2.0**-num_bits)


def _normal(fractions: torch.Tensor) -> torch.Tensor:
    """Return as many normally distributed numbers as fractions, of which a row has an even number.

    Not by blocks: where threads share CPUs, each of these operations waits for all of them.
    """
    radius, angle = fractions.tensor_split(2, dim=1)
    radius = (1 - radius).log_().mul_(-2).sqrt_()
    angle = angle * (2 * math.pi)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=1)


def bits_on(device: torch.device, states: np.ndarray, count: int) -> torch.Tensor:
    """Return what ``counted_bits`` returns from 1 on, computed on a device.

    Products of int64 wrap, as SplitMix64 needs.
    """
    steps = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _signed(GAMMA)
    numbers = torch.from_numpy(states.view(np.int64)).to(device)[:, None] + steps
    for shift, factor in zip(SHIFTS, (*FACTORS, np.uint64(1)), strict=True):
        numbers.bitwise_xor_(_shifted(numbers.clone(), int(shift))).mul_(_signed(factor))
    return numbers


def _shifted(numbers: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift 64 bits to the right, in place, without copies of the sign."""
    return numbers.bitwise_right_shift_(shift).bitwise_and_((1 << (64 - shift)) - 1)


def _signed(number: np.uint64) -> int:
    """Return the int64 that has the bits of a number of 64 bits."""
    return int(number.astype(np.int64))


def _invalid(what: str, *, fix: str) -> UsageError:
    return option_invalid(what, where=_WHERE, fix=fix)
