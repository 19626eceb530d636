"""Time the stages of some optimizer steps: optimizer, other, data, forward, backward, exchange.

The launcher compares the same steps of all ranks (``launch.monitor.stage_times`` has the meaning of
the stages). A few early steps and one in n are timed, where n is a power of two that keeps the cost
below ``SHARE`` of the time; ``counters.rarity`` says which. A step that is timed with a large n is
timed with each smaller one too, so all ranks time some of the same steps.

A step is a list of marks, each with the stage that ends at it. On the CPU a mark is a time. Where
the script uses a GPU a mark is a CUDA event, because the CPU only enqueues kernels; the events are
read when the next step is timed, which waits for nothing.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from time import monotonic_ns, process_time_ns
from typing import Any

from paceline import counters
from paceline.machine import accelerator
from paceline.machine.compiled import left_alone

OPTIMIZER, OTHER, DATA, FORWARD, BACKWARD, EXCHANGE = range(6)
SHARE = 0.002  # of the time of a step
# What it costs to time a step, with caches that the rest of the step has emptied (docs/log.md); a
# CUDA event costs more.
WALL_COST_NS, CUDA_COST_NS = 100_000, 150_000
MAX_EVERY = 1024
EARLY = range(16, 32)  # timed in every run, so that a short one says where its time goes
# A step with more events, by gradient accumulation, is not timed; times are added up so far,
# since an evaluation within a step may fetch thousands of batches.
MAX_MARKS = 512


class StageClock:
    """Times some steps of this rank and writes them to its counters."""

    def __init__(
        self,
        slot: memoryview[int],
        *,
        times_all: bool = False,  # also where that costs much
    ) -> None:
        for function in (*vars(StageClock).values(), *_functions()):
            left_alone(function)  # they may be called while torch.compile traces a script
        self._slot = slot
        self._times_all = times_all
        # batches of each timed step, if all are timed: several if it accumulates gradients
        self.fetches: list[int] = []
        # number of steps, and CPU time so far of this rank's threads; where the early steps begin,
        # if all are timed
        self.cpu_ns_at = (0, 0)
        self._marks: list[Any] = []
        self._stages: list[int] = []
        self._totals = [0] * 6  # by stage, of marks that were added up already
        self._fetches = 0  # among them
        self._step = 0  # number of steps before the one that is being timed; 0: none is
        self._unread: tuple[int, list[int], list[Any]] | None = None  # events on their way
        self._ready: Any = None
        self._loss: Any = None  # the tensor that the last backward began with
        self._is_in_backward = False
        self._has_failed = False  # events could not be read
        self._mark: Callable[[], Any] = monotonic_ns
        self._num_written = 0

    def advance(self, steps: int, step_ns: int, released: int, now: int) -> tuple[bool, int]:
        """Finish the step that was timed, and decide which one is timed next.

        Returns whether the next step is timed, and the number of steps at which to call this again.
        ``released`` is when the last backward ended, ``now`` when the optimizer step did.
        """
        release: Any = released
        end_of_step: Any = now
        on_gpu = not self._has_failed and _uses_gpu()
        if on_gpu:
            last = self._marks[-1] if self._marks else None
            release = None if isinstance(last, int) else last  # a time, before the GPU was used
            end_of_step = _event()
            _note_memory(self._slot)
        if self._step:
            self._finish()
        every = 1
        if not self._times_all:
            every = choose_every(step_ns, CUDA_COST_NS if on_gpu else WALL_COST_NS)
        elif steps <= EARLY.start:
            self.cpu_ns_at = (steps, process_time_ns())
        self._mark = _event if on_gpu else monotonic_ns
        due = next_timed(steps, every)
        if due == steps and release is not None:
            self._step = steps
            self._marks, self._stages = [release, end_of_step], [OPTIMIZER]
            self._totals, self._fetches = [0] * 6, 0
            return True, steps + 1
        self._step, self._marks, self._stages = 0, [], []
        if on_gpu:  # the event at the end of the backward before is needed too
            due = due if due > steps else next_timed(steps + 1, every)
            return due == steps + 1, max(steps + 1, due - 1)
        return False, due

    def close(self) -> None:
        """Write a step whose events were not read yet."""
        if self._unread is not None:
            self._read(*self._unread)
            self._unread = None

    def fetched(self, start: int, now: int) -> None:
        """Record that a batch was requested at ``start`` and came at ``now``."""
        if not self._step:
            return
        if self._mark is monotonic_ns:
            self._marks += (start, now)
            self._stages += (OTHER, DATA)
            if len(self._marks) > MAX_MARKS:
                self._add_up(_differences(self._marks))
        else:
            self._add(DATA)

    def _add_up(self, durations: list[int]) -> None:
        """Add durations to the totals of their stages, and forget all marks but the last."""
        for stage, duration in zip(self._stages, durations, strict=True):
            self._totals[stage] += duration
        self._fetches += self._stages.count(DATA)
        self._marks, self._stages = self._marks[-1:], []

    def requested(self) -> None:
        """Record that a batch is requested, on a GPU."""
        if self._step and self._mark is not monotonic_ns:
            self._add(OTHER)

    def run_backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run a backward, and record when it began, was ready, and ended."""
        if self._is_in_backward:
            run(*args, **kwargs)
            return
        self._is_in_backward = True
        self._ready = None
        handle = None
        if self._step:
            self._add(FORWARD)
            handle = self._watch(*args)
        try:
            run(*args, **kwargs)
        finally:
            self._is_in_backward = False
            if handle is not None:
                handle.remove()
            if self._ready is not None:
                self._marks.append(self._ready)
                self._stages.append(BACKWARD)
            if self._step:
                self._add(BACKWARD if self._ready is None else EXCHANGE)
            else:
                self._marks = [self._mark()]

    def _watch(self, tensors: Any = None, *_: Any) -> Any:
        """Make ``_ready`` the moment at which this rank's own gradients are computed.

        The engine runs its callbacks in the order in which they were queued. Ours is queued when
        backward begins; DistributedDataParallel queues the wait for its all-reduces later.
        """
        first = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        self._loss = first
        node = getattr(first, "grad_fn", None)
        if node is None or _is_compiled_autograd():
            return None
        return node.register_prehook(self._queue)

    def _queue(self, _: Any) -> None:
        from torch.autograd import Variable

        Variable._execution_engine.queue_callback(self._note_ready)

    def _note_ready(self) -> None:
        self._ready = self._mark()

    def _add(self, stage: int) -> None:
        self._marks.append(self._mark())
        self._stages.append(stage)

    def _finish(self) -> None:
        """Write the step that was timed, or read its events later."""
        if self._mark is monotonic_ns:
            self._add_up(_differences(self._marks))
            if self._totals[EXCHANGE] or self._totals[BACKWARD]:
                self._write(self._step, _value(self._loss))
            self._loss = None
            return
        has_exchange = EXCHANGE in self._stages or BACKWARD in self._stages
        if not has_exchange or len(self._marks) > MAX_MARKS:
            return
        finished = self._step, self._stages, self._marks
        if self._unread is not None:
            self._read(*self._unread)
        self._unread = finished

    def _read(self, step: int, stages: list[int], events: list[Any]) -> None:
        """Write a step whose events have happened; drop it if they have not."""
        try:
            if not all(event.query() for event in events):  # of several streams
                return
            durations = [
                int(before.elapsed_time(after) * 1e6)
                for before, after in itertools.pairwise(events)
            ]
        except RuntimeError:  # events of several devices, or of a context that is gone
            self._has_failed = True
            return
        self._marks, self._stages = events, stages
        self._totals, self._fetches = [0] * 6, 0
        self._add_up(durations)
        self._write(step)

    def _write(self, step: int, loss: float = math.nan) -> None:
        """Write the totals of a step."""
        if self._times_all:
            self.fetches.append(self._fetches)
        counters.write_stages(
            self._slot, number=self._num_written, step=step, durations=self._totals, loss=loss
        )
        self._num_written += 1


