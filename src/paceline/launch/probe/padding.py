"""Detect evaluations over a sampler that pads: 101 samples on 2 ranks are silently scored as 102.

The score of a loop over a padded sampler is wrong only if several conditions hold: all its batches
were taken, neither the loop nor its dataset was trained on, and the ranks reduced something
afterwards, but gathered nothing large enough for the results of single samples, because a script
that gathers those may drop the repeated ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paceline import counters

_FRAMEWORKS = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
_ENOUGH = 16  # looks, and datasets


@dataclass(frozen=True)
class Padding:
    """How a sampler gives all ranks the same number of samples."""

    dataset_length: int  # samples of its dataset
    padded_length: int  # samples of all ranks together
    share: int  # samples of one rank
    since_ns: int = 0  # when the loop over it began


def padding_of(sampler: Any) -> Padding | None:
    """Return how a sampler, or one inside it, pads; None if it does not or is the user's own."""
    from torch.utils.data import DistributedSampler

    for _ in range(8):  # batch samplers wrap samplers, and frameworks wrap those
        if isinstance(sampler, DistributedSampler):
            return _padding(sampler) if _yields_as_torch_does(sampler, DistributedSampler) else None
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
        if sampler is None:
            return None
    return None


def _yields_as_torch_does(sampler: Any, kind: type) -> bool:
    own = type(sampler)
    return own.__iter__ is kind.__iter__ or own.__module__.startswith(_FRAMEWORKS)  # type: ignore[attr-defined]


def _padding(sampler: Any) -> Padding | None:
    try:
        length = len(sampler.dataset)
        if sampler.drop_last or sampler.total_size <= length:
            return None
        return Padding(length, sampler.total_size, sampler.num_samples, time.time_ns())
    except Exception:
        return None  # a subclass without these


def is_scored_together(entries: Iterable[dict[str, Any]], padding: Padding) -> bool:
    """Return whether ranks have combined figures of their shares, not results of samples. Pure.

    Results may be gathered, or each written to its sample's place in a tensor for the whole dataset
    and the tensors reduced; both leave a sample that was seen twice counted once. ``entries`` are
    those of torch's Flight Recorder.
    """
    since = [entry for entry in entries if entry["time_created_ns"] >= padding.since_ns]
    reduced = [entry for entry in since if "reduce" in _name(entry)]
    if any(_elements(entry) >= padding.dataset_length for entry in reduced):
        return False
    moved = [entry for entry in since if not _has_figures_only(_name(entry))]
    elements = sum(_elements(entry) for entry in moved)
    return have_combined(since, since_ns=padding.since_ns) and elements < padding.share


def have_combined(entries: Iterable[dict[str, Any]], *, since_ns: int) -> bool:
    """Return whether ranks have brought values of all of them together since then. Pure."""
    names = [_name(entry) for entry in entries if entry["time_created_ns"] >= since_ns]
    return any("reduce" in name or not _has_figures_only(name) for name in names)


def _name(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"])


def _has_figures_only(name: str) -> bool:
    """Return whether a collective cannot gather the results of single samples."""
    return "reduce" in name or "barrier" in name or "broadcast" in name


def _elements(entry: dict[str, Any]) -> int:
    total = 0
    for size in entry.get("input_sizes", ()):
        elements = 1
        for length in size:
            elements *= length
        total += elements
    return total


class Evaluations:
    """Evaluations over samplers that pad."""

    def __init__(self, slot: memoryview[int]) -> None:
        self._slot = slot
        self._trained: list[Any] = []  # datasets, weakly
        self._looks = _ENOUGH
        self.pending: Any = None  # last loop that may be an evaluation, until something else begins

    def exclude(self, dataset: Any) -> None:
        """Record that a dataset is trained on: statistics of it are not a score."""
        is_new = dataset is not None and not self._trains_on(dataset())
        if is_new and len(self._trained) < _ENOUGH:
            self._trained.append(dataset)

    def is_one(self, dataset: Any) -> bool:
        """Return whether to read a dataset now is an evaluation, after training on others."""
        return bool(self._trained) and _is_grad_disabled() and not self._trains_on(dataset)

    def _trains_on(self, dataset: Any) -> bool:
        return any(reference() is dataset for reference in self._trained)

    def add(self, loop: Any) -> None:
        """Make a loop that has ended pending if it may be an evaluation."""
        is_whole = loop.padding is not None and loop.yielded == loop.length
        is_quiet = _is_grad_disabled() or bool(self._trained and loop.yielded > 1)
        is_wanted = self._looks > 0 and not self._slot[counters.PADDED_LENGTH]
        if is_whole and is_quiet and is_wanted:
            self.pending = loop

    def settle(self, entries: Callable[[], list[dict[str, Any]]]) -> None:
        """Check the pending loop, and write its lengths to the counters if its score is wrong."""
        loop, self.pending = self.pending, None
        if loop is None or loop.padding is None:
            return
        if loop.is_felt or loop.trains:
            return
        if loop.dataset is not None and self._trains_on(loop.dataset()):
            return
        self._looks -= 1
        if is_scored_together(entries(), loop.padding):
            self._slot[counters.DATASET_LENGTH] = loop.padding.dataset_length
            self._slot[counters.PADDED_LENGTH] = loop.padding.padded_length


def _is_grad_disabled() -> bool:
    """Return whether gradients are switched off now, as in an evaluation."""
    torch: Any = sys.modules["torch"]
    return not torch.is_grad_enabled()
