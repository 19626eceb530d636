"""Arrays in memory as a dataset, and their batches for a loop without a session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from paceline.errors import UsageError, option_invalid
from paceline.train import runtime
from paceline.train.data import node_memory
from paceline.train.data.batch import moved
from paceline.train.data.counter_random import SampleRandom
from paceline.train.data.order import StoredOrder, blocks, derive, shuffled
from paceline.train.data.share import LAST, EvenBatches, Shard
from paceline.train.data.transforms import Transform

_WHERE = "paceline.data.arrays(...)"
_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
_LAYOUTS = (None, "first", "last")
_NUMBERS = "biufc"  # kinds of NumPy types: booleans, integers, floats, complex numbers

# Indices of the samples, which remain a NumPy array on the CPU, then their rows of each array.
Raw = list[Any]


def arrays(
    *fields: Any,
    transform: Transform | Sequence[Transform] = (),
    channels: str | None = None,
) -> ArrayDataset:
    """Return a dataset of arrays with one row for each sample, such as images and labels.

    Pass it to ``session.loader``, the Trainer or torch's DataLoader, or iterate its ``batches``.
    Nothing is copied, except that the ranks of a node share one copy of equal arrays. ::

        train_set = arrays(
            images,
            labels,
            transform=[RandomCrop(32, padding=4), RandomFlip(), Normalize(mean, std)],
        )
        train = session.loader(train_set, batch_size=512, shuffle=True)

    Args:
        *fields: NumPy arrays, memory maps (``numpy.load(path, mmap_mode="r")``), tensors on the
            CPU, or lists of numbers, all of the same length.
        transform: One function or several, applied to the rows of the first array in this order.
            Each takes a tensor with the rows of a batch and a ``SampleRandom``, and returns a
            tensor.
        channels: Which axis of the images has the channels: ``"first"`` for
            ``[samples, channels, height, width]``, ``"last"`` for ``[samples, height, width,
            channels]``, of which transforms get ``[batch, channels, height, width]``. By default
            the axis that has 1, 3 or 4 entries. Without a transform rows are returned as stored.

    Raises:
        UsageError: The arrays differ in length, are of no numeric type, are not on the CPU, or the
            axis of the channels is unknown.
    """
    if not fields:
        raise _invalid("arrays() has no array", fix="arrays(images, labels)")
    transforms = (transform,) if callable(transform) else tuple(transform)
    for function in transforms:
        if not callable(function):
            raise _invalid(
                f"transform={function!r} is not a function of a batch and its random numbers",
                fix="transform=[RandomFlip(), Normalize(mean, std)]",
            )
    return ArrayDataset([_Field(field) for field in fields], transforms, channels)


class ArrayDataset(Dataset[tuple[torch.Tensor, ...]]):
    """Arrays in memory, made by ``arrays``.

    Read by index, its random numbers depend on torch's global generator, as those of other
    datasets. ``session.loader`` and ``batches`` read whole batches, whose random numbers are a
    function of seed, epoch and index.

    Args:
        fields: The arrays.
        transforms: Functions that transform the rows of the first array.
        channels: ``"first"``, ``"last"``, or None to derive it from the shape.
    """

    def __init__(
        self, fields: list[_Field], transforms: tuple[Transform, ...], channels: str | None
    ) -> None:
        self._fields, self._transforms = fields, transforms
        lengths = [len(field.array) for field in fields]
        if len(set(lengths)) > 1:
            raise _invalid(
                f"the arrays have different lengths: {', '.join(map(str, lengths))}",
                fix="arrays(images, labels), with a label for each image",
            )
        shape = fields[0].array.shape
        self._moves_channels = _has_channels_last(shape, channels) if transforms else False
        self.share_memory()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._fields[0].array)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        """Return the rows of a sample, transformed."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        """Return the samples of a batch, as torch's DataLoader asks for them."""
        key = int(torch.randint(1 << 62, ())) if self._transforms else 0
        return list(zip(*self.finish(self.gather(indices), key), strict=True))

    def gather(self, indices: Sequence[int]) -> Raw:
        """Return the indices, and the rows of all arrays as they are stored."""
        places = np.asarray(indices, dtype=np.int64)
        return [places, *(field.rows(places) for field in self._fields)]

    def finish(self, raw: Raw, key: int) -> list[torch.Tensor]:
        """Return what ``gather`` returned as a batch, transformed on the device where it is.

        Args:
            raw: What ``gather`` has returned, on any device.
            key: Number from the seed and the epoch, see ``key_of``.
        """
        indices, images, *others = raw
        if not self._transforms:
            return [images, *others]
        if self._moves_channels:
            images = images.permute(0, 3, 1, 2).contiguous()
        random = SampleRandom(indices, key, images.device)
        for transform in self._transforms:
            images = transform(images, random)
        return [images, *others]

    def batches(self, batch_size: int, **options: Any) -> ArrayBatches:
        """Return the batches of all epochs, for a loop without a session.

        Args:
            batch_size: Samples in a batch, on all ranks together.
            **options: As for ``ArrayBatches``: ``shuffle``, ``seed``, ``last``, ``device``,
                ``rank``, ``world_size``.
        """
        return ArrayBatches(self, batch_size, **options)

    def share_memory(self) -> None:
        """Share equal arrays with the other ranks of this node, if there is a process group.

        ``arrays`` and ``session.loader`` call it, so it takes effect as soon as one of them comes
        after ``init_process_group``.
        """
        for field in self._fields:
            field.share()

    @property
    def stored(self) -> list[np.ndarray]:
        """The arrays as they are stored; those that ranks share are read-only."""
        return [field.array for field in self._fields]

    def fingerprint(self) -> tuple[int, str]:
        """Return a value that is equal for equal arrays, and usually differs for others."""
        places = (0, len(self) // 2, -1) if len(self) else ()
        values = b"".join(array[place].tobytes() for array in self.stored for place in places)
        return len(self), hashlib.blake2b(values, digest_size=8).hexdigest()


class _Field:
    """One array with a row for each sample: NumPy's, a tensor, or a sequence of numbers."""

    def __init__(self, values: Any) -> None:
        if isinstance(values, torch.Tensor):
            self.array, self._dtype = _of_tensor(values)
        else:
            # asarray makes a memory map a plain view of it, whose rows are plain arrays.
            self.array = np.asarray(values)
            _check_type(self.array)
            self._dtype = None

    def rows(self, places: np.ndarray) -> torch.Tensor:
        """Return a copy of some rows, as a tensor."""
        # NumPy copies whole rows; torch's indexing copies element by element, in six times the
        # time.
        rows = torch.from_numpy(self.array.take(places, axis=0))
        return rows if self._dtype is None else rows.view(self._dtype)

    def share(self) -> None:
        """Share the array with the other ranks of this node."""
        self.array = node_memory.shared(self.array)


def _of_tensor(tensor: torch.Tensor) -> tuple[np.ndarray, torch.dtype | None]:
    """Return a tensor as an array, and the tensor's type if NumPy does not have it."""
    if tensor.device.type != "cpu":
        raise _invalid(
            f"a tensor is on {tensor.device}; arrays are held in the memory of the node",
            fix="arrays(images.cpu(), labels.cpu()): batches are moved to the device",
        )
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy(), tensor.dtype
    return tensor.numpy(), None


def _check_type(array: np.ndarray) -> None:
    if array.ndim == 0 or array.dtype.kind not in _NUMBERS:
        raise _invalid(
            f"an array of type {array.dtype} and shape {list(array.shape)} has no row of numbers"
            " for each sample",
            fix="arrays(images, labels), NumPy arrays or tensors of numbers of one length",
        )


def _has_channels_last(shape: tuple[int, ...], channels: str | None) -> bool:
    """Return whether the last axis of an array of images has the channels."""
    if channels not in _LAYOUTS:
        raise _invalid(f"channels={channels!r} is not one of first, last", fix='channels="last"')
    if channels is not None:
        return channels == "last"
    if len(shape) != 4:
        return False
    may_be_first, may_be_last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if may_be_first and may_be_last:
        raise _invalid(
            f"images of shape {list(shape)} may have their channels first or last",
            fix='arrays(..., channels="first"), or channels="last"',
        )
    return may_be_last


class ArrayReader:
    """Reads the batches of an epoch for a loader."""

    def __init__(
        self,
        dataset: ArrayDataset,
        # indices into the arrays, or into the next subset's; the outermost first
        subsets: Sequence[Sequence[int]],
        *,
        seed: int,
        finishes: bool,  # transform the rows, which else ``finished`` does on the device
        splits: bool,  # return a list of samples, for a collate function
    ) -> None:
        self._dataset, self._subsets, self._seed = dataset, subsets, seed
        self._finishes, self._splits = finishes or splits, splits

    def __call__(self, epoch: int, indices: list[int]) -> list[Any]:
        """Return some samples of an epoch."""
        for subset in self._subsets:
            indices = [subset[index] for index in indices]
        raw = self._dataset.gather(indices)
        if not self._finishes:
            return raw
        batch = self._dataset.finish(raw, key_of(self._seed, epoch))
        return list(zip(*batch, strict=True)) if self._splits else batch

    def finished(self, epoch: int, batch: list[Any]) -> list[Any]:
        """Return a batch that ``__call__`` has returned, transformed where it is now."""
        if self._finishes:
            return batch
        return self._dataset.finish(batch, key_of(self._seed, epoch))


def key_of(seed: int, epoch: int) -> int:
    """Return the key of the samples' random numbers in an epoch."""
    return derive("arrays", seed, epoch)


def base_of(dataset: Any) -> tuple[ArrayDataset, list[Sequence[int]]] | None:
    """Return the arrays that a dataset reads, and the indices of the subsets around them.

    The outermost subset is first; None if the dataset does not only read from arrays. A ``Subset``,
    as ``random_split`` makes it, leads to the dataset inside; a class derived from it may change
    samples.
    """
    subsets = []
    while type(dataset) is Subset:
        subsets.append(dataset.indices)
        dataset = dataset.dataset
    return (dataset, subsets) if type(dataset) is ArrayDataset else None


def _invalid(what: str, *, fix: str) -> UsageError:
    return option_invalid(what, where=_WHERE, fix=fix)


_BATCHES = "ArrayDataset.batches(...)"


class ArrayBatches:
    """This rank's batches of a dataset of arrays; each loop over it is the next epoch.

    The global batches are those of ``session.loader``, in the same order. Ranks get shares that
    differ by one row at most, and DistributedDataParallel averages their gradients with equal
    weight; ``session.backward`` would weight them by rows.

    Args:
        dataset: The arrays.
        batch_size: Samples in a batch, on all ranks together.
        shuffle: Whether each epoch has another order; default False.
        seed: Seed of the order and of the samples' random numbers; default 0.
        last: ``"exact"`` (default) yields a shorter last batch, ``"drop"`` leaves it out.
        device: Device of the batches, where they are transformed too; default the CPU.
        rank: This rank; default that of the process group, 0 without one.
        world_size: Number of ranks; default that of the process group, 1 without one.

    Raises:
        UsageError: An argument is invalid, or the last batch has fewer rows than there are ranks.
    """

    def __init__(
        self,
        dataset: ArrayDataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        last: str = "exact",
        device: torch.device | str = "cpu",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.dataset, self._shuffle, self._seed = dataset, shuffle, seed
        self._rank = runtime.rank() if rank is None else rank
        self._world_size = runtime.num_ranks() if world_size is None else world_size
        self._batch_size, self._last, self._device = batch_size, last, torch.device(device)
        self._check_arguments()
        dataset.share_memory()
        self._next = self._position = (0, 0)  # epoch, and samples of it that were served before

    def __len__(self) -> int:
        """Number of batches in a whole epoch, the same on all ranks."""
        return len(self._batches(0))

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        """Yield the batches of the next epoch, or the rest of the checkpoint's epoch."""
        epoch, start = self._next
        self._next = (epoch + 1, 0)
        key = derive("arrays", self._seed, epoch)
        shard = Shard(self._batches(start), self._rank, self._world_size)
        raw = map(self.dataset.gather, blocks(self._order(epoch), shard.read()))
        for number, rows in enumerate(moved(raw, self._device)):
            batch = self.dataset.finish(rows, key)
            self._position = (epoch, shard.batches.span(number).stop)
            yield batch
        self._position = (epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next loop at the start of an epoch; epochs also advance automatically."""
        self._next = self._position = (epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch: epoch and samples done, for any world size."""
        epoch, done = self._position
        return {"epoch": epoch, "done": done, "length": len(self.dataset)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` returned.

        Raises:
            UsageError: The position is in an epoch of another number of samples.
        """
        if state["done"] and state["length"] != len(self.dataset):
            raise UsageError.of(
                "data-changed",
                f"the position is after {state['done']} of {state['length']} samples of an"
                f" epoch, and these arrays have {len(self.dataset)}",
                where="load_state_dict(...)",
                why="the remaining samples would differ from those that remained then",
                fix="train on the same data, or load a position at the end of an epoch",
            )
        self._next = self._position = (state["epoch"], state["done"])

    def _batches(self, start: int) -> EvenBatches:
        return EvenBatches(len(self.dataset), self._batch_size, self._last, start)

    def _order(self, epoch: int) -> Any:
        length = len(self.dataset)
        if self._shuffle:
            return shuffled(length, seed=self._seed, epoch=epoch)
        return StoredOrder(range(length))

    def _check_arguments(self) -> None:
        size = self._batch_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise _invalid_batches(f"batch_size={size!r} is not a positive int")
        if self._last not in LAST:
            raise _invalid_batches(f"last={self._last!r} is not one of {', '.join(LAST)}")
        if not 0 <= self._rank < self._world_size:
            raise _invalid_batches(f"rank={self._rank} is not one of {self._world_size} ranks")
        rest = len(self.dataset) % self._batch_size
        smallest = rest if rest and self._last == "exact" else self._batch_size
        if smallest < self._world_size:
            raise UsageError.of(
                "rows-too-few",
                f"a batch has {smallest} rows for {self._world_size} ranks",
                where=_BATCHES,
                why="a rank without a row cannot take part in averaging gradients",
                fix='batches(..., last="drop") with a batch size of at least the ranks; or'
                " session.loader(...), which gives such a rank a row without weight",
            )


def _invalid_batches(what: str) -> UsageError:
    return option_invalid(what, where=_BATCHES, fix="batches(batch_size=512)")