def _functions() -> list[Callable[..., Any]]:
    """Return the functions that the methods of ``StageClock`` call."""
    return [
        counters.rarity,
        counters.write_stages,
        _value,
        _event,
        _note_memory,
        _differences,
        next_timed,
        choose_every,
        _uses_gpu,
        _is_compiled_autograd,
    ]


def _value(tensor: Any) -> float:
    """Return the value of a tensor of one element on the CPU; NaN for any other."""
    try:
        is_scalar = tensor.numel() == 1 and tensor.device.type == "cpu"
        return float(tensor.detach()) if is_scalar else math.nan
    except (AttributeError, RuntimeError, TypeError):
        return math.nan


def _event() -> Any:
    import torch

    event = torch.Event(accelerator.kind_in_use(), enable_timing=True)
    event.record()
    return event


def _note_memory(slot: memoryview[int]) -> None:
    """Write what tensors take of this rank's GPU: after a step, so no activations are in it."""
    module = accelerator.module_in_use()
    try:
        allocated = module.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
        slot[counters.GPU_ALLOCATED] = allocated["current"]
        if not slot[counters.GPU_BYTES]:
            slot[counters.GPU_BYTES] = module.get_device_properties().total_memory
    except (KeyError, RuntimeError):  # an allocator of the script's own counts nothing
        return


def _differences(marks: list[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(marks)]


def next_timed(steps: int, every: int) -> int:
    """Return the first step that is timed, ``steps`` or a later one: early ones and 1 in every."""
    least = every.bit_length() - 1
    while steps not in EARLY and counters.rarity(steps) < least:
        steps += 1
    return steps


def choose_every(step_ns: int, cost_ns: int) -> int:
    """Return the smallest power of two so that timing every such step costs ``SHARE``."""
    least = cost_ns / (SHARE * max(1, step_ns))
    every = 1
    while every < least and every < MAX_EVERY:
        every *= 2
    return every


def _uses_gpu() -> bool:
    return accelerator.module_in_use() is not None and not accelerator.is_capturing()


def _is_compiled_autograd() -> bool:
    """Return whether backward is compiled; its graph then has no nodes to hook into."""
    compiled: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled is not None and bool(getattr(compiled, "compiled_autograd_enabled", False))
