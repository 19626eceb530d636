"""Record optimizer steps: learning rates, losses, and checksums of gradients and parameters.

Parameters are looked at before the next step and not after the last one, so that everything that
follows a step, such as a broadcast of parameters, is done. Gradients are looked at after the step:
a closure computes them within it.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from paceline.launch.probe import stack_responder
from paceline.launch.probe.gradients import exchanged, losses_of
from paceline.launch.probe.record_file import RecordFile
from paceline.launch.probe.record_loops import LoopRecords
from paceline.machine.compiled import left_alone, not_traced, uncounted
from paceline.machine.parameters import in_shards, modules, names_of

# Types with as many bytes, by which the bits of parameters are summed
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a checksum of the bits of each tensor; synchronizes once with each device."""
    sums = [_bits(tensor.detach()).sum(dtype=torch.int64) for tensor in tensors]
    by_device: dict[torch.device, list[int]] = {}
    for place, total in enumerate(sums):
        by_device.setdefault(total.device, []).append(place)
    values = [0] * len(sums)
    for places in by_device.values():
        for place, value in zip(
            places, torch.stack([sums[place] for place in places]).tolist(), strict=True
        ):
            values[place] = value
    return values


def combined(sums: Iterable[int]) -> int:
    """Return one signed 64-bit checksum of all sums, which depends on their order."""
    total = 1
    for checksum in sums:
        total = (total * 0x100000001B3 + checksum) % (1 << 64)
    return total - (1 << 64) if total >> 63 else total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.contiguous().view(_INTEGERS[plain.element_size()])


_MOST_SUMS = 64  # parameters of which each step's checksums are written one by one
_LOOKED = 4  # steps after which each look at collectives is twice as far
_ENTRIES = 256  # of the Flight Recorder, that are read in a look
_LOCAL_HOOKS = ("local", "noop", "no_op")  # in names of communication hooks that average nothing


class _Followed:
    """An optimizer of this rank: its number, its steps, and the parameters that are compared."""

    def __init__(self, number: int, parameters: list[Any]) -> None:
        self.number, self.steps = number, 0
        self.parameters = parameters
        self.ended_ns = 0  # when its last step had ended


class StepRecords:
    """The optimizer steps of this rank."""

    def __init__(
        self,
        file: RecordFile,
        loops: LoopRecords,
        place: Callable[[], str],  # the line of the script that runs
    ) -> None:
        self.file, self._loops, self._place = file, loops, place
        self._optimizers: dict[int, _Followed] = {}
        self._alive: list[Any] = []  # so that no id is given twice
        self._losses: list[float | None] = []  # since the last step
        self._schedules = 0  # calls of schedulers' step since the last step
        self._depth = 0  # of a backward within a backward
        self._began_ns = 0  # when the last backward began
        self._unstepped: list[Any] = []  # parameters of a rank that makes no step
        self._num_looks = 0  # at these

    def before_step(self, optimizer: Any, _args: Any = (), _kwargs: Any = None) -> None:
        """Write checksums of the parameters that a step begins with."""
        followed = self._follow(optimizer)
        self._loops.work()
        sums = checksums(followed.parameters)
        self.file.write(
            "parameters",
            optimizer=followed.number,
            step=followed.steps,
            checksum=combined(sums) if sums else None,
            sums=sums if len(sums) <= _MOST_SUMS else [],
        )

    def after_step(self, optimizer: Any, _args: Any = (), _kwargs: Any = None) -> None:
        """Write what a step has applied."""
        followed = self._follow(optimizer)
        followed.steps += 1
        gradients, indices = _gradients(followed.parameters)
        sums = checksums([*gradients, *indices, *followed.parameters])
        count = len(gradients) + len(indices)
        loop = self._loops.training
        self.file.write(
            "step",
            optimizer=followed.number,
            step=followed.steps,
            rates=[float(group.get("lr", math.nan)) for group in optimizer.param_groups],
            losses=self._losses,
            gradients=combined(sums[:count]) if gradients else None,
            after=combined(sums[count:]) if followed.parameters else None,
            exchanged=self._exchanged(followed),
            loop=-1 if loop is None else loop.number,
            schedules=self._schedules,
        )
        self._losses, self._schedules = [], 0
        followed.ended_ns = time.time_ns()

    def _exchanged(self, followed: _Followed) -> int | None:
        """Return how many elements ranks have exchanged for a step; None if that is not looked at.

        An evaluation is before its batch, and results that are gathered in it do not count.
        """
        steps = followed.steps
        if steps > _LOOKED and steps & (steps - 1):
            return None
        since_ns = max(self._loops.taken_ns, followed.ended_ns) or self._began_ns
        return exchanged(stack_responder.entries(last=_ENTRIES), since_ns=since_ns)

    def _follow(self, optimizer: Any) -> _Followed:
        followed = self._optimizers.get(id(optimizer))
        if followed is None:
            shards = {id(shard) for shard in in_shards()}
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            whole = [tensor for tensor in tensors if _is_whole(tensor, shards)]
            followed = _Followed(len(self._optimizers), whole)
            self._optimizers[id(optimizer)] = followed
            self._alive.append(optimizer)
            self.file.write(
                "optimizer",
                optimizer=followed.number,
                type=type(optimizer).__name__,
                names=names_of(whole)[:_MOST_SUMS],
                is_whole=len(whole) == len(tensors),
                num_elements=sum(tensor.numel() for tensor in whole),
                num_connected=_num_connected(whole),
                place=self._place(),
                **_describe_models(tensors),
            )
        return followed

    def backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Run a backward, and note its losses."""
        if not self._depth:
            self.file.guarded(self._feel)(losses_of(*args, **kwargs))
        self._depth += 1
        try:
            run(*args, **kwargs)
        finally:
            self._depth -= 1

    def _feel(self, losses: list[Any]) -> None:
        self._loops.feel()
        self._began_ns = time.time_ns()
        if not self._optimizers:
            self._look_unstepped()
        self._losses += [_value(loss) for loss in losses]

    def _look_unstepped(self) -> None:
        """Write a checksum of what DistributedDataParallel holds, on a rank that makes no step."""
        self._num_looks += 1
        if self._num_looks == _LOOKED:
            models = filter(_is_parallel, modules())
            self._unstepped = [tensor for model in models for tensor in model.parameters()]
        if self._unstepped and self._num_looks <= _ENTRIES:
            self.file.write("unstepped", checksum=combined(checksums(self._unstepped)))

    def schedule(self, scheduler: Any) -> None:
        """Note a call of a scheduler's ``step``; its constructor makes the first."""
        if getattr(scheduler, "_step_count", 1):
            if not self._schedules:
                self.file.write("schedule", type=type(scheduler).__name__, place=self._place())
            self._schedules += 1


