"""Record loops over DataLoaders: which samples each rank reads, and whether it trains on them.

The sampler stays lazy: its requests are noted when torch asks for them, and written when their
batch is taken. A loop that begins without gradients is an evaluation; it is examined once more
when something else begins, since figures are combined after it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from paceline.launch.probe import stack_responder
from paceline.launch.probe.loader_maker import Maker
from paceline.launch.probe.orders import means_to_shuffle, row_hashes, size_of, whole_numbers
from paceline.launch.probe.padding import Padding, have_combined, is_scored_together
from paceline.launch.probe.record_file import RecordFile
from paceline.launch.probe.splits import length_of, traced
from paceline.machine.compiled import not_traced
from paceline.machine.parameters import modules

_MOST_ROWS = 4096  # samples of a rank whose content is hashed


class RecordedLoop:
    """One loop over a DataLoader."""

    def __init__(self, iterator: Any, *, place: str) -> None:
        from torch.utils.data.dataloader import _DatasetKind

        self.number = -1  # among the loops of this rank; -1 before its first batch
        # indices whose batches were not taken yet; None where they are not integers
        self.requests: deque[list[int] | None] = deque()
        self.is_stream = iterator._dataset_kind != _DatasetKind.Map
        self.sampler = iterator._index_sampler
        self.is_session = _is_of_session(iterator._dataset)  # which divides its samples
        self.dataset = iterator._dataset.dataset if self.is_session else iterator._dataset
        self.place, self.loader_place = place, ""  # lines of the script: of the loop, of its loader
        self.length = 0 if self.is_stream else length_of(self.sampler)  # in batches; 0 if unknown
        self.taken = self.samples = 0  # batches and samples
        self.work = 0  # backwards and optimizer steps before it
        # no batch was trained on; gradients were on at the first; a backward followed one; all were
        # taken; what followed an evaluation is written; the script has dropped repeated samples
        self.is_evaluation = self.has_gradients = self.trains = self.has_ended = self.is_settled = (
            self.trimmed
        ) = False
        self.since_ns = time.time_ns()


class LoopRecords:
    """The loops of this rank."""

    def __init__(
        self,
        file: RecordFile,
        place: Callable[[], str],  # the line of the script that runs, as ``train.py:24``
    ) -> None:
        self.file, self._place = file, place
        self._num_loops = 0
        self._rows_left = _MOST_ROWS
        # loop of which a batch was taken last; None before the first
        self.last: RecordedLoop | None = None
        self.training: RecordedLoop | None = None  # the same, among those with gradients
        self.taken_ns = 0  # when that batch was taken
        self._work = 0  # backwards and optimizer steps so far

    def begin(self, iterator: Any, loader: Any) -> None:
        """Follow the loop over a loader that an iterator begins."""
        iterator._paceline_record = loop = RecordedLoop(iterator, place=self._place())
        maker: Maker = getattr(loader, "_paceline_maker", Maker())
        loop.loader_place = maker.place
        if not loop.is_stream:
            iterator._sampler_iter = _noted(iterator._sampler_iter, loop)

    def take(self, loop: RecordedLoop | None, batch: Any) -> None:
        """Record a batch that a loop has yielded; None for one that began before the recorder."""
        if loop is None:
            return
        if loop.number < 0:
            self._open(loop)
        if loop is not self.last:
            self.settle()
        self.last = loop
        if loop.has_gradients:
            self.training, self.taken_ns = loop, time.time_ns()
        indices = loop.requests.popleft() if loop.requests else None
        loop.taken += 1
        size = len(indices) if indices is not None else size_of(batch)[0]
        loop.samples += size
        loop.has_ended = loop.taken == loop.length
        in_base = None if indices is None else traced(loop.dataset, indices)[1]
        rows = self._rows(loop, batch, size)
        self.file.write("batch", loop=loop.number, indices=in_base, samples=size, rows=rows)
        if loop.has_ended:
            self._write_end(loop)

    def _write_end(self, loop: RecordedLoop) -> None:
        """Record the end of a loop; one with gradients evaluates if nothing was trained in it."""
        is_quiet = loop.has_gradients and loop.work == self._work
        loop.is_evaluation |= is_quiet and any(not module.training for module in modules())
        self.file.write("end", loop=loop.number, is_evaluation=loop.is_evaluation)

    def _open(self, loop: RecordedLoop) -> None:
        import torch

        loop.number = self._num_loops
        self._num_loops += 1
        loop.has_gradients, loop.work = torch.is_grad_enabled(), self._work
        loop.is_evaluation = not loop.has_gradients
        _watch_trimming(self.trim)
        base, _ = traced(loop.dataset, ())
        self.file.write(
            "loop",
            loop=loop.number,
            place=loop.place,
            loader_place=loop.loader_place,
            dataset=type(base).__name__,
            dataset_length=length_of(base),
            view_length=length_of(loop.dataset),
            is_stream=loop.is_stream,
            is_session=loop.is_session,
            shuffles=not loop.is_stream and means_to_shuffle(loop.sampler),
            has_gradients=loop.has_gradients,
            num_batches=loop.length,
        )

    def _rows(self, loop: RecordedLoop, batch: Any, size: int) -> list[list[int]]:
        if not loop.has_gradients or not 0 < size <= self._rows_left:
            return []
        self._rows_left -= size
        return row_hashes(batch, size)

    def end(self, loop: RecordedLoop | None) -> None:
        """Record that the end of a loop was requested."""
        if loop is not None and not loop.has_ended and loop.number >= 0:
            loop.has_ended = True
            self._write_end(loop)

    def feel(self) -> None:
        """Record that a backward begins."""
        self.settle()
        self.work()
        loop = self.training
        if loop is not None and not loop.trains:
            loop.trains = True
            self.file.write("trains", loop=loop.number)

    def work(self) -> None:
        """Note a backward or an optimizer step: an open loop with gradients is no evaluation."""
        self._work += 1

    def settle(self) -> None:
        """Record what has followed an evaluation, before something else begins."""
        loop = self.last
        if loop is None or loop.trains or loop.is_settled or not loop.has_ended:
            return
        loop.is_settled = True
        entries = stack_responder.entries()
        share = max(1, loop.samples)
        length = max(share, length_of(loop.dataset))
        whole = Padding(length, padded_length=0, share=share, since_ns=loop.since_ns)
        self.file.write(
            "settled",
            loop=loop.number,
            scored=is_scored_together(entries, whole),
            combined=have_combined(entries, since_ns=loop.since_ns),
            trimmed=loop.trimmed,
        )

    def evaluation(self) -> RecordedLoop | None:
        """Return the evaluation that has ended last, if nothing else has begun since."""
        loop = self.last
        if loop is None or not loop.is_evaluation or loop.trains or not loop.has_ended:
            return None
        return loop

    def trim(self) -> None:
        """Record that results were gathered without those of repeated samples."""
        if self.last is not None:
            self.last.trimmed = True


def watch(iterators: Any, records: LoopRecords) -> None:
    """Make ``records`` follow every iterator of torch's DataLoader."""
    make, reset, fetch = iterators.__init__, iterators._reset, iterators.__next__
    guarded = records.file.guarded
    begin, take, end = guarded(records.begin), guarded(records.take), guarded(records.end)

    def recorded_make(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        make(self, loader, *args, **kwargs)
        begin(self, loader)

    def recorded_reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        reset(self, loader, *args, **kwargs)
        begin(self, loader)

    def recorded_fetch(self: Any) -> Any:
        loop = self._paceline_record
        try:
            batch = fetch(self)
        except StopIteration:
            end(loop)
            raise
        take(loop, batch)
        return batch

    iterators._paceline_record = None  # of iterators that were created before
    iterators.__init__, iterators._reset = not_traced(recorded_make), not_traced(recorded_reset)
    iterators.__next__ = not_traced(recorded_fetch)


def _watch_trimming(note: Callable[[], None]) -> None:
    """Call ``note`` when accelerate gathers results, and drops what its sampler has repeated."""
    kind: Any = getattr(sys.modules.get("accelerate"), "Accelerator", None)
    gather = getattr(kind, "gather_for_metrics", None)
    if gather is None or hasattr(gather, "__wrapped__"):
        return

    @functools.wraps(gather)
    def noted_gather(*args: Any, **kwargs: Any) -> Any:
        note()
        return gather(*args, **kwargs)

    kind.gather_for_metrics = noted_gather


def _noted(indices: Iterator[Any], loop: RecordedLoop) -> Iterator[Any]:
    """Yield the requests of a sampler, and note them."""
    for requested in indices:
        samples = requested[1] if loop.is_session else requested
        loop.requests.append(whole_numbers(samples, most=None))
        yield requested


def _is_of_session(dataset: Any) -> bool:
    """Return whether a dataset is what Session passes to torch: requests name the epoch too."""
    module: Any = sys.modules.get("paceline.train.data.samples")
    return isinstance(dataset, getattr(module, "Samples", ()))
