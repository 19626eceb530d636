"""Follow loops over DataLoaders inside a rank: their first indices, and their numbers of batches.

Only training loops count: a backward and an optimizer step follow their batches. Nothing here runs
for every batch or step: a loop is examined when it begins, with its first batch, with its first
step, and at its end. The sampler stays lazy, and draws its random numbers at the same moments as
without the probe.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from paceline import counters
from paceline.launch.probe import stack_responder
from paceline.launch.probe.gradients import LocalGradients, losses_of
from paceline.launch.probe.orders import (
    FIRST,
    digest,
    fingerprint,
    is_mixed,
    means_to_shuffle,
    same_thing,
    size_of,
    whole_numbers,
)
from paceline.launch.probe.padding import Evaluations, padding_of
from paceline.launch.probe.splits import Splits, length_of
from paceline.machine.compiled import not_traced

# Loops. A script that shuffled them all will shuffle the next, and some begin a loop every step.
_ENOUGH = 16
_NEVER = sys.maxsize
_OF_LOOPS = (
    counters.LOOPS,
    counters.LOOP_BATCHES,
    counters.FIRST_LOOP_BATCHES,
    counters.BATCHES_BEFORE,
)
# Ranks that split one model correctly take the same samples.
_SPLIT_MODELS = ("torch.distributed.pipelining", "megatron.core")


class Loop:
    """One loop over a DataLoader."""

    __slots__ = (
        "batch_size",  # samples and tokens of its first batch; 0 if unknown
        "before",  # counters of loops before its end, if it trained
        "begun",  # batches that the rank had taken from all loaders when the loop began
        "content",  # hash of the first batch, 0 if it has too few distinct values
        "dataset",  # weak reference; None if it does not allow one
        "due",  # number of batches, of all loaders, at which the loop is examined again
        "has_ended",  # it has reached its loader's end, or is not followed
        "indices",  # the first ones; None if they are not integers
        "is_felt",  # a backward has followed one of its batches
        "is_known",  # ``indices`` is complete
        "is_published",  # its order was written to the counters
        "length",  # of the loader in batches; 0 if it has none, None before the first batch
        "optimizer",  # weak reference to that of the first step after one of its batches
        "padding",  # how its sampler pads, None if it does not
        "sampler",  # weak reference to the one that yields the indices
        "shuffles",  # its order is meant to change
        "trains",  # an optimizer step has followed one of its batches
        "yielded",  # batches that it had yielded at its end
    )

    def __init__(self, sampler: Any = None, dataset: Any = None, *, due: int = _NEVER) -> None:
        self.due, self.yielded, self.content, self.begun = due, 0, 0, 0
        self.length: int | None = None
        self.batch_size = (0, 0)
        self.trains = self.is_felt = self.is_known = self.has_ended = self.is_published = False
        self.optimizer: Any = None
        self.padding = padding_of(sampler)
        self.before: list[int] = []
        self.indices: list[int] | None = []
        self.sampler, self.dataset = _weakly(sampler), _weakly(dataset)
        self.shuffles = means_to_shuffle(sampler)

    def take(self, requested: Any) -> None:
        """Record the indices of a batch."""
        if self.indices is not None:
            numbers = whole_numbers(requested)
            self.indices = None if numbers is None else [*self.indices, *numbers][:FIRST]
        self.is_known = self.indices is None or len(self.indices) >= FIRST


class Loops:
    """The loops of this rank; writes what they show to the rank's counters."""

    def __init__(self, slot: memoryview[int]) -> None:
        self._slot = slot
        self._process = os.getpid()
        self._training: Loop | None = None  # the loop that began to train last
        self._published = 0  # training loops whose order is known
        self._before: tuple[Loop, int] | None = None  # the last of them, and its order
        self.gradients: LocalGradients | None = None  # while they are sampled
        self.evaluations = Evaluations(slot)
        self._splits = Splits(slot)

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
            if self.evaluations.is_one(iterator._dataset):
                self._splits.evaluate(iterator._dataset)
        iterator._paceline_loop.begun = self._slot[counters.BATCHES]

    def _noting(self, indices: Iterator[Any], loop: Loop) -> Iterator[Any]:
        """Yield the requests of a sampler, and record its first indices."""
        try:
            for requested in indices:
                loop.take(requested)
                yield requested
                if loop.is_known:
                    break
        finally:  # the loop has ended, or was left early
            loop.is_known = True
            self._publish(loop)
        yield from indices

    def look(self, loop: Loop, iterator: Any, batch: Any, *, batches: int) -> None:
        """Examine a loop at its first batch and at its last: some scripts do not request the end.

        ``batches`` is how many the rank has taken from all loaders.
        """
        if loop.length is None:
            loop.length = length_of(iterator._index_sampler)
            loop.batch_size = size_of(batch)
            if self._published == 0:
                loop.content = fingerprint(batch)
        elif loop.has_ended:
            self._take_back(loop)  # the length was a guess
        remaining = loop.length - iterator._num_yielded
        loop.due = batches + remaining if remaining > 0 else _NEVER
        if remaining == 0:
            self.end(loop, yielded=loop.length, batches=batches)
            loop.due = 0

    def train(self, loop: Loop, optimizer: Any) -> None:
        """Record that an optimizer step has followed a batch of a loop."""
        if not loop.trains:
            loop.trains = True
            loop.optimizer = _weakly(optimizer)
            self.evaluations.exclude(loop.dataset)
            if loop.dataset is not None and loop.sampler is not None:
                self._splits.train(loop.dataset(), loop.sampler())
            self._slot[counters.LOOP_LENGTH] = loop.length or 0
            self._slot[counters.BATCH_SAMPLES], self._slot[counters.BATCH_TOKENS] = loop.batch_size
            yielded = loop.yielded
            if yielded:  # it had yielded its last batch before the first step
                self._take_back(loop)
            self._count_from(loop)
            if yielded:
                self.end(loop, yielded=yielded, batches=self._slot[counters.BATCHES])
            if self._published == 0 and _splits_model(optimizer):
                loop.content = 0
            self._publish(loop)

    def _count_from(self, loop: Loop) -> None:
        """Leave out batches that other loops took before this one, such as a sanity check."""
        if self._training is None or self._training.has_ended:
            self._slot[counters.BATCHES_BEFORE] = max(
                loop.begun, self._slot[counters.BATCHES_BEFORE]
            )
        self._training = loop

    def end(self, loop: Loop, *, yielded: int, batches: int) -> None:
        """Record that a loop has reached its loader's end; ``batches`` are those of all loaders."""
        slot = self._slot
        if loop.has_ended:
            return  # the end was requested again
        loop.has_ended, loop.yielded = True, yielded
        if not loop.trains:
            slot[counters.BATCHES_BEFORE] += yielded
            self.evaluations.add(loop)
            return
        loop.before = [slot[place] for place in _OF_LOOPS]
        alone = batches - slot[counters.BATCHES_BEFORE] == yielded
        slot[counters.LOOP_BATCHES] = yielded if alone else -1
        if not slot[counters.LOOPS]:
            slot[counters.FIRST_LOOP_BATCHES] = slot[counters.LOOP_BATCHES]
        slot[counters.BATCHES_BEFORE] = batches
        slot[counters.LOOPS] += 1

    def feel(self, loop: Loop) -> None:
        """Record that a backward has followed a batch of this loop, after one of another loop."""
        self.settle()
        loop.is_felt = True

    def settle(self) -> None:
        """Check the last evaluation for padding, before anything else begins."""
        if self.evaluations.pending is not None and os.getpid() == self._process:
            self.evaluations.settle(stack_responder.entries)

    def _take_back(self, loop: Loop) -> None:
        """Undo ``end``: the loop continues."""
        if loop.before:
            for place, value in zip(_OF_LOOPS, loop.before, strict=True):
                self._slot[place] = value
        else:
            self._slot[counters.BATCHES_BEFORE] -= loop.yielded
        loop.has_ended, loop.before = False, []
        self.evaluations.pending = None
        self._slot[counters.LOOP_LENGTH] = 0

    def _publish(self, loop: Loop) -> None:
        """Write the order of a loop to the counters, once it trains and its indices are known."""
        is_ready = loop.trains and loop.is_known
        if loop.is_published or not is_ready:
            return
        if os.getpid() != self._process:
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
            self._slot[counters.DATA_INDICES] = count
            self._slot[counters.DATA_HASH] = digest([order, loop.content])
            optimizer = loop.optimizer and loop.optimizer()
            if optimizer is not None:
                self.gradients = LocalGradients(optimizer)

    def sample(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run a backward and sample its local gradients, unless other ranks read other samples."""
        gradients = self.gradients
        if gradients is None:
            backward(*args, **kwargs)
            return
        is_outermost = not gradients.is_under_way
        if is_outermost and counters.others_read_other_data(self._slot[counters.DATA_HASH]):
            self.gradients = None
        elif is_outermost:
            gradients.begin()
        try:
            backward(*args, **kwargs)
        finally:
            if is_outermost:
                gradients.end(losses_of(*args, **kwargs))

    def end_step(self, gradients: LocalGradients) -> None:
        """Write the digest of the sampled steps to the counters, once it is complete."""
        if gradients.has_failed:
            self.gradients = None
        elif gradients.is_complete:
            self.gradients = None
            self._slot[counters.WORK_HASH] = gradients.digest(stack_responder.entries)

    def _compare(self, loop: Loop, order: int, count: int) -> None:
        if self._before is None or self._slot[counters.SAME_ORDER]:
            return
        before, order_before = self._before
        is_shuffled = loop.shuffles and is_mixed(loop.indices or [])
        if order != order_before or not is_shuffled:
            return
        is_same_sampler = same_thing(loop.sampler, before.sampler)
        is_same_source = is_same_sampler or same_thing(loop.dataset, before.dataset)
        if is_same_source and same_thing(loop.optimizer, before.optimizer):
            self._slot[counters.ORDER_INDICES] = count
            self._slot[counters.SAME_ORDER] = self._published


def watch(iterators: Any, loops: Loops) -> Callable[[], None]:
    """Make ``loops`` follow every iterator of a DataLoader; return a function that ends it."""
    make, reset = iterators.__init__, iterators._reset
    atexit.register(loops.settle)

    def followed_make(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        loops.begin(self)

    def followed_reset(self: Any, *args: Any, **kwargs: Any) -> None:
        reset(self, *args, **kwargs)
        loops.begin(self)

    iterators.__init__, iterators._reset = not_traced(followed_make), not_traced(followed_reset)
    # for iterators that were created before this call, or by other means
    iterators._paceline_loop = outside = Loop()
    outside.has_ended = True

    def end() -> None:
        atexit.unregister(loops.settle)
        iterators.__init__, iterators._reset = make, reset
        del iterators._paceline_loop

    return end


def _in_group() -> bool:
    """Return whether this rank's group has several ranks, and no smaller group shares a model."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return False
    if not stack_responder.averages_gradients():
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
    return any(isinstance(parameter, kind) for group in groups for parameter in group["params"])


def _weakly(thing: Any) -> Any:
    try:
        return None if thing is None else weakref.ref(thing)
    except TypeError:
        return None
