"""Produce a loader's batches from an indexed dataset or from a stream.

Both are built on torch's DataLoader. ``MapBatches`` passes it a list of indices for each batch,
``StreamBatches`` a stream that is already in batches.

Changes of a dataset are detected without reading it, so that workers with a copy can be restarted.
"""

from __future__ import annotations

import bisect
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from paceline.errors import UsageError
from paceline.train.data.adopt import check_library, check_stream, fingerprint
from paceline.train.data.array_dataset import ArrayReader, base_of
from paceline.train.data.collation import (
    Packing,
    Units,
    WatchedCollate,
    as_it_is,
    collate_samples,
    unpacked,
)
from paceline.train.data.context import LoaderContext
from paceline.train.data.held_generators import describe_unset
from paceline.train.data.loader_options import Division, contradiction
from paceline.train.data.order import EpochOrder, StoredOrder, blocks, derive, shuffled
from paceline.train.data.same_data_check import SameDataCheck
from paceline.train.data.sampler_order import SamplerOrder
from paceline.train.data.samples import Reader, Request, Samples, TensorReader, in_memory
from paceline.train.data.share import EvenBatches, GivenBatches, Rows, Shard
from paceline.train.data.stream import Piece, Stream, pieces_of_all, whole_rows

Collate = Callable[[list[Any]], Any]

# Rows of a batch, the batch, and why its rows are not its weight (empty if they are).
Served = tuple[Rows, Any, str]

# Returns the batches of an epoch, given how many samples have been served.
# It is None if ranks read different streams.
ShardOf = Callable[[int], Shard] | None


class BatchSource:
    """The common part of both sources: torch's DataLoader, whose workers may outlive an epoch."""

    has_position = True  # whether a checkpoint can be in the middle of an epoch
    num_parts = 1  # workers among which a stream divides itself

    def __init__(
        self,
        dataset: Any,
        context: LoaderContext,
        divided: Division,  # how samples are divided into batches
        *,
        same_data: SameDataCheck,
        collate: Collate | None,  # of a list of samples; None for torch's default
    ) -> None:
        self._dataset, self._context, self._divided = dataset, context, divided
        self._same_data = same_data
        self._collate = None if collate is default_collate else collate
        if self._collate is not None and context.world.world_size > 1 and not context.world.rank:
            self._collate = WatchedCollate(self._collate)
        self._units = Units(context.first_of, matter=self._weights_matter())
        self._torch_loader: DataLoader[Any]
        self._state_of_dataset: Any = None  # when the workers were started

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""
        raise NotImplementedError

    @property
    def num_samples(self) -> int:
        """Samples in an epoch; -1 if that is unknown before it is read."""
        raise NotImplementedError

    def begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        """Begin to read an epoch, from 0, of which ``start`` samples were served before."""
        if callable(getattr(self._dataset, "set_epoch", None)):
            self._dataset.set_epoch(epoch)
        if self._weights_matter() and not self._units.matter:  # batches are accumulated from now on
            self.release()
            self._units.matter = True
            self._open()
        self._restart_workers_if_changed()
        return self._begin(epoch, start)

    def _weights_matter(self) -> bool:
        return self._context.world.world_size > 1 or self._context.accumulate() > 1

    def _open(self) -> None:
        """Make torch's DataLoader of what reads the dataset."""
        raise NotImplementedError

    def _begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        raise NotImplementedError

    def place(self, epoch: int, done: int) -> dict[str, Any]:
        """Return what a position needs beside the number of samples done."""
        return {}

    def return_to(self, place: dict[str, Any]) -> None:
        """Continue from a position that a checkpoint or another loader had.

        Raises UsageError if a stream was divided among another number of workers.
        """
        number = len(place.get("workers", [0]))
        if number != self.num_parts and (place["done"] or min(number, self.num_parts) > 1):
            raise _divided_otherwise(number, self.num_parts)

    def finished(self, epoch: int, served: Iterator[Served]) -> Iterator[Served]:
        """Yield batches of ``begin``, moved to the device, after what is to be done there."""
        return served

    @property
    def num_even_samples(self) -> int | None:
        """Samples in an epoch if all batches except the last have one size; else None."""
        is_even = self._divided.batch_size > 0 and self._divided.last == "exact"
        return self.num_samples if is_even and self.num_samples >= 0 else None

    @property
    def has_workers(self) -> bool:
        """Whether worker processes read the data."""
        return self._torch_loader.num_workers > 0

    @property
    def serves_one_loop(self) -> bool:
        """Whether two concurrent loops would take each other's batches."""
        return self._torch_loader.persistent_workers

    def mark(self) -> tuple[Any, ...]:
        """Return the values that must be equal on all ranks."""
        divided = self._divided
        return fingerprint(self._dataset), divided.batch_size, divided.shuffle, divided.last

    def describe_unset(self) -> str:
        """Return a line about generators that cannot be set for each sample; empty without any."""
        return ""

    def release(self) -> None:
        """Release workers that wait for another epoch."""
        self._torch_loader._iterator = None

    def _restart_workers_if_changed(self) -> None:
        """Release workers whose copy of the dataset is outdated, so that new ones are started."""
        if not self.serves_one_loop:
            return
        state = state_of(self._dataset)
        if self._torch_loader._iterator is not None and state != self._state_of_dataset:
            self.release()
        self._state_of_dataset = state

    def _packing(self, collate: Collate, settings: dict[str, Any]) -> Collate:
        """Return a collate function whose batches travel faster from a worker, if that helps."""
        # torch pins the memory of tensors only, before we could unpack them.
        self._is_packed = settings["num_workers"] > 0 and not settings["pin_memory"]
        return Packing(collate) if self._is_packed else collate

    def _received(self) -> Iterator[Any]:
        """Yield what torch's DataLoader yields, with its tensors unpacked."""
        return map(unpacked, self._torch_loader) if self._is_packed else iter(self._torch_loader)

    def _fetch(self, dataset: Any, settings: dict[str, Any], **options: Any) -> DataLoader[Any]:
        """Return torch's DataLoader of the dataset; refuse settings that exclude each other."""
        # A separate generator, because torch would draw the workers' seed from the global one each
        # epoch.
        generator = torch.Generator().manual_seed(derive("workers", self._context.seed))
        try:
            return DataLoader(dataset, generator=generator, **options, **settings)
        except ValueError as error:
            raise contradiction(str(error)) from None


