"""Make a batch of samples as torch's ``default_collate`` does, and decide what its rows are.

``default_collate`` converts each NumPy array of a batch to a tensor before it stacks them, in some
2 µs a sample, and Python's numbers in four times NumPy's time. A worker of torch sends each tensor
of a batch in a separate file in shared memory, in some 100 µs a tensor; a small tensor travels
through the pipe in a tenth of that.

A loss is weighted by samples. That is right if it is a mean over samples, or over something of
which every sample has equally many, such as crops, or tokens without padding. Otherwise only the
user knows the weight: the rows of a batch are counted after ``collate_fn``, without ignored labels.

A collate function that draws random numbers is noticed, because it sees a rank's share only.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate as collate_by_type
from torch.utils.data._utils.collate import default_collate_fn_map

from paceline.errors import Finding
from paceline.text import terminal
from paceline.train.data.batch import is_array, parts_of_batch
from paceline.train.data.generator_states import numpy_memory, python_memory
from paceline.train.data.held_generators import find

MOST_BYTES = 1 << 16  # of a tensor that is sent through the pipe, which holds as much

_NUMBERS = "biufc"  # kinds of NumPy types: booleans, integers, floats, complex numbers


def collate_samples(samples: list[Any]) -> Any:
    """Return a batch of samples, the same as ``default_collate``."""
    columns = _columns(samples)
    by_type = {**default_collate_fn_map, **_BY_TYPE}  # now: libraries add their types when imported
    if columns is None:
        return collate_by_type(samples, collate_fn_map=by_type)
    return [collate_by_type(column, collate_fn_map=by_type) for column in columns]


def _columns(samples: list[Any]) -> list[tuple[Any, ...]] | None:
    """Return the fields of samples that are plain tuples of one length; None for other samples."""
    if set(map(type, samples)) != {tuple}:
        return None
    try:
        return list(zip(*samples, strict=True))
    except ValueError:
        return None


def _stack_arrays(arrays: Any, *, collate_fn_map: Any = None) -> Any:
    first = arrays[0]
    # In a worker torch stacks a large batch in shared memory, which saves a copy.
    if _is_small(first, len(arrays)) and _are_alike(arrays):
        return torch.from_numpy(np.array(arrays))
    return default_collate_fn_map[np.ndarray](arrays, collate_fn_map=collate_fn_map)


def _are_alike(arrays: Any) -> bool:
    """Return whether all are plain arrays of numbers of one type and shape."""
    dtype, shape = arrays[0].dtype, arrays[0].shape
    if dtype.kind not in _NUMBERS or set(map(type, arrays)) != {np.ndarray}:
        return False
    return all(array.shape == shape and array.dtype == dtype for array in arrays)


def _stack_tensors(tensors: Any, *, collate_fn_map: Any = None) -> Any:
    # A small batch leaves a worker through the pipe, and needs no shared memory.
    if get_worker_info() is not None and _are_small_tensors(tensors):
        return torch.stack(tensors)
    return default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)


def _are_small_tensors(tensors: Any) -> bool:
    """Return whether all are plain tensors of one type, and their batch is small."""
    first = tensors[0]
    if set(map(type, tensors)) != {torch.Tensor} or first.layout != torch.strided:
        return False
    if first.is_nested or not _is_small(first, len(tensors)):
        return False
    return all(tensor.dtype == first.dtype for tensor in tensors)


def _is_small(first: Any, number: int) -> bool:
    """Return whether a batch is made without shared memory; outside of a worker, each is."""
    return get_worker_info() is None or first.nbytes * number <= MOST_BYTES


def _join_ints(numbers: Any, *, collate_fn_map: Any = None) -> Any:
    if set(map(type, numbers)) == {int}:
        with suppress(OverflowError):
            return torch.from_numpy(np.array(numbers, dtype=np.int64))
    return default_collate_fn_map[int](numbers, collate_fn_map=collate_fn_map)


def _join_floats(numbers: Any, *, collate_fn_map: Any = None) -> Any:
    if set(map(type, numbers)) == {float}:
        return torch.from_numpy(np.array(numbers, dtype=np.float64))
    return default_collate_fn_map[float](numbers, collate_fn_map=collate_fn_map)


_BY_TYPE: dict[Any, Callable[..., Any]] = {
    torch.Tensor: _stack_tensors,
    np.ndarray: _stack_arrays,
    float: _join_floats,
    int: _join_ints,
}


class _Packed:
    """A small tensor on its way from a worker, as an array that is pickled."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class Packing:
    """A collate function whose batches are packed for the way from a worker."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        return packed(self._collate(samples))


def packed(batch: Any) -> Any:
    """Return a batch whose small tensors are arrays, which are pickled; only inside a worker."""
    if get_worker_info() is None:
        return batch
    return _rebuilt(batch, _packed_tensor)


def unpacked(batch: Any) -> Any:
    """Return the batch that ``packed`` was given."""
    return _rebuilt(batch, _unpacked_tensor)


def _rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a batch with a function applied to its leaves; other containers are leaves too."""
    if type(batch) in (list, tuple):
        return type(batch)([_rebuilt(part, function) for part in batch])
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_rebuilt(part, function) for part in batch))
    if type(batch) is dict:
        return {key: _rebuilt(part, function) for key, part in batch.items()}
    return function(batch)


