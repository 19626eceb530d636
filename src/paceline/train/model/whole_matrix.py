"""Find optimizers whose step on shards is another than on whole matrices, by trying it.

Muon orthogonalizes a matrix, LAMB takes its norm: on a rank's rows alone both would be something
else, and nothing would fail. torch's ``DTensor`` computes both over all ranks; code that takes the
local part of a shard does not. So an optimizer makes a few steps on a small matrix, whole and in
shards, and the results are compared. ``differs`` decides.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.machine.parameters import held_by
from paceline.train import runtime
from paceline.train.model.sharded import is_dtensor, whole_of

_NUM_STEPS = 3  # some optimizers only collect statistics in their first
_MOST_KINDS = 8  # of parameter groups that are tried
# Parts of a step. Muon computes in bfloat16, so a change of a gradient's last digits in this type
# moves its steps too; those on shards may differ by a few times as much.
_TOLERANCE = 0.05
_ROUNDINGS = 4
_BFLOAT16_EPS = 2**-8
_OF_PARAMETERS = ("params", "param_names", "lr", "initial_lr", "weight_decay")  # of a group


def check(optimizer: Optimizer) -> None:
    """Refuse an optimizer that needs whole matrices and holds shards; a collective if it does.

    Neither its state nor the generators of random numbers change. An optimizer that cannot be
    tried, for example because it wraps another one, is accepted. Raises UsageError.
    """
    for group, parameter in _kinds(optimizer):
        with torch.random.fork_rng(_devices(parameter)):
            evidence = _objection(optimizer, group, parameter)
        if runtime.maxima([evidence is not None])[0]:
            raise _refused(type(optimizer).__name__, evidence or "seen on another rank")


def _kinds(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield groups that differ in their options, each with a sharded matrix of it."""
    tried: set[tuple[str, int]] = set()
    for group in optimizer.param_groups:
        sharded = next((one for one in group["params"] if _is_sharded_matrix(one)), None)
        key = repr(sorted((k, v) for k, v in group.items() if k not in _OF_PARAMETERS))
        if sharded is not None and (key, sharded.dim()) not in tried and len(tried) < _MOST_KINDS:
            tried.add((key, sharded.dim()))
            yield group, sharded


def _is_sharded_matrix(parameter: Any) -> bool:
    if not is_dtensor(parameter) or parameter.dim() < 2:
        return False
    sizes = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
    return any(size > 1 and not placement.is_replicate() for placement, size in sizes)


def _devices(parameter: torch.Tensor) -> list[torch.device]:
    return [] if parameter.device.type == "cpu" else [parameter.device]


def _objection(optimizer: Optimizer, group: dict[str, Any], parameter: Any) -> str | None:
    """Return what steps on shards did otherwise than those on the whole; a collective.

    None if that is nothing but rounding, or if the optimizer could not be tried on the whole.
    """
    start, gradient = _matrix(parameter, seed=1), _matrix(parameter, seed=2).flip(0)
    rounded = gradient * (1 + _BFLOAT16_EPS * _matrix(parameter, seed=3).sign())
    whole = _stepped(optimizer, group, start.clone(), gradient)
    again = _stepped(optimizer, group, start.clone(), gradient)
    moved = _stepped(optimizer, group, start.clone(), rounded)
    # A rank that fails alone must not leave the others in a collective, here and below.
    if runtime.maxima([not _are_equal(whole, again) or isinstance(moved, str)])[0]:
        return None
    assert isinstance(whole, torch.Tensor)
    assert isinstance(moved, torch.Tensor)
    result = _stepped(optimizer, group, _cut(start, parameter), _cut(gradient, parameter))
    if runtime.maxima([isinstance(result, str)])[0]:
        return result if isinstance(result, str) else None
    assert isinstance(result, torch.Tensor)
    part, rounding = differs(start, whole, whole_of(result)), differs(start, whole, moved)
    if part is None or rounding is None or part <= _TOLERANCE + _ROUNDINGS * rounding:
        return None
    return f"after {_NUM_STEPS} steps on a small matrix they are apart by {part:.0%} of the way"


