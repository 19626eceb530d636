"""Decide whether the rows of a batch are its samples, after ``collate_fn`` and ignored labels.

A loss is weighted by samples. That is right if it is a mean over samples, or over something of
which every sample has equally many, such as crops, or tokens without padding. Otherwise only the
user knows the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from paceline.train.data.batch import is_array, parts_of_batch
from paceline.train.data.collation import collate as default

IGNORED = -100  # ignore_index of torch's losses, and of transformers' labels
MOST_LABELS = 1 << 20  # labels of a batch to count; counting more would take noticeable time


class Unit(NamedTuple):
    """Rows or labels that a loss averages over, if their number per sample is not one."""

    what: str  # rows or labels and their origin, for messages
    per_sample: int | None  # number per sample; None if samples of one batch differ


class Counted:
    """A collate function that returns each batch with its unit, see ``unit_of``."""

    def __init__(
        self,
        collate: Callable[[Any], Any],  # the user's, or torch's
        *,
        of_rows: bool,  # it may change the number of rows, which torch's does not
    ) -> None:
        self._collate, self._of_rows = collate, of_rows
        self._num_fields = 0  # length of a batch that is a list of fields, once that is certain

    def __call__(self, samples: Any) -> tuple[Any, Unit | None]:
        batch = self._collate(samples)
        if not self._of_rows:
            return batch, unit_of(batch, 0)
        self._num_fields = self._num_fields or _num_fields(batch, len(samples))
        is_of_fields = isinstance(batch, list) and len(batch) == self._num_fields
        return batch, unit_of(tuple(batch) if is_of_fields else batch, len(samples))


class Units:
    """The units of a loader's batches so far, over all ranks."""

    def __init__(
        self,
        # sets a store key if it is unset, and returns its value
        first_of: Callable[[str, str], str],
        *,
        matter: bool,  # weights can matter: with several ranks, or with accumulation
    ) -> None:
        self._first_of, self.matter = first_of, matter
        self._usual: dict[str, int] = {}
        self.is_counted = False  # whether the collate function returns units beside batches

    def counted(
        self,
        collate: Callable[[Any], Any] | None,  # the user's; None for torch's
        *,
        # of a dataset whose batches are indexed at once and need no collation
        only_labels: Sequence[Any] = (),
    ) -> Any:
        """Return a collate function that returns units too, if they can matter."""
        if not self.matter or (only_labels and not any(map(_may_ignore, only_labels))):
            return collate
        self.is_counted = True
        return Counted(as_it_is if only_labels else collate or default, of_rows=collate is not None)

    def see(self, unit: Unit | None, num_rows: int) -> str:
        """Return why weighting by samples is wrong; empty while every sample has equally many.

        ``num_rows`` are this rank's samples in the batch; borrowed rows have no weight.
        """
        if unit is None or not num_rows:
            return ""
        if unit.per_sample is None:
            return f"{unit.what} are not the same number for each sample"
        usual = self._usual.get(unit.what)
        if usual is None:
            usual = self._usual[unit.what] = int(
                self._first_of(f"unit/{unit.what}", str(unit.per_sample))
            )
        if unit.per_sample == usual:
            return ""
        return f"{unit.what} are {unit.per_sample} a sample here, and {usual} in another batch"


def as_it_is(batch: Any) -> Any:
    """Return a batch unchanged."""
    return batch


def _may_ignore(labels: Any) -> bool:
    """Return whether a tensor or a NumPy array holds labels that a loss ignores."""
    is_of_integers = str(labels.dtype) in ("torch.int64", "int64")
    return is_of_integers and math.prod(labels.shape) > 0 and int(labels.min()) == IGNORED


def unit_of(batch: Any, num_samples: int) -> Unit | None:
    """Return the rows or labels whose number per sample is not one; None if there are none.

    ``num_samples`` is 0 if the number of rows cannot differ.
    """
    rows = _rows(batch, num_samples) if num_samples else None
    return rows or _labels(batch)


def _num_fields(batch: Any, num_samples: int) -> int:
    """Return the number of fields of a batch that is a list of them; 0 if that is not certain.

    ``default_collate`` makes such lists. Two fields of two samples look like a list of two samples;
    two fields of one sample do not.
    """
    if not isinstance(batch, list) or len(batch) == num_samples or not all(map(is_array, batch)):
        return 0
    return (
        len(batch) if all(len(part.shape) and part.shape[0] == num_samples for part in batch) else 0
    )


def _rows(batch: Any, num_samples: int) -> Unit | None:
    shapes = list(_shapes(batch))
    if None in shapes:
        return None  # an object of unknown structure
    array_shapes = [shape for shape in shapes if shape is not None]
    lengths = {shape[0] for shape in array_shapes}
    if num_samples in lengths or _is_time_first(array_shapes, num_samples):
        return None
    if not lengths:
        return None
    what = (
        f"the rows that collate_fn made ({', '.join(map(str, sorted(lengths)))} of {num_samples}"
        " samples)"
    )
    length, *others = lengths
    if others or not length or length % num_samples:
        return Unit(what, None)
    return Unit("the rows that collate_fn made", length // num_samples)


def _is_time_first(shapes: list[tuple[int, ...]], num_samples: int) -> bool:
    """Return whether samples are the second dimension of all arrays, not of one by chance."""
    is_telling = len(shapes) > 1 or any(len(shape) > 2 for shape in shapes)
    return is_telling and all(len(shape) > 1 and shape[1] == num_samples for shape in shapes)


def _shapes(part: Any, *, is_batch: bool = True) -> Iterator[tuple[int, ...] | None]:
    """Yield possible numbers of rows: shapes of arrays, lengths of lists; None for unknown objects.

    The length of a tuple that is the batch itself is skipped: it is the number of fields.
    """
    if part is None or isinstance(part, str | bytes | int | float):
        return
    if is_array(part):
        if len(part.shape):
            yield tuple(part.shape)
        return
    if (
        isinstance(part, list | tuple)
        and not hasattr(part, "_fields")
        and not (is_batch and isinstance(part, tuple))
    ):
        yield (len(part),)
    parts = list(parts_of_batch(part))
    if not parts and not isinstance(part, Mapping | list | tuple):
        yield None
    for inner in parts:
        yield from _shapes(inner, is_batch=False)


def _labels(batch: Any, name: str = "") -> Unit | None:
    """Return the labels that a loss counts, if some are ignored or they belong to tokens."""
    if isinstance(batch, torch.Tensor):
        return _counted(batch, of_tokens=name == "labels" and batch.dim() > 1)
    named = (
        batch.items()
        if isinstance(batch, Mapping)
        else (("", part) for part in parts_of_batch(batch))
    )
    units = (_labels(part, name) for name, part in named)
    return next((unit for unit in units if unit is not None), None)


def _counted(labels: torch.Tensor, *, of_tokens: bool) -> Unit | None:
    if labels.dtype != torch.int64 or not labels.dim() or not 0 < labels.numel() <= MOST_LABELS:
        return None
    has_ignored = int(labels.min()) == IGNORED and bool((labels[labels < 0] == IGNORED).all())
    if not has_ignored and not of_tokens:
        return None
    counts = (labels != IGNORED).flatten(1).sum(1) if labels.dim() > 1 else (labels != IGNORED)
    alike = bool((counts == counts[0]).all())
    return Unit(f"the labels other than {IGNORED}", int(counts[0]) if alike else None)
