"""What loops over DataLoaders show inside a rank: their first indices, and after how many batches they ended.

Only loops that train count: those whose batches come before a backward and a step of an optimizer. Nothing here is
done for a batch or a step: a loop is looked at when it begins, with its first batch, when it turns out to train,
and at its end. The sampler stays as lazy as it is, and its random numbers are drawn when they always were.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline import pulse

FIRST = 64  # indices that tell one order from another
_SAMPLED = 256  # values of a tensor that tell one batch from another
_DISTINCT = 3  # with fewer values, two batches may well look alike
# Ranks that split one model take the same samples, and are right to.
_SPLIT_MODELS = ("torch.distributed.pipelining", "torch.distributed.tensor.experimental", "megatron.core")


class Loop:
    """One loop over a DataLoader.

    Attributes:
        is_new: Its first batch has not come yet.
        trains: A step of an optimizer has followed one of its batches.
        indices: The first ones; None if they are not whole numbers, or there are none.
        is_known: No more of them will come.
        content: Hash of the first batch, 0 if it has too little to tell.
        sampler: What yields the indices, weakly.
        dataset: What is read, weakly; None if it cannot be referred to so.
        shuffles: Its order is meant to change.
    """

    __slots__ = ("content", "dataset", "indices", "is_known", "is_new", "sampler", "shuffles", "trains")

    def __init__(self, sampler: Any = None, dataset: Any = None, *, is_new: bool = False) -> None:
        self.is_new, self.trains, self.is_known, self.content = is_new, False, False, 0
        self.indices: list[int] | None = []
        self.sampler, self.dataset = _weakly(sampler), _weakly(dataset)
        self.shuffles = is_new and means_to_shuffle(sampler)

    def take(self, asked: Any) -> None:
        """Note the indices of a batch."""
        if self.indices is not None:
            taken = whole_numbers(asked)
            self.indices = None if taken is None else [*self.indices, *taken][:FIRST]
        self.is_known = self.indices is None or len(self.indices) >= FIRST


class Loops:
    """The loops of this rank, what they show written into its pulse.

    Args:
        slot: The rank's pulse.
    """

    def __init__(self, slot: memoryview[int]) -> None:
        self._slot = slot
        self._process = os.getpid()
        self._published = 0  # training loops whose order is known
        self._before: tuple[Loop, int] | None = None  # the last of them, and its order

    def begin(self, iterator: Any) -> None:
        """Follow the loop that a DataLoader's iterator begins."""
        from torch.utils.data.dataloader import _DatasetKind

        if iterator._dataset_kind != _DatasetKind.Map:
            iterator._paceline_loop = Loop()
            return
        loop = Loop(iterator._index_sampler, iterator._dataset, is_new=True)
        iterator._paceline_loop = loop
        iterator._sampler_iter = self._noting(iterator._sampler_iter, loop)

    def _noting(self, indices: Iterator[Any], loop: Loop) -> Iterator[Any]:
        """Yield what a sampler yields; when enough is known of its order, stand aside."""
        try:
            for asked in indices:
                loop.take(asked)
                yield asked
                if loop.is_known:
                    break
        finally:  # it has ended, or was left
            loop.is_known = True
            self._publish(loop)
        yield from indices

    def meet(self, loop: Loop, batch: Any) -> None:
        """See the first batch of a loop."""
        loop.is_new = False
        if self._published == 0:
            loop.content = fingerprint(batch)

    def train(self, loop: Loop, optimizer: Any) -> None:
        """Learn that a loop's batch was followed by a step."""
        if not loop.trains:
            loop.trains = True
            if self._published == 0 and _splits_model(optimizer):
                loop.content = 0
            self._publish(loop)

    def end(self, loop: Loop, *, yielded: int, batches: int) -> None:
        """Learn that a loop has come to its loader's end.

        Args:
            loop: The loop.
            yielded: Batches that it has yielded.
            batches: Batches that the rank has taken from all loaders.
        """
        slot = self._slot
        if not loop.trains:
            slot[pulse.BATCHES_BEFORE] += yielded
            return
        alone = batches - slot[pulse.BATCHES_BEFORE] == yielded
        slot[pulse.LOOP_BATCHES] = yielded if alone else -1
        if not slot[pulse.LOOPS]:
            slot[pulse.FIRST_LOOP_BATCHES] = slot[pulse.LOOP_BATCHES]
        slot[pulse.BATCHES_BEFORE] = batches
        slot[pulse.LOOPS] += 1

    def _publish(self, loop: Loop) -> None:
        """Write what a loop shows, once it is known that it trains and in which order."""
        if not (loop.trains and loop.is_known) or os.getpid() != self._process:
            return  # a forked child, such as a loader's worker, shares the memory
        indices = loop.indices
        if not indices:
            return
        order = digest(indices)
        self._published += 1
        self._write_data(loop, order, len(indices))
        self._compare(loop, order, len(indices))
        self._before = (loop, order)

    def _write_data(self, loop: Loop, order: int, count: int) -> None:
        if self._published == 1 and loop.content and _in_group():
            self._slot[pulse.DATA_INDICES] = count
            self._slot[pulse.DATA_HASH] = digest([order, loop.content])

    def _compare(self, loop: Loop, order: int, count: int) -> None:
        if self._before is None or self._slot[pulse.SAME_ORDER]:
            return
        before, order_before = self._before
        if order == order_before and loop.shuffles and is_mixed(loop.indices or []) and _same_source(loop, before):
            self._slot[pulse.ORDER_INDICES] = count
            self._slot[pulse.SAME_ORDER] = self._published


def watch(iterators: Any, loops: Loops) -> Callable[[], None]:
    """Let ``loops`` follow every iterator of torch's DataLoader; return a function that ends it.

    Args:
        iterators: ``torch.utils.data.dataloader._BaseDataLoaderIter``.
        loops: The rank's.
    """
    make, reset = iterators.__init__, iterators._reset

    def followed_make(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        loops.begin(self)

    def followed_reset(self: Any, *args: Any, **kwargs: Any) -> None:
        reset(self, *args, **kwargs)
        loops.begin(self)

    iterators.__init__, iterators._reset = followed_make, followed_reset
    iterators._paceline_loop = Loop()  # of iterators that were made before, or go around both

    def end() -> None:
        iterators.__init__, iterators._reset = make, reset
        del iterators._paceline_loop

    return end


def digest(numbers: list[int]) -> int:
    """Return 64 bits, signed and never 0, that stand for a list of numbers, the same in every process."""
    return _hash(repr(numbers))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True) or 1


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


def _in_group() -> bool:
    """Return whether this rank belongs to a group of several that share no model among fewer of them."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return False
    size = distributed.get_world_size()
    groups = getattr(getattr(distributed, "_world", None), "pg_group_ranks", {})
    return size > 1 and all(len(ranks) in (1, size) for ranks in groups.values())


def _splits_model(optimizer: Any) -> bool:
    """Return whether parameters are, or may be, split among ranks."""
    if any(name in sys.modules for name in _SPLIT_MODELS):
        return True
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    kind = getattr(tensors, "DTensor", ())
    return any(isinstance(each, kind) for group in optimizer.param_groups for each in group["params"])


def _same_source(one: Loop, other: Loop) -> bool:
    """Return whether two loops read with the same sampler, or from the same dataset."""
    pairs = ((one.sampler, other.sampler), (one.dataset, other.dataset))
    return any(a is not None and b is not None and a() is b() and a() is not None for a, b in pairs)


def _weakly(thing: Any) -> Any:
    try:
        return None if thing is None else weakref.ref(thing)
    except TypeError:
        return None
