"""Seed the global generators, as ``lightning.seed_everything`` does."""

from __future__ import annotations

import operator

from paceline.train.data import seed_device
from paceline.train.trainer.options import invalid


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed the generators of Python, NumPy and torch, GPUs too, on this rank, and return the seed.

    Args:
        seed: The seed; 0 if None.
        workers: Accepted: samples' random numbers follow from ``Trainer(seed=)`` in any worker.
        verbose: Accepted; nothing is printed.

    Raises:
        UsageError: The seed is not an int.
    """
    try:
        number = operator.index(0 if seed is None else seed)
    except TypeError:
        raise invalid(
            "seed", seed, "an int", where="seed_everything", fix="seed_everything(0)"
        ) from None
    seed_device(number)
    return number