def watch(records: StepRecords) -> None:
    """Make ``records`` follow every optimizer step, backward and scheduler step."""
    import torch
    from torch.optim import lr_scheduler, optimizer

    backward = torch.autograd.backward
    is_compiling = torch.compiler.is_dynamo_compiling
    guarded = records.file.guarded
    before_step, after_step = guarded(records.before_step), guarded(records.after_step)

    def before(*args: Any) -> None:
        if not is_compiling():
            before_step(*args)

    def after(*args: Any) -> None:
        if not is_compiling():
            after_step(*args)

    @functools.wraps(backward)
    def recorded_backward(*args: Any, **kwargs: Any) -> None:
        records.backward(backward, *args, **kwargs)

    optimizer.register_optimizer_step_pre_hook(left_alone(before))
    optimizer.register_optimizer_step_post_hook(left_alone(after))
    torch.autograd.backward = not_traced(recorded_backward)
    for kind in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau):
        _count_calls(kind, records)


def _count_calls(kind: Any, records: StepRecords) -> None:
    step, schedule = kind.step, records.file.guarded(records.schedule)

    @functools.wraps(step)
    def counted_step(self: Any, *args: Any, **kwargs: Any) -> None:
        schedule(self)
        step(self, *args, **kwargs)

    kind.step = uncounted(counted_step)


def _is_whole(tensor: Any, shards: set[int]) -> bool:
    """Return whether a parameter is a plain tensor, and not a part of one."""
    return not hasattr(tensor, "_local_tensor") and id(tensor) not in shards


def _num_connected(parameters: list[Any]) -> int:
    """Return how many ranks can exchange something only in ways that are recorded; 0 if unknown."""
    from torch import distributed

    if not distributed.is_initialized() or not stack_responder.records_groups():
        return 0
    is_shared = any(tensor.device.type == "cpu" and tensor.is_shared() for tensor in parameters)
    return 0 if is_shared else distributed.get_world_size()


def _gradients(parameters: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the gradients of parameters, and the indices of sparse ones."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [gradient.coalesce() if gradient.is_sparse else gradient for gradient in gradients]
    values = [part.values() if part.is_sparse else part for part in parts]
    return values, [part.indices() for part in parts if part.is_sparse]


def _value(loss: Any) -> float | None:
    """Return the value of a loss; None unless it is one finite number."""
    try:
        value = float(loss.detach()) if loss.numel() == 1 else math.nan
    except (AttributeError, RuntimeError, TypeError):
        return None
    return value if math.isfinite(value) else None


def _describe_models(parameters: list[Any]) -> dict[str, Any]:
    """Return what is known about the modules that these parameters are trained in."""
    own = {id(parameter) for parameter in parameters}
    parallel, hooks = set(), []
    for module in modules():
        if _is_parallel(module):
            parallel |= {id(parameter) for parameter in module.parameters()}
            hooks += [_name(hook[0]) for hook in getattr(module, "_comm_hooks", ())]
    is_local = any(word in hook.lower() for hook in hooks for word in _LOCAL_HOOKS)
    return {"is_parallel": bool(own) and own <= parallel and not is_local}


def _is_parallel(module: Any) -> bool:
    """Return whether a module is a DistributedDataParallel over all ranks, and not over a group."""
    distributed: Any = sys.modules.get("torch.nn.parallel.distributed")
    kind: Any = getattr(distributed, "DistributedDataParallel", ())
    if not isinstance(module, kind):
        return False
    from torch.distributed import get_world_size

    return bool(module.process_group.size() == get_world_size())


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