class MapBatches(BatchSource):
    """Batches of an indexed dataset; ``settings`` are those of torch's DataLoader."""

    def __init__(
        self,
        dataset: Any,
        context: LoaderContext,
        divided: Division,
        *,
        settings: dict[str, Any],
        **common: Any,
    ) -> None:
        super().__init__(dataset, context, divided, **common)
        self._draws = SamplerOrder(divided.sampler, context.seed)
        self._requests = _SourceRequests()
        self._arrays = self._array_reader()
        self._settings = settings
        self._open()

    def _open(self) -> None:
        reader, columns = self._whole_batches()
        is_stacked = reader is not None and self._collate is None
        collate = self._units.counted(self._collate, only_labels=columns if is_stacked else ())
        usual = as_it_is if is_stacked else collate_samples
        self._torch_loader = self._fetch(
            Samples(self._dataset, seed=self._context.seed, reader=reader),
            self._settings,
            batch_sampler=cast(Any, self._requests),
            collate_fn=self._packing(collate or usual, self._settings),
        )

    def describe_unset(self) -> str:
        """Return a line about generators that cannot be set for each sample; empty without any."""
        if in_memory(self._dataset):
            return ""
        return describe_unset(self._dataset, by_sample=self._arrays is None)

    def _array_reader(self) -> ArrayReader | None:
        """Return what reads the dataset if it is one of ``arrays``, or a subset of one."""
        base = base_of(self._dataset)
        if base is None:
            return None
        arrays, subsets = base
        arrays.share_memory()
        return ArrayReader(
            arrays,
            subsets,
            seed=self._context.seed,
            finishes=self._context.device.type == "cpu",
            splits=self._collate is not None,
        )

    def _whole_batches(self) -> tuple[Reader | None, Sequence[Any]]:
        """Return what reads whole batches, and the columns of the dataset; None without it."""
        base = base_of(self._dataset)
        if base is not None:
            return self._arrays, base[0].stored
        if type(self._dataset) is TensorDataset and self._collate is None:
            return TensorReader(self._dataset), self._dataset.tensors
        return None, ()

    def finished(self, epoch: int, served: Iterator[Served]) -> Iterator[Served]:
        """Yield batches that are on the device, transformed there if that was not done before."""
        arrays = self._arrays
        if arrays is None or self._context.device.type == "cpu":
            return served
        return ((rows, arrays.finished(epoch, batch), problem) for rows, batch, problem in served)

    def __len__(self) -> int:
        if not self._divided.batch_size:
            return len(self._divided.sampler)
        return len(EvenBatches(self.num_samples, self._divided.batch_size, self._divided.last))

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, or batches if the sampler yields batches."""
        return len(self._dataset if self._divided.sampler is None else self._divided.sampler)

    def _begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        world = self._context.world
        order, batches = self._order(epoch, start)
        shard = Shard(batches, world.rank, world.world_size, self._context.accumulate())
        self._requests.begin(epoch, order, shard)
        # The DataLoader comes first in zip, so that its iterator sees its end and releases its
        # workers.
        pairs = zip(self._received(), shard.rows(), strict=False)
        if self._units.is_counted:
            see = self._units.see
            return (lambda _: shard), (
                (rows, batch, see(unit, rows.of_rank)) for (batch, unit), rows in pairs
            )
        return (lambda _: shard), ((rows, batch, "") for batch, rows in pairs)

    def _order(self, epoch: int, start: int) -> tuple[EpochOrder, EvenBatches | GivenBatches]:
        divided = self._divided
        if divided.sampler is None:
            length = len(self._dataset)
            batches = EvenBatches(length, divided.batch_size, divided.last, start)
            if divided.shuffle:
                return shuffled(length, seed=self._context.seed, epoch=epoch), batches
            return StoredOrder(range(length)), batches
        drawn = self._draws.of_epoch(epoch)
        self._same_data.check_drawn(drawn, divided.sampler)
        if divided.batch_size:
            return StoredOrder(drawn), EvenBatches(
                len(drawn), divided.batch_size, divided.last, start
            )
        bounds = list(itertools.accumulate(map(len, drawn), initial=0))
        rest = bounds[bisect.bisect_left(bounds, start) :] or bounds[-1:]
        return StoredOrder([index for batch in drawn for index in batch]), GivenBatches(rest)


class _SourceRequests:
    """The batch sampler passed to torch: yields epoch and this rank's indices of each batch."""

    def __init__(self) -> None:
        self._requests: Iterator[Request] = iter(())

    def begin(self, epoch: int, order: EpochOrder, shard: Shard) -> None:
        """Set what the next iteration yields."""
        self._requests = ((epoch, indices) for indices in blocks(order, shard.read()))

    def __iter__(self) -> Iterator[Request]:
        return self._requests


