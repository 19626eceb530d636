"""The probe: counts steps and times data inside a rank, for every framework, without a line changed.

It hangs on three places that all of them pass through: torch's global hook after an optimizer's step, the
iterator of ``torch.utils.data.DataLoader``, and ``torch.autograd.backward``. It writes integers into the
rank's pulse and nothing else. Its code takes about 2 µs a step in a tight loop; in a training loop, with cold
caches, it costs more: ``benchmarks/overhead.py`` measures it and ``docs/log.md`` has the figures.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from paceline import pulse
from paceline.launcher import system


def install(slot: memoryview[int]) -> Callable[[], None]:
    """Start to count into ``slot``; return a function that stops it again.

    Args:
        slot: ``pulse.SLOT_LENGTH`` signed 64-bit integers.
    """
    from torch import autograd
    from torch.optim import optimizer as optimizers
    from torch.utils.data import dataloader

    clock, write_step, write_batch = monotonic_ns, pulse.STEP.pack_into, pulse.BATCH.pack_into
    place = pulse.BEAT_NS * 8
    backward, fetch = autograd.backward, dataloader._BaseDataLoaderIter.__next__
    # Counted in local variables and written in one go: this is the hottest code that we have.
    batches = steps = first = data = own = 0
    mark = clock()  # where the time that this rank spends on its own began

    def after_step(*_: Any) -> None:
        nonlocal steps, first, data, own, mark
        now = clock()
        if steps:
            own += now - mark
        else:  # rates leave out the first step, which compiles, allocates and connects
            first, data, own = now, 0, 0
        steps += 1
        mark = now
        write_step(slot, place, now, batches, steps, first, now, data, own)

    @functools.wraps(backward)
    def timed_backward(*args: Any, **kwargs: Any) -> None:
        nonlocal own, mark
        own += clock() - mark
        try:
            backward(*args, **kwargs)
        finally:
            mark = clock()

    @functools.wraps(fetch)
    def timed_fetch(self: Any) -> Any:
        nonlocal batches, data
        start = clock()
        batch = fetch(self)
        now = clock()
        data += now - start
        batches += 1
        write_batch(slot, place, now, batches)
        return batch

    handle = optimizers.register_optimizer_step_post_hook(after_step)
    autograd.backward = timed_backward
    dataloader._BaseDataLoaderIter.__next__ = timed_fetch  # type: ignore[method-assign]

    def uninstall() -> None:
        handle.remove()
        autograd.backward = backward
        dataloader._BaseDataLoaderIter.__next__ = fetch  # type: ignore[method-assign]

    return uninstall


def tie_children() -> None:
    """Let processes that the main thread forks (DataLoader workers) die with this rank.

    The kernel ties a child to the *thread* that forked it, so a child of a thread that may end earlier is
    left alone. Workers made by spawn or forkserver go with their process group instead.
    """
    from_main = False

    def before() -> None:
        nonlocal from_main
        from_main = threading.get_native_id() == os.getpid()

    def in_child() -> None:
        if from_main:
            system.die_with_parent(signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=in_child)
