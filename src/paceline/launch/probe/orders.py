"""What tells one order of samples, and one batch, from another. Pure."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Mapping
from typing import Any

FIRST = 64  # indices that tell one order from another
_SAMPLED = 256  # values of a tensor that tell one batch from another
_DISTINCT = 3  # with fewer values, two batches may well look alike


def digest(numbers: list[int]) -> int:
    """Return 64 bits, signed and never 0, that stand for a list of numbers, the same in every process."""
    return _hash(repr(numbers))


def _hash(text: str) -> int:
    return digest_of_bytes(text.encode())


def digest_of_bytes(content: bytes) -> int:
    """Return 64 bits, signed and never 0, that stand for some bytes, the same in every process."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True) or 1


def same_thing(one: Any, other: Any) -> bool:
    """Return whether two weak references point to the same living object."""
    return one is not None and other is not None and one() is other() and one() is not None


def whole_numbers(asked: Any) -> list[int] | None:
    """Return what a sampler asked for as indices, None if it is something else."""
    try:
        listed = asked.tolist() if hasattr(asked, "tolist") else asked
        return [operator.index(each) for each in ([listed] if isinstance(listed, int) else listed[:FIRST])]
    except Exception:
        return None  # keys of another kind, or a whole request


def is_mixed(indices: list[int]) -> bool:
    """Return whether an order looks shuffled: not sorted, nor sorted and padded from the front."""
    falls = sum(later < earlier for earlier, later in itertools.pairwise(indices))
    return len(indices) >= 10 and falls >= 3


def means_to_shuffle(sampler: Any) -> bool:
    """Return whether a sampler, or one inside it, is there to shuffle; of an unknown one nobody can tell."""
    from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    for _ in range(8):  # batch samplers wrap samplers, and frameworks wrap those
        if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
            return True
        if isinstance(sampler, DistributedSampler) or callable(getattr(sampler, "set_epoch", None)):
            return bool(getattr(sampler, "shuffle", True))
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
        if sampler is None:
            return False
    return False


def fingerprint(batch: Any) -> int:
    """Return a hash of values sampled from a batch that lies in the CPU's memory; 0 if it has too little to tell."""
    values: list[Any] = []
    try:
        _sample(batch, values)
        return _hash(repr(values)) if len(set(values)) >= _DISTINCT else 0
    except Exception:
        return 0  # whatever users put in a batch, their run goes on


def _sample(part: Any, values: list[Any], depth: int = 0) -> None:
    if hasattr(part, "tolist") and hasattr(part, "reshape"):
        if getattr(getattr(part, "device", None), "type", "cpu") != "cpu":
            return  # reading it would wait for the device
        flat = part.reshape(-1)
        values.extend(flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].tolist())
    elif isinstance(part, (int, float, str, bytes)):
        values.append(part)
    elif depth < 4:
        inner = list(part.values()) if isinstance(part, Mapping) else part if isinstance(part, (list, tuple)) else []
        for each in inner[:FIRST]:
            _sample(each, values, depth + 1)