def _are_equal(result: Any, other: Any) -> bool:
    """Return whether two runs gave the same tensor; not if they failed, or are random."""
    is_failure = isinstance(result, str) or isinstance(other, str)
    return not is_failure and torch.equal(result, other)


def differs(start: torch.Tensor, whole: torch.Tensor, sharded: torch.Tensor) -> float | None:
    """Return the norm of the difference of two results, relative to the way to the first. Pure.

    None if the first has not moved, or is not finite.
    """
    length = float((whole.double() - start.double()).norm())
    apart = float((whole.double() - sharded.double()).norm())
    return apart / length if 0 < length < float("inf") else None


def _matrix(parameter: Any, *, seed: int) -> torch.Tensor:
    """Return values for a small parameter of as many dimensions, with two rows for each rank.

    Later rows are longer, and earlier ones of the gradient, so that norms of a part are others.
    """
    num_rows = 2 * parameter.device_mesh.size()  # as many on each rank: all take the same path
    shape = (num_rows, 4, *[2] * (parameter.dim() - 2))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    growth = torch.logspace(-1, 1, num_rows, base=3).view(-1, *[1] * (parameter.dim() - 1))
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    return (values * growth).to(parameter.device, dtype)


def _cut(value: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return a tensor in shards of rows, on the mesh of a parameter."""
    from torch.distributed.tensor import Shard, distribute_tensor

    placements = [place if place.is_replicate() else Shard(0) for place in parameter.placements]
    cut = distribute_tensor(value, parameter.device_mesh, placements, src_data_rank=None)
    return cut.to(value.device)  # the CPU's memory, where it is offloaded


def _stepped(
    optimizer: Optimizer,
    group: dict[str, Any],
    start: torch.Tensor,  # becomes the parameter
    gradient: torch.Tensor,
) -> torch.Tensor | str:
    """Return a parameter after a few steps of a copy of an optimizer, or why there is none."""
    parameter = nn.Parameter(start)
    try:
        twin = _twin(optimizer, group, parameter)
        if twin is None:
            return "it wraps another optimizer"
        step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)  # without hooks
        for number in range(_NUM_STEPS):
            parameter.grad = gradient * (1 + number)
            step(twin)
    except Exception as error:  # of any kind, since it may be anybody's optimizer
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return parameter.detach()


def _twin(optimizer: Any, group: dict[str, Any], parameter: nn.Parameter) -> Any:
    """Return a copy of an optimizer that holds one other parameter; None for a wrapper.

    A wrapper, or an optimizer that holds its parameters in a second place, would step those.
    """
    attributes = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in ("state", "param_groups")
    }
    held = {id(one) for one in held_by(optimizer)}
    if any(_reaches(value, held) for value in attributes.values()):
        return None
    twin = object.__new__(type(optimizer))
    vars(twin).update(copy.deepcopy(attributes))
    options = copy.deepcopy({name: value for name, value in group.items() if name != "params"})
    if "lr" in options and not float(options["lr"]):  # before the first step of a warm-up
        options["lr"] = 0.01
    twin.state, twin.param_groups = defaultdict(dict), [{**options, "params": [parameter]}]
    return twin


def _reaches(value: Any, held: set[int], depth: int = 3) -> bool:
    """Return whether a value is, or holds, a parameter, a module or another optimizer."""
    if isinstance(value, torch.Tensor):
        return id(value) in held
    if isinstance(value, nn.Module | Optimizer) or callable(getattr(value, "__self__", None)):
        return True
    parts = list(value.values()) if isinstance(value, dict) else value
    is_nested = isinstance(parts, list | tuple | set) and depth > 0
    return is_nested and any(_reaches(part, held, depth - 1) for part in parts)


def _refused(kind: str, evidence: str) -> UsageError:
    return UsageError.of(
        "optimizer-needs-whole-matrices",
        f"{kind} does not step on shards as on whole matrices",
        where="session.setup(model, optimizer)",
        evidence=(evidence,),
        why="each rank would update its rows as if they were the whole matrix, or fail",
        fix='Session(strategy="ddp"), or an optimizer for shards, such as torch.optim.Muon',
    )
