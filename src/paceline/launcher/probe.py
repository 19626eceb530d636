"""The probe: counts steps and times data inside a rank, for every framework, without a line changed.

It hangs on three places that all of them pass through: torch's global hook after an optimizer's step, the
iterator of ``torch.utils.data.DataLoader``, and ``torch.autograd.backward``. It writes integers into the
rank's pulse and nothing else; what is done once for a loop is in ``loops``. Its code takes about 2 µs a step in a
tight loop; in a training loop, with cold caches, it costs more: ``benchmarks/overhead.py`` measures it and
``docs/log.md`` has the figures.
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
from paceline.launcher.loops import Loop, Loops, watch


def install(slot: memoryview[int]) -> Callable[[], None]:
    """Start to count into ``slot``; return a function that stops it again.

    Args:
        slot: ``pulse.SLOT_LENGTH`` signed 64-bit integers.
    """
    from torch import autograd
    from torch.optim import optimizer as optimizers
    from torch.utils.data import dataloader

    iterators: Any = dataloader._BaseDataLoaderIter
    backward, fetch = autograd.backward, iterators.__next__
    loops = Loops(slot)
    after_step, autograd.backward, iterators.__next__ = _count(slot, loops, backward, fetch)
    handle = optimizers.register_optimizer_step_post_hook(after_step)
    unwatch = watch(iterators, loops)

    def uninstall() -> None:
        handle.remove()
        unwatch()
        autograd.backward, iterators.__next__ = backward, fetch

    return uninstall


def _count(
    slot: memoryview[int], loops: Loops, backward: Callable[..., None], fetch: Callable[[Any], Any]
) -> tuple[Callable[..., None], Callable[..., None], Callable[[Any], Any]]:
    """Return what is done after an optimizer's step, and in the place of ``backward`` and of ``fetch``."""
    clock, write_step, write_batch = monotonic_ns, pulse.STEP.pack_into, pulse.BATCH.pack_into
    place = pulse.BEAT_NS * 8
    # Counted in local variables and written in one go: this is the hottest code that we have.
    batches = steps = first = data = own = 0
    mark = clock()  # where the time that this rank spends on its own began
    # The loop that was last asked for a batch; the same at the last backward; the same at the last step. Asked for,
    # not served by: whoever fetches ahead has asked the training loop for its end when the last batch is trained on.
    asked = felt = trained = Loop()

    def after_step(optimizer: Any, *_: Any) -> None:
        nonlocal steps, first, data, own, mark, trained
        now = clock()
        if steps:
            own += now - mark
        else:  # rates leave out the first step, which compiles, allocates and connects
            first, data, own = now, 0, 0
        steps += 1
        mark = now
        write_step(slot, place, now, batches, steps, first, now, data, own)
        if felt is not trained:
            trained = felt
            loops.train(felt, optimizer)

    @functools.wraps(backward)
    def timed_backward(*args: Any, **kwargs: Any) -> None:
        nonlocal own, mark, felt
        own += clock() - mark
        felt = asked
        try:
            backward(*args, **kwargs)
        finally:
            mark = clock()

    @functools.wraps(fetch)
    def timed_fetch(self: Any) -> Any:
        nonlocal batches, data, asked
        loop = asked = self._paceline_loop
        start = clock()
        try:
            batch = fetch(self)
        except StopIteration:
            loops.end(loop, yielded=getattr(self, "_num_yielded", 0), batches=batches)
            raise
        now = clock()
        data += now - start
        batches += 1
        write_batch(slot, place, now, batches)
        if batches >= loop.due:
            loops.look(loop, self, batch, batches=batches)
        return batch

    return after_step, timed_backward, timed_fetch


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