class StreamBatches(BatchSource):
    """Batches of a stream that is the same on all ranks, or different on each.

    Raises UsageError if the stream seems to divide itself among ranks, or the batch size is not
    divisible by the number of ranks.
    """

    def __init__(
        self,
        dataset: Any,  # the user's
        context: LoaderContext,
        divided: Division,
        *,
        settings: dict[str, Any],  # of torch's DataLoader
        sharded: bool | None,  # each rank has a different stream; None if the user has not set it
        **common: Any,  # as for ``BatchSource``
    ) -> None:
        super().__init__(dataset, context, divided, **common)
        if sharded is None:
            check_stream(dataset)
            check_library(dataset, world_size=context.world.world_size)
        self.has_position = not sharded
        self._settings = settings
        self._open()

    def _open(self) -> None:
        self._stream = self._whole_stream() if self.has_position else self._stream_of_own()
        collate = self._packing(as_it_is, self._settings)
        self._torch_loader = self._fetch(
            self._stream, self._settings, batch_size=None, collate_fn=collate
        )

    def __len__(self) -> int:
        raise TypeError(
            f"the length of {type(self._dataset).__name__} is not known before it is read"
        )

    @property
    def num_samples(self) -> int:
        """Always -1: unknown."""
        return -1

    def _whole_stream(self) -> Stream:
        size, world = self._divided.batch_size, self._context.world
        ranks = world.world_size
        return self._stream_of(
            batch_size=size, is_compared=ranks > 1, rank=world.rank, world_size=ranks
        )

    def _stream_of_own(self) -> Stream:
        world = self._context.world
        size, extra = divmod(self._divided.batch_size, world.world_size)
        if extra:
            raise contradiction(
                f"batch_size={self._divided.batch_size} does not divide by {world.world_size}"
                " ranks, whose streams are read side by side"
            )
        return self._stream_of(batch_size=size, rank=0, world_size=1, share_of_seed=world.rank)

    def _stream_of(self, **shares: Any) -> Stream:
        collate = self._units.counted(self._collate) or collate_samples
        return Stream(
            self._dataset,
            seed=self._context.seed,
            last=self._divided.last,
            collate=collate,
            is_counted=self._units.is_counted,
            **shares,
        )

    def _begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        self._stream.at[0], self._stream.at[1] = epoch, start
        pieces: Iterator[Piece] = self._received()
        if not self.has_position:
            return None, self._sharded(pieces)
        world, size = self._context.world, self._divided.batch_size

        def served(end: int) -> Shard:  # all batches up to ``end`` except the last are full
            return Shard(EvenBatches(end, size, start=start), world.rank, world.world_size)

        return served, self._whole(pieces, f"{epoch}/{start}")

    def _whole(self, pieces: Iterator[Piece], place: str) -> Iterator[Served]:
        for number, piece in enumerate(pieces):
            if piece.mark is not None:
                self._same_data.see_stream(f"{place}/{number}", piece.mark)
            yield self._served(piece, number)

    def _sharded(self, pieces: Iterator[Piece]) -> Iterator[Served]:
        for number, (piece, total, is_last) in enumerate(
            pieces_of_all(pieces, self._context.total)
        ):
            yield self._served(piece._replace(of_batch=total, is_last=is_last), number)

    def _served(self, piece: Piece, number: int) -> Served:
        rows = whole_rows(piece, number, self._context.accumulate())
        return rows, piece.batch, self._units.see(piece.unit, rows.of_rank)


