"""Check the trained parameters of a rank for NaN when training seems to be over.

A run whose loss has become NaN ends with status 0, and its checkpoint is useless. So the parameters
of the optimizers are checked once: when the process group is destroyed, when the script has ended,
or when an optimizer is freed. The result counts only if no step follows. The check keeps nothing
alive, and has a time limit for many parameters or a device that does not respond.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from paceline import counters
from paceline.machine import accelerator
from paceline.machine.compiled import left_alone, uncounted

_BUDGET_S = 2.0  # for all checks of a process
_CHUNK = 1 << 22  # elements of a parameter that are checked at a time
_POLL_S = 0.005


def watch(optimizers: Any, look: LastLook) -> Callable[[], None]:
    """Follow every new ``torch.optim.Optimizer``, and check when the default group ends; return a
    function to stop.
    """
    distributed: Any = import_module("torch.distributed")
    # None where torch was built without it
    c10d: Any = getattr(distributed, "distributed_c10d", None)
    create: Any = optimizers.__init__
    destroy: Any = getattr(c10d, "destroy_process_group", None)

    @functools.wraps(create)
    def create_and_follow(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        look.follow(self)

    @functools.wraps(destroy or create)
    def look_and_destroy(group: Any = None) -> None:
        if group is None or group is c10d.GroupMember.WORLD:
            look.at_end()
            look.note_group()
        destroy(group)

    optimizers.__init__ = left_alone(uncounted(create_and_follow))
    if destroy is not None:
        c10d.destroy_process_group = distributed.destroy_process_group = look_and_destroy

    def end() -> None:
        optimizers.__init__ = create
        if destroy is not None:
            c10d.destroy_process_group = distributed.destroy_process_group = destroy

    return end


class LastLook:
    """Check parameters when training seems to be over; the counters name one with NaN."""

    def __init__(self, slot: memoryview[int]) -> None:
        self._slot = slot
        self._process = os.getpid()
        self._optimizers: list[weakref.ref[Any]] = []
        self._left_s = _BUDGET_S

    def follow(self, optimizer: Any) -> None:
        """Check an optimizer's parameters when it is freed, if they still live then."""
        self._optimizers.append(weakref.ref(optimizer))
        parameters = [
            weakref.ref(parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        weakref.finalize(optimizer, self._at_death, parameters).atexit = False

    def optimizers(self) -> list[Any]:
        """Return all living optimizers, in the order in which they were made."""
        return [one for one in (reference() for reference in self._optimizers) if one is not None]

    def at_end(self) -> None:
        """Check the parameters of all living optimizers."""
        groups = [group for optimizer in self.optimizers() for group in optimizer.param_groups]
        self._look([parameter for group in groups for parameter in group["params"]])

    def note_group(self) -> None:
        """Note whether there is a process group of several ranks, unless there was one before."""
        if self._slot[counters.GROUP] == counters.GROUP_OF_SEVERAL:
            return
        distributed: Any = import_module("torch.distributed")
        is_grouped = (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        )
        self._slot[counters.GROUP] = (
            counters.GROUP_OF_SEVERAL if is_grouped else counters.GROUP_NEVER
        )

    def _at_death(self, parameters: Sequence[weakref.ref[Any]]) -> None:
        if threading.current_thread() is threading.main_thread():
            self._look(
                [
                    parameter
                    for parameter in (reference() for reference in parameters)
                    if parameter is not None
                ]
            )

    def _look(self, parameters: Sequence[Any]) -> None:
        if os.getpid() != self._process or not self._slot[counters.STEPS] or self._left_s <= 0:
            return
        from paceline.machine.parameters import names_of

        begin = time.monotonic()
        try:
            bad = first_nan(parameters, deadline_s=begin + self._left_s)
            if bad is not None:
                counters.write_nan(self._slot, names_of([bad])[0])
        except Exception:
            pass  # an optimizer may hold any object, and the check must not change how the run ends
        self._left_s -= time.monotonic() - begin


def first_nan(parameters: Iterable[Any], *, deadline_s: float) -> Any:
    """Return the first tensor that has a NaN, None if none has or the deadline passes."""
    import torch

    if torch._C._len_torch_dispatch_stack() > 0 or accelerator.is_capturing():
        return None
    suspects: list[tuple[Any, Any]] = []
    with torch.no_grad():
        for parameter in parameters:
            local = _local(parameter)
            if time.monotonic() > deadline_s:
                return None
            if local is not None:
                # the sum is NaN if a value is, and needs no memory
                suspects.append((parameter, local.sum(dtype=_wide(local))))
        for parameter, total in _not_finite(suspects, deadline_s):
            if total and _has_nan(_local(parameter), deadline_s):
                return parameter
    return None


def _local(parameter: Any) -> Any:
    """Return a dense tensor with a parameter's values on this rank, None if it has none."""
    import torch

    local = getattr(parameter, "_local_tensor", parameter)  # asking a DTensor is a collective
    is_dense = (
        isinstance(local, torch.Tensor)
        and local.layout == torch.strided
        and local.is_floating_point()
    )
    kinds = ("cpu", accelerator.kind_in_use())
    if not is_dense or not local.numel() or local.device.type not in kinds:
        return None
    return local.detach()


def _wide(tensor: Any) -> Any:
    import torch

    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _not_finite(sums: Sequence[tuple[Any, Any]], deadline_s: float) -> list[tuple[Any, bool]]:
    """Return whether each parameter's sum is not finite, of devices that answer in time."""
    import torch

    by_device: dict[Any, list[tuple[Any, Any]]] = {}
    for parameter, total in sums:
        by_device.setdefault(total.device, []).append((parameter, total))
    flags: list[tuple[Any, bool]] = []
    for pairs in by_device.values():
        totals = (
            torch.stack([total.to(torch.float64) for _, total in pairs]).isfinite().logical_not()
        )
        answer = _fetched(totals, deadline_s)
        flags += zip([parameter for parameter, _ in pairs], answer, strict=False)
    return flags


def _fetched(flags: Any, deadline_s: float) -> list[bool]:
    """Return flags from their device; none if it does not answer before the deadline."""
    import torch

    if flags.device.type == "cpu":
        return list(flags.tolist())
    answer = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True)
    answer.copy_(flags, non_blocking=True)
    event = torch.Event(flags.device)
    event.record(torch.accelerator.current_stream(flags.device))
    while not event.query():
        if time.monotonic() > deadline_s:
            return []
        time.sleep(_POLL_S)
    return list(answer.tolist())


def _has_nan(local: Any, deadline_s: float) -> bool:
    """Return whether a tensor whose sum is not finite has a NaN, and not only large values."""
    flat = local.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        if time.monotonic() > deadline_s:
            return False
        if bool(flat[start : start + _CHUNK].isnan().any()):
            return True
    return False
