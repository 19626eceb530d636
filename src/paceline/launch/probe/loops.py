"""What loops over DataLoaders show inside a rank: their first indices, and after how many batches they ended.

Only loops that train count: those whose batches come before a backward and a step of an optimizer. Nothing here is
done for a batch or a step: a loop is looked at when it begins, with its first batch, when it turns out to train,
and at its end. The sampler stays as lazy as it is, and its random numbers are drawn when they always were.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from paceline import pulse
from paceline.launch.probe import witness
from paceline.launch.probe.compiled import not_traced
from paceline.launch.probe.gradients import LocalGradients, losses_of
from paceline.launch.probe.orders import (
    FIRST,
    digest,
    fingerprint,
    is_mixed,
    means_to_shuffle,
    same_thing,
    whole_numbers,
)
from paceline.launch.probe.padding import Evaluations, padding_of

_ENOUGH = 16  # loops; a script that shuffled them all will shuffle the next, and one for each step has no time
_NEVER = sys.maxsize
_OF_LOOPS = (pulse.LOOPS, pulse.LOOP_BATCHES, pulse.FIRST_LOOP_BATCHES, pulse.BATCHES_BEFORE)
# Ranks that split one model take the same samples, and are right to.
_SPLIT_MODELS = ("torch.distributed.pipelining", "megatron.core")


class Loop:
    """One loop over a DataLoader.

    Attributes:
        begun: Batches that the rank had taken from all loaders when it began.
        due: At which number of batches, of all loaders, it is to be looked at again.
        length: Batches that its loader says it has; 0 if it does not, None before the first has come.
        trains: A step of an optimizer has followed one of its batches.
        has_ended: It has come to its loader's end, or is one that nobody follows.
        is_felt: A backward has followed one of its batches.
        is_published: What it shows was written down.
        padding: How its sampler pads, None if it does not.
        optimizer: What made the first step after one of its batches, weakly.
        yielded: Batches that it had yielded then.
        before: What the pulse said of loops before that, if it trained.
        indices: The first ones; None if they are not whole numbers, or there are none.
        is_known: No more of them will come.
        content: Hash of the first batch, 0 if it has too little to tell.
        sampler: What yields the indices, weakly.
        dataset: What is read, weakly; None if it cannot be referred to so.
        shuffles: Its order is meant to change.
    """

    __slots__ = (
        *("before", "begun", "content", "dataset", "due", "has_ended", "indices", "is_felt", "is_known"),
        *("is_published", "length", "optimizer", "padding", "sampler", "shuffles", "trains", "yielded"),
    )

    def __init__(self, sampler: Any = None, dataset: Any = None, *, due: int = _NEVER) -> None:
        self.due, self.yielded, self.content, self.begun = due, 0, 0, 0
        self.length: int | None = None
        self.trains = self.is_felt = self.is_known = self.has_ended = self.is_published = False
        self.optimizer: Any = None
        self.padding = padding_of(sampler)
        self.before: list[int] = []
        self.indices: list[int] | None = []
        self.sampler, self.dataset = _weakly(sampler), _weakly(dataset)
        self.shuffles = means_to_shuffle(sampler)

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
        self._training: Loop | None = None  # the one that began to train last
        self._published = 0  # training loops whose order is known
        self._before: tuple[Loop, int] | None = None  # the last of them, and its order
        self.gradients: LocalGradients | None = None  # while they are sampled
        self._evaluations = Evaluations(slot)

    def begin(self, iterator: Any) -> None:
        """Follow the loop that a DataLoader's iterator begins."""
        from torch.utils.data.dataloader import _DatasetKind

        self.settle()
        if iterator._dataset_kind != _DatasetKind.Map:
            iterator._paceline_loop = Loop()
        elif self._published >= _ENOUGH:
            iterator._paceline_loop = Loop(due=0)
        else:
            iterator._paceline_loop = loop = Loop(iterator._index_sampler, iterator._dataset, due=0)
            iterator._sampler_iter = self._noting(iterator._sampler_iter, loop)
        iterator._paceline_loop.begun = self._slot[pulse.BATCHES]

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

    def look(self, loop: Loop, iterator: Any, batch: Any, *, batches: int) -> None:
        """Look at a loop with its first batch, and with its last: not everybody asks for one more.

        Args:
            loop: The loop.
            iterator: The iterator that it goes over.
            batch: The batch that it has just yielded.
            batches: Batches that the rank has taken from all loaders.
        """
        if loop.length is None:
            loop.length = _length(iterator)
            if self._published == 0:
                loop.content = fingerprint(batch)
        elif loop.has_ended:
            self._take_back(loop)  # the length was a guess
        left = loop.length - iterator._num_yielded
        loop.due = batches + left if left > 0 else _NEVER
        if left == 0:
            self.end(loop, yielded=loop.length, batches=batches)
            loop.due = 0

    def train(self, loop: Loop, optimizer: Any) -> None:
        """Learn that a loop's batch was followed by a step.

        Args:
            loop: The loop.
            optimizer: What made the step; None if that is not known.
        """
        if not loop.trains:
            loop.trains = True
            loop.optimizer = _weakly(optimizer)
            self._evaluations.exclude(loop.dataset)
            self._slot[pulse.LOOP_LENGTH] = loop.length or 0
            yielded = loop.yielded
            if yielded:  # it had yielded its last batch before anybody knew
                self._take_back(loop)
            self._count_from(loop)
            if yielded:
                self.end(loop, yielded=yielded, batches=self._slot[pulse.BATCHES])
            if self._published == 0 and _splits_model(optimizer):
                loop.content = 0
            self._publish(loop)

    def _count_from(self, loop: Loop) -> None:
        """Take off what other loops had taken before this one began, such as a sanity check that left its loader."""
        if self._training is None or self._training.has_ended:
            self._slot[pulse.BATCHES_BEFORE] = max(loop.begun, self._slot[pulse.BATCHES_BEFORE])
        self._training = loop

    def end(self, loop: Loop, *, yielded: int, batches: int) -> None:
        """Learn that a loop has come to its loader's end.

        Args:
            loop: The loop.
            yielded: Batches that it has yielded.
            batches: Batches that the rank has taken from all loaders.
        """
        slot = self._slot
        if loop.has_ended:
            return  # asked for a batch once more
        loop.has_ended, loop.yielded = True, yielded
        if not loop.trains:
            slot[pulse.BATCHES_BEFORE] += yielded
            self._evaluations.add(loop)
            return
        loop.before = [slot[place] for place in _OF_LOOPS]
        alone = batches - slot[pulse.BATCHES_BEFORE] == yielded
        slot[pulse.LOOP_BATCHES] = yielded if alone else -1
        if not slot[pulse.LOOPS]:
            slot[pulse.FIRST_LOOP_BATCHES] = slot[pulse.LOOP_BATCHES]
        slot[pulse.BATCHES_BEFORE] = batches
        slot[pulse.LOOPS] += 1

    def feel(self, loop: Loop) -> None:
        """Learn that a backward has followed a batch of another loop than the one before did."""
        self.settle()
        loop.is_felt = True

    def settle(self) -> None:
        """Judge the evaluation that ended last, before anything else begins."""
        if self._evaluations.pending is not None and os.getpid() == self._process:
            self._evaluations.settle(witness.entries)

    def _take_back(self, loop: Loop) -> None:
        """Let a loop not have ended."""
        if loop.before:
            for place, value in zip(_OF_LOOPS, loop.before, strict=True):
                self._slot[place] = value
        else:
            self._slot[pulse.BATCHES_BEFORE] -= loop.yielded
        loop.has_ended, loop.before = False, []
        self._evaluations.pending = None
        self._slot[pulse.LOOP_LENGTH] = 0

    def _publish(self, loop: Loop) -> None:
        """Write what a loop shows, once it is known that it trains and in which order."""
        if loop.is_published or not (loop.trains and loop.is_known) or os.getpid() != self._process:
            return  # a forked child, such as a loader's worker, shares the memory
        loop.is_published = True
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
            optimizer = loop.optimizer and loop.optimizer()
            if optimizer is not None:
                self.gradients = LocalGradients(optimizer)

    def sample(
        self, gradients: LocalGradients, backward: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Make a backward and sample its local gradients, unless other ranks are known to read other samples."""
        is_outermost = not gradients.is_under_way
        if is_outermost and pulse.others_read_other_data(self._slot[pulse.DATA_HASH]):
            self.gradients = None
        elif is_outermost:
            gradients.begin()
        try:
            backward(*args, **kwargs)
        finally:
            if is_outermost:
                gradients.end(losses_of(*args, **kwargs))

    def end_step(self, gradients: LocalGradients) -> None:
        """Write what a few steps have computed, once it is complete."""
        if gradients.has_failed:
            self.gradients = None
        elif gradients.is_complete:
            self.gradients = None
            self._slot[pulse.WORK_HASH] = gradients.digest(witness.entries)

    def _compare(self, loop: Loop, order: int, count: int) -> None:
        if self._before is None or self._slot[pulse.SAME_ORDER]:
            return
        before, order_before = self._before
        if order != order_before or not loop.shuffles or not is_mixed(loop.indices or []):
            return
        if _same_source(loop, before) and same_thing(loop.optimizer, before.optimizer):
            self._slot[pulse.ORDER_INDICES] = count
            self._slot[pulse.SAME_ORDER] = self._published


def watch(iterators: Any, loops: Loops) -> Callable[[], None]:
    """Let ``loops`` follow every iterator of torch's DataLoader; return a function that ends it.

    Args:
        iterators: ``torch.utils.data.dataloader._BaseDataLoaderIter``.
        loops: The rank's.
    """
    make, reset = iterators.__init__, iterators._reset
    atexit.register(loops.settle)

    def followed_make(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        loops.begin(self)

    def followed_reset(self: Any, *args: Any, **kwargs: Any) -> None:
        reset(self, *args, **kwargs)
        loops.begin(self)

    iterators.__init__, iterators._reset = not_traced(followed_make), not_traced(followed_reset)
    iterators._paceline_loop = outside = Loop()  # of iterators that were made before, or go around both
    outside.has_ended = True

    def end() -> None:
        atexit.unregister(loops.settle)
        iterators.__init__, iterators._reset = make, reset
        del iterators._paceline_loop

    return end


def _length(iterator: Any) -> int:
    """Return how many batches a loader says it has, 0 if it does not."""
    try:
        return len(iterator._index_sampler)
    except Exception:
        return 0  # a sampler may not know


def _in_group() -> bool:
    """Return whether this rank belongs to a group of several that share no model among fewer of them."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return False
    if not witness.averages_gradients():
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
    groups = getattr(optimizer, "param_groups", ())
    return any(isinstance(each, kind) for group in groups for each in group["params"])


def _same_source(one: Loop, other: Loop) -> bool:
    """Return whether two loops read with the same sampler, or from the same dataset."""
    return same_thing(one.sampler, other.sampler) or same_thing(one.dataset, other.dataset)


def _weakly(thing: Any) -> Any:
    try:
        return None if thing is None else weakref.ref(thing)
    except TypeError:
        return None
