"""Notice that reading samples of an evaluation draws random numbers, as transforms of training do.

The global generators are compared around the samples of one batch, in the process that reads them.
What a sampler or ``collate_fn`` draws does not count: a shuffled evaluation has the same score.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from paceline import counters


def watch(slot: memoryview[int], evaluates: Callable[[Any], bool]) -> Callable[[], None]:
    """Look at the first batch of evaluations, in workers too; return a function that ends it."""
    from torch.utils.data.dataloader import _DatasetKind

    kinds: Any = _DatasetKind
    create = kinds.create_fetcher

    def create_and_watch(kind: int, dataset: Any, *args: Any) -> Any:
        fetcher = create(kind, dataset, *args)
        # A Session gives each sample numbers of its own, the same in each evaluation.
        is_of_session = type(dataset).__module__.startswith("paceline.")
        if kind == kinds.Map and not is_of_session and evaluates(dataset):
            fetcher.fetch = functools.partial(_fetch_once, fetcher, slot)
        return fetcher

    kinds.create_fetcher = staticmethod(create_and_watch)
    return lambda: setattr(kinds, "create_fetcher", staticmethod(create))


def _fetch_once(fetcher: Any, slot: memoryview[int], indices: Any) -> Any:
    from paceline.launch.probe.record_masks import generator_states

    del fetcher.fetch  # the method of its class is left
    before, collate = generator_states(), fetcher.collate_fn

    def compare_and_collate(samples: Any) -> Any:
        slot[counters.EVALUATION_DRAWS] |= generator_states() != before
        return collate(samples)

    fetcher.collate_fn = compare_and_collate
    try:
        return fetcher.fetch(indices)
    finally:
        fetcher.collate_fn = collate
