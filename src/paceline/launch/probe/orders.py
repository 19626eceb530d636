"""Fingerprints by which two orders of samples, or two batches, are compared. Pure."""

from __future__ import annotations

import hashlib
import itertools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FIRST = 64  # indices in the fingerprint of an order
_SAMPLED = 256  # values of a tensor in the fingerprint of a batch
_COLUMNS = 4  # of a batch, whose samples are hashed
_DISTINCT = 3  # with fewer distinct values, equal batches prove nothing


def digest(numbers: list[int]) -> int:
    """Return a 64-bit hash of a list of numbers, signed, never 0 and the same in every process."""
    return _hash(repr(numbers))


def _hash(text: str) -> int:
    return digest_of_bytes(text.encode())


def digest_of_bytes(content: bytes) -> int:
    """Return a 64-bit hash of some bytes, signed, never 0 and the same in every process."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True) or 1


def same_thing(one: Any, other: Any) -> bool:
    """Return whether two weak references point to the same living object."""
    if one is None or other is None:
        return False
    target = one()
    return target is not None and target is other()


def whole_numbers(requested: Any, most: int | None = FIRST) -> list[int] | None:
    """Return the first indices that a sampler requested, at most so many; None if not integers."""
    try:
        values = requested.tolist() if hasattr(requested, "tolist") else requested
        first = [values] if isinstance(values, int) else values[:most]
        return [operator.index(index) for index in first]
    except Exception:
        return None  # keys of another type, or a custom request


def is_mixed(indices: list[int]) -> bool:
    """Return whether an order looks shuffled: neither sorted, nor sorted and padded at its end."""
    falls = sum(later < earlier for earlier, later in itertools.pairwise(indices))
    return len(indices) >= 10 and falls >= 3


def means_to_shuffle(sampler: Any) -> bool:
    """Return whether a sampler, or one inside it, is a known one that is to shuffle."""
    from torch.utils.data import (
        DistributedSampler,
        RandomSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    for each in _samplers_in(sampler):
        if isinstance(each, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
            return True
        if isinstance(each, DistributedSampler) or callable(getattr(each, "set_epoch", None)):
            return bool(getattr(each, "shuffle", True))
    return False


def divides_among_ranks(sampler: Any) -> bool:
    """Return whether a sampler, or one inside it, gives each rank its part of one dataset."""
    names = ("num_replicas", "num_processes")  # of torch, and of accelerate
    counts = [getattr(each, name, 1) for each in _samplers_in(sampler) for name in names]
    return any(isinstance(count, int) and count > 1 for count in counts)


def _samplers_in(sampler: Any) -> Iterator[Any]:
    """Yield a sampler and those inside it: frameworks wrap batch samplers, which wrap samplers."""
    from torch.utils.data import Sampler

    for _ in range(8):
        if sampler is None:
            return
        yield sampler
        inner = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
        held = getattr(sampler, "__dict__", {}).values()  # of a batch sampler of the user's own
        sampler = inner or next((value for value in held if isinstance(value, Sampler)), None)


def fingerprint(batch: Any) -> int:
    """Return a hash of sampled values of a batch in CPU memory; 0 with too few distinct values."""
    values: list[Any] = []
    try:
        _sample(batch, values)
        return _hash(repr(values)) if len(set(values)) >= _DISTINCT else 0
    except Exception:
        return 0  # a batch may contain any object, and the run must continue


def size_of(batch: Any) -> tuple[int, int]:
    """Return the number of samples and of tokens of a batch; 0 where that is unknown.

    Samples are the length of the first tensor. Tokens are the elements of ``input_ids``, the name
    that Hugging Face's tokenizers give them.
    """
    try:
        has_tokens = isinstance(batch, Mapping) and "input_ids" in batch
        return _samples(batch), batch["input_ids"].numel() if has_tokens else 0
    except Exception:
        return 0, 0  # a batch may contain any object, and the run must continue


def _samples(part: Any, depth: int = 0) -> int:
    shape: Any = getattr(part, "shape", None)
    if shape:
        return int(shape[0])
    if depth < 4:
        return next((size for item in parts_of(part) if (size := _samples(item, depth + 1))), 0)
    return 0


def row_hashes(batch: Any, count: int) -> list[list[int]]:
    """Return ``count`` hashes for each of the first columns of a batch, such as inputs and labels.

    There is one for each sample of a batch in CPU memory; columns with fewer or more are left out.
    """
    columns = parts_of(batch) or [batch]
    try:
        return [hashes for part in columns[:_COLUMNS] if (hashes := _row_hashes(part, count))]
    except Exception:
        return []  # a batch may contain any object, and the run must continue


def _row_hashes(part: Any, count: int) -> list[int]:
    import torch

    if isinstance(part, torch.Tensor):
        is_fit = part.device.type == "cpu" and part.dim() > 0 and len(part) == count
        rows = part.detach().contiguous().view(torch.uint8) if is_fit else None
        if rows is None:
            return []
        return [digest_of_bytes(row.numpy().tobytes()) for row in rows.reshape(count, -1)]
    if isinstance(part, (list, tuple)) and len(part) == count:
        return [_hash(repr(item)) for item in part if isinstance(item, (int, float, str, bytes))]
    return []


def _sample(part: Any, values: list[Any], depth: int = 0) -> None:
    if hasattr(part, "tolist") and hasattr(part, "reshape"):
        if getattr(getattr(part, "device", None), "type", "cpu") != "cpu":
            return  # reading it would synchronize with the device
        flat = part.reshape(-1)
        values.extend(flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].tolist())
    elif isinstance(part, (int, float, str, bytes)):
        values.append(part)
    elif isinstance(part, os.PathLike):
        values.append(os.fspath(part))
    elif depth < 4:
        items = parts_of(part)
        for item in items[:: max(1, len(items) // FIRST)][:FIRST]:
            _sample(item, values, depth + 1)


def parts_of(part: Any) -> Sequence[Any]:
    """Return what a dict, list or tuple holds; nothing for other types."""
    if isinstance(part, Mapping):
        return list(part.values())
    return part if isinstance(part, (list, tuple)) else ()
