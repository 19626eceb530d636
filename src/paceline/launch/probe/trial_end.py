"""End the ranks of a trial: a run of a few optimizer steps, all of which are timed.

``paceline bench`` and ``paceline tune`` try a script for some steps (``measure.trial``). A rank
then leaves in the hook of its last optimizer step, by ``os._exit``: an exception could be caught by
a framework, and would run code that the script keeps for its end, such as an evaluation, or a
checkpoint written over an older one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from paceline import counters, env
from paceline.errors import option_invalid
from paceline.launch.probe import ddp_settings
from paceline.launch.probe.stage_clock import StageClock
from paceline.machine import accelerator, system
from paceline.rundir import owned
from paceline.rundir.files import RunDir

FEWEST = 4  # steps of a trial: the first two are not timed
NO_END = -1
# How long a rank waits for the others of its node: they must not lose it in a collective.
_TOGETHER_S = 30.0
_LOOK_S = 0.002
_ENDED = (counters.RETURNED, counters.FINISHED, counters.LEFT)


def num_steps() -> int:
    """Return the number of optimizer steps after which ranks end; ``NO_END`` in usual runs."""
    text = env.read(env.STOP_AFTER)
    if text is None:
        return NO_END
    if not text.isdecimal() or int(text) < FEWEST:
        what = f"{env.STOP_AFTER} is {text!r}, and not a number of at least {FEWEST} steps"
        raise option_invalid(what, where=env.STOP_AFTER, fix=f"unset {env.STOP_AFTER}")
    return int(text)


def end_rank(slot: memoryview[int], stages: StageClock) -> NoReturn:
    """End this rank in success, together with the other ranks of its node."""
    _synchronise_gpu()
    stages.close()
    with contextlib.suppress(OSError):
        _write_facts(slot, stages)
    leave(slot)


def leave(slot: memoryview[int]) -> NoReturn:
    """End this rank in success, at once: nothing that the script keeps for its end is run."""
    slot[counters.PHASE] = counters.FINISHED
    _wait_for_others()
    _kill_workers()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    system.flush_c_streams()
    os._exit(0)


def _synchronise_gpu() -> None:
    """Wait for this rank's kernels: other ranks may still need its part of a collective."""
    module = accelerator.module_in_use()
    if module is not None:
        module.synchronize()


def _write_facts(slot: memoryview[int], stages: StageClock) -> None:
    """Write what only this process knows into the run folder."""
    folder, rank = env.read(env.RUN_DIR), env.read(env.RANK)
    if folder is None or rank is None:
        return
    losses = counters.losses_in(slot)
    fetches = stages.fetches
    first_step, first_ns = stages.cpu_ns_at
    num_steps = slot[counters.STEPS] - first_step
    cpu_s = 1e-9 * (time.process_time_ns() - first_ns)
    finite = {str(step): loss for step, loss in sorted(losses.items()) if math.isfinite(loss)}
    facts = {
        "losses": finite,
        "samples_per_batch": slot[counters.BATCH_SAMPLES],
        "batches_per_step": statistics.median(fetches) if fetches else 0,
        "cpu_s_per_step": cpu_s / num_steps if num_steps else 0.0,
        "applied": ddp_settings.applied(),
        **_describe_gradients(),
    }
    owned.write_whole(RunDir(Path(folder)).trial(int(rank)), json.dumps(facts))


def _describe_gradients() -> dict[str, Any]:
    """Return the size of the gradients that DistributedDataParallel reduces, and of its buckets.

    Both are None for a script that does not use it.
    """
    models = list(_parallel_models())
    if not models:
        return {"gradient_bytes": None, "bucket_bytes": None}
    sizes = [
        parameter.numel() * parameter.element_size()
        for model in models
        for parameter in model.module.parameters()
        if parameter.requires_grad
    ]
    return {"gradient_bytes": sum(sizes), "bucket_bytes": _buckets(models)}


def _parallel_models() -> Iterator[Any]:
    module: Any = sys.modules.get("torch.nn.parallel.distributed")
    kind = getattr(module, "DistributedDataParallel", ())
    things = (thing for thing in gc.get_objects() if issubclass(type(thing), kind))
    # Session wraps a second time
    return iter({id(thing.module): thing for thing in things}.values())


def _buckets(models: list[Any]) -> list[int] | None:
    """Return the sizes of the buckets in bytes; None if torch does not report them."""
    sizes: list[int] = []
    for model in models:
        try:
            data = model._get_ddp_logging_data()
        except (AttributeError, RuntimeError):
            return None
        text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
        sizes += [int(word) for word in text.replace(",", " ").split()]
    return sizes or None


def _wait_for_others() -> None:
    """Wait until all ranks of this node have made their last step, or have ended before it."""
    board = counters.board
    if board is None:
        return
    deadline_s = time.monotonic() + _TOGETHER_S
    while time.monotonic() < deadline_s:
        phases = [board.read(local).phase for local in range(board.num_ranks)]
        if all(phase in _ENDED for phase in phases):
            return
        time.sleep(_LOOK_S)


def _kill_workers() -> None:
    """Kill DataLoader workers, which otherwise notice the end of their rank late."""
    with contextlib.suppress(ValueError):  # only the main thread may
        # The handler of torch raises an exception when a worker is killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    processes: Any = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes is not None else ():
        if child.daemon:
            child.kill()
