"""The probe: counts steps and times data inside a rank, for every framework, without a line changed.

It hangs on three places that all of them pass through: torch's global hook after an optimizer's step, the
iterator of ``torch.utils.data.DataLoader``, and ``torch.autograd.backward``. It writes integers into the
rank's pulse and nothing else; together they cost well under 3 µs a step (``benchmarks/overhead.py``).
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

    mark = monotonic_ns()  # where the time that this rank spends on its own began

    def after_step(*_: Any) -> None:
        nonlocal mark
        now = monotonic_ns()
        if slot[pulse.STEPS]:
            slot[pulse.OWN_NS] += now - mark
        else:  # rates leave out the first step, which compiles, allocates and connects
            slot[pulse.FIRST_STEP_NS] = now
            slot[pulse.DATA_NS] = slot[pulse.OWN_NS] = 0
        slot[pulse.LAST_STEP_NS] = slot[pulse.BEAT_NS] = mark = now
        slot[pulse.STEPS] += 1

    backward = autograd.backward

    @functools.wraps(backward)
    def timed_backward(*args: Any, **kwargs: Any) -> None:
        nonlocal mark
        slot[pulse.OWN_NS] += monotonic_ns() - mark
        try:
            backward(*args, **kwargs)
        finally:
            mark = monotonic_ns()

    fetch = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(fetch)
    def timed_fetch(self: Any) -> Any:
        start = monotonic_ns()
        batch = fetch(self)
        now = monotonic_ns()
        slot[pulse.DATA_NS] += now - start
        slot[pulse.BEAT_NS] = now
        slot[pulse.BATCHES] += 1
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
