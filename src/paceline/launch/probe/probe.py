"""The probe: count steps and time data loading inside a rank, without changes to the script.

It hooks into three places that all frameworks use: torch's global hook after an optimizer step, the
iterator of ``torch.utils.data.DataLoader``, and ``torch.autograd.backward``. It only writes
integers to the rank's counters; ``loops`` has the work that is done once per loop. The probe takes
about 2 µs a step in a tight loop, and more in a training loop with cold caches:
``benchmarks/overhead.py`` measures it and ``docs/log.md`` has the figures.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

from paceline.counters import (
    BACKWARD_NS,
    BATCHES,
    BEAT_NS,
    DATA_NS,
    FIRST_STEP_NS,
    LAST_STEP_NS,
    STEPS,
)
from paceline.launch.probe import evaluation_draws, last_look, replicas, trial_end
from paceline.launch.probe.loops import Loop, Loops, watch
from paceline.launch.probe.stage_clock import StageClock
from paceline.machine import system
from paceline.machine.compiled import left_alone, not_traced

_looks: list[last_look.LastLook] = []  # of this rank, once torch has been imported


def install(
    slot: memoryview[int],  # ``counters.SLOT_LENGTH`` signed 64-bit integers
    *,
    every: int = 0,  # steps between two checks of replicas, beside those after 1, 2, 4, 8, ...
    parameters_file: Path | None = None,  # for the fingerprints of each parameter
) -> Callable[[], None]:
    """Start counting into ``slot``; return a function that stops it."""
    from torch import autograd
    from torch.optim import optimizer as optimizers
    from torch.utils.data import dataloader

    iterators: Any = dataloader._BaseDataLoaderIter
    backward, fetch = autograd.backward, iterators.__next__
    loops = Loops(slot)
    look = last_look.LastLook(slot)
    check = replicas.ReplicaCheck(
        slot, every=every, file=parameters_file, optimizers=look.optimizers
    )
    after_step, autograd.backward, iterators.__next__ = _count(slot, loops, check, backward, fetch)
    handle = optimizers.register_optimizer_step_post_hook(after_step)
    unwatch, unwatch_draws = (
        watch(iterators, loops),
        evaluation_draws.watch(slot, loops.evaluations.is_one),
    )
    unfollow_models = replicas.follow_models(check.follow)
    _looks.append(look)
    unfollow = last_look.watch(optimizers.Optimizer, look)

    def uninstall() -> None:
        handle.remove()
        _looks.clear()
        unfollow()
        unfollow_models()
        unwatch()
        unwatch_draws()
        autograd.backward, iterators.__next__ = backward, fetch

    return uninstall


def look_at_parameters() -> None:
    """Check what this rank has trained, and with whom, once more at the end of its script."""
    for look in _looks:
        look.at_end()
        look.note_group()


def _count(  # noqa: PLR0915  # functions that share local variables: attributes would cost more
    slot: memoryview[int],
    loops: Loops,
    check: replicas.ReplicaCheck,
    backward: Callable[..., None],
    fetch: Callable[[Any], Any],
) -> tuple[Callable[..., None], Callable[..., None], Callable[[Any], Any]]:
    """Return the hook after an optimizer step, and replacements of ``backward`` and ``fetch``."""
    from torch.compiler import is_dynamo_compiling

    # This is our hottest code, and a training loop runs it with cold caches: local variables
    # instead of attributes, and what only some steps need is in ``examine``.
    clock = monotonic_ns
    batches = steps = first = data = in_backward = 0
    mark = clock()  # end of the last backward
    # The loop from which the last batch was requested: now, at the last backward, and at the last
    # step. The request counts, not the batch: code that prefetches has requested the end of the
    # loop when it trains on the last batch.
    fetched = felt = trained = Loop()
    compiled = _Compiled()
    last_step, rank = trial_end.num_steps(), os.getpid()
    stages = StageClock(slot, times_all=last_step != trial_end.NO_END)
    run, is_timed, due = backward, False, 1
    check_due = 1  # the step after which replicas are checked, or the one after it
    sampled_backward = functools.partial(loops.sample, backward)

    def after_step(optimizer: Any, _args: Any = (), _kwargs: Any = None) -> None:
        nonlocal steps
        if is_dynamo_compiling():  # False in eager mode, at the cost of an empty function
            compiled.stepped = True  # the compiled code repeats only this assignment
            return
        now = clock()
        steps += 1
        if steps >= due or steps >= check_due or felt is not trained or loops.gradients is not None:
            examine(optimizer, now)
        slot[DATA_NS] = data
        slot[BACKWARD_NS] = in_backward
        slot[LAST_STEP_NS] = now
        slot[STEPS] = steps
        if steps == last_step and os.getpid() == rank:
            trial_end.end_rank(slot, stages)

    def examine(optimizer: Any, now: int) -> None:
        """Do what only some steps need."""
        nonlocal first, data, in_backward, run, is_timed, due, check_due, trained
        if steps == 1:  # rates leave out the first step, which compiles, allocates and connects
            slot[FIRST_STEP_NS] = first = now
            data, in_backward, due = 0, 0, 2
        elif steps >= due:
            step_ns = (now - first) // (steps - 1)
            is_timed, due = stages.advance(steps, step_ns=step_ns, released=mark, now=now)
        if felt is not trained:
            trained = felt
            loops.train(felt, optimizer)
        if loops.gradients is not None:
            loops.end_step(loops.gradients)
        run = backward if loops.gradients is None else sampled_backward
        if is_timed:
            run = functools.partial(stages.run_backward, run)
        if steps == check.due:
            check.note_step(steps)
            run, check_due = functools.partial(check.run_backward, run), steps + 1
        elif steps >= check_due:
            check_due = check.due

    # torch's own parameters: to pass them on as a tuple and a dict would take a microsecond more.
    @functools.wraps(backward)
    def timed_backward(  # noqa: PLR0917
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        grad_variables: Any = None,
        inputs: Any = None,
        **others: Any,  # of a later torch
    ) -> None:
        nonlocal in_backward, mark, felt
        if compiled.stepped:
            compiled.count_step(after_step)
        if felt is not fetched:
            felt = fetched
            loops.feel(felt)
        call = functools.partial(run, **others) if others else run
        before, start = in_backward, clock()
        try:
            call(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        finally:
            mark = clock()
            in_backward = before + mark - start  # without what a backward within it has added

    @functools.wraps(fetch)
    def timed_fetch(self: Any) -> Any:
        nonlocal batches, data, fetched
        loop = fetched = self._paceline_loop
        start = clock()
        if is_timed:
            stages.requested()
        try:
            batch = fetch(self)
        except StopIteration:
            compiled.count_step(after_step)
            loops.end(loop, yielded=getattr(self, "_num_yielded", 0), batches=batches)
            raise
        now = clock()
        data += now - start
        if is_timed:
            stages.fetched(start, now)
        batches += 1
        slot[BEAT_NS] = now
        slot[BATCHES] = batches
        if batches >= loop.due:
            loops.look(loop, self, batch, batches=batches)
        return batch

    left_alone(examine)
    return left_alone(after_step), not_traced(timed_backward), not_traced(timed_fetch)


class _Compiled:
    """State that a compiled optimizer step leaves for the next function that is not compiled."""

    __slots__ = ("stepped",)

    def __init__(self) -> None:
        self.stepped = False  # a step was made that is not counted yet

    def count_step(self, after_step: Callable[..., None]) -> None:
        """Count the step that is not counted yet, if there is one."""
        if self.stepped:
            self.stepped = False
            after_step(None)


def tie_workers() -> None:
    """Make DataLoader workers that the main thread forks end with this rank, and no other children.

    A worker serves only this rank, and a busy one would notice its end late. Other children may be
    meant to stay, as under torchrun; after a failure the fork server ends them. The kernel ties a
    child to the *thread* that forked it, so workers of other threads, which may end earlier, are
    not tied. Workers that spawn or forkserver start are not forked by this process, and notice its
    end without help.
    """
    from torch.utils.data._utils import worker

    loop = worker._worker_loop
    forked_by_main, parent = False, os.getpid()

    def before() -> None:
        nonlocal forked_by_main, parent
        parent = os.getpid()
        forked_by_main = threading.get_native_id() == parent

    @functools.wraps(loop)
    def tied(*args: Any, **kwargs: Any) -> None:
        if forked_by_main and os.getpid() != parent:
            system.die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # the rank ended before the worker was tied to it
        loop(*args, **kwargs)

    worker._worker_loop = tied
    os.register_at_fork(before=before)