def _packed_tensor(part: Any) -> Any:
    is_plain = type(part) is torch.Tensor and part.device.type == "cpu"
    if not is_plain or part.nbytes > MOST_BYTES or part.layout != torch.strided:
        return part
    if part.requires_grad or part.dtype == torch.bfloat16 or part.is_quantized:
        return part
    return _Packed(part.numpy())


def _unpacked_tensor(part: Any) -> Any:
    return torch.from_numpy(part.array) if type(part) is _Packed else part


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
        return Counted(
            as_it_is if only_labels else collate or collate_samples, of_rows=collate is not None
        )

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


Collate = Callable[[list[Any]], Any]


class WatchedCollate:
    """A user's collate function, whose first call is compared with the generators before it."""

    def __init__(self, collate: Collate) -> None:
        self._collate = collate
        self._is_over = False
        # Shared with workers, which may be started for each epoch.
        self._is_said = torch.zeros(1, dtype=torch.bool).share_memory_()

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch."""
        if self._is_over:
            return self._collate(samples)
        self._is_over = True
        info = get_worker_info()
        if bool(self._is_said) or (info is not None and info.id):
            return self._collate(samples)
        before = _states(self._collate)
        batch = self._collate(samples)
        after = _states(self._collate)
        if drawn := [name for name, state in after.items() if before.get(name) != state]:
            self._is_said[0] = True
            terminal.say(_finding(drawn, _place_of(self._collate)).render())
        return batch


def _states(collate: Collate) -> dict[str, Any]:
    """Return the states of the global generators, and of those that a function holds."""
    states = {
        "random": python_memory(),
        "numpy.random": numpy_memory(),
        "torch": torch.default_generator.get_state().tolist(),
    }
    for held in filter(lambda held: held.can_be_set, find(collate, "collate_fn")):
        part = held.generator
        is_torchs = isinstance(part, torch.Generator)
        states[held.place] = part.get_state().tolist() if is_torchs else pickle.dumps(part)
    return states


def _place_of(collate: Any) -> str:
    inner = getattr(collate, "func", collate)  # of a partial
    code = getattr(inner if hasattr(inner, "__code__") else type(inner).__call__, "__code__", None)
    if code is None:
        return "collate_fn"
    return f"{code.co_name}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _finding(drawn: list[str], place: str) -> Finding:
    return Finding(
        "loop-draws-numbers",
        f"collate_fn draws random numbers ({', '.join(drawn)}) for a rank's share of the batch",
        where=place,
        why="the result depends on the number of ranks",
        fix="draw in the dataset's __getitem__, or in the loop: session.draws.rand(*x.shape[1:])",
        severity="hint",
    )