def _divided_otherwise(number: int, now: int) -> UsageError:
    return UsageError.of(
        "data-changed",
        f"the stream was divided among {number} worker{'s' * (number != 1)} a rank, and is now"
        f" among {now}",
        where="session.loader(...)",
        why="its order depends on their number, so samples would be lost and others come twice",
        fix=f"session.loader(..., num_workers={number}, sharded_by_worker={number > 1})",
    )


_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_MOST = 1000  # objects inspected, and parts of each; of a larger container only its length
_WHOLE_BYTES = 1 << 20  # smaller NumPy arrays are summed whole, larger ones at some thousand places
_PLACES = 1 << 14


def state_of(dataset: Any) -> Any:
    """Return a value that compares equal as long as no change of a dataset is detected.

    Attributes are followed through objects, dicts, lists and tuples, each once. Tensors are
    compared by their version, NumPy arrays by a checksum. Undetected are changes of a few elements
    in arrays above 1 MiB, of members of containers with more than 1,000, and beyond 1,000 objects.
    Arrays mapped from a file are shared with the workers anyway.
    """
    return _state_of_part(dataset, set())


def _state_of_part(value: Any, visited: set[int]) -> Any:
    """Return the comparable value of a part; objects that are shared are inspected once."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return id(value), _checksum(value, numpy)
    parts = _parts_of(value)
    attributes = getattr(value, "__dict__", None)
    has_parts = parts is not None or isinstance(attributes, dict)
    if not has_parts or isinstance(value, ModuleType):
        return id(value)
    if id(value) in visited or len(visited) >= _MOST:
        return id(value)
    visited.add(id(value))
    return (
        id(value),
        None if parts is None else len(value),
        _state_of_parts(parts, visited),
        _state_of_parts(attributes, visited),
    )


def _parts_of(container: Any) -> dict[Any, Any] | None:
    """Return a container's members, none of a large list; None if it is not a container."""
    if isinstance(container, dict):
        return container
    if isinstance(container, list | tuple | set | frozenset):
        return dict(enumerate(container)) if len(container) <= _MOST else {}
    return None


def _state_of_parts(parts: Any, visited: set[int]) -> Any:
    if not isinstance(parts, dict) or len(parts) > _MOST:
        return None
    return {key: _state_of_part(part, visited) for key, part in parts.items()}


def _checksum(array: Any, numpy: Any) -> int:
    is_mapped = isinstance(array, numpy.memmap) or isinstance(array.base, numpy.memmap)
    if is_mapped or array.dtype.hasobject:
        return 0
    step = 1 if array.nbytes <= _WHOLE_BYTES else max(1, array.size // _PLACES)
    return zlib.crc32(array.flat[::step].tobytes())
