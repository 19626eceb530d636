"""Set the precision of a model by hooks on the user's module; scale the loss for float16.

Only hooks are added: the module keeps its class, its attributes and its keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as tree

from paceline.errors import SetupError, closest, option_contradicted, option_invalid
from paceline.machine.compiled import left_alone, not_compiled
from paceline.train.model import sharded

FLOAT16_MAX = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Precision:
    """The types in which a model is stored and computes."""

    name: str  # name of the precision
    # type of parameters and floating-point inputs; None leaves both unchanged
    stored: torch.dtype | None = None
    computed: torch.dtype | None = None  # type of autocast; None for no autocast
    # whether the loss is scaled, because small gradients would underflow in float16
    scaled: bool = False


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("32-true"),
        Precision("64-true", stored=torch.float64),
        Precision("16-mixed", computed=torch.float16, scaled=True),
        Precision("bf16-mixed", computed=torch.bfloat16),
        Precision("bf16-true", stored=torch.bfloat16),
    )
}


def choose(name: str, device: torch.device) -> Precision:
    """Return the precision of a name.

    Raises UsageError if the name is unknown; SetupError if the GPU only emulates bfloat16, which is
    slower than float32.
    """
    precision = PRECISIONS.get(str(name))
    if precision is None:
        near = closest(str(name), PRECISIONS) or "bf16-mixed"
        raise option_invalid(
            f"precision={name!r} is not one of {', '.join(PRECISIONS)}",
            where="Session(precision=...)",
            fix=f'Session(precision="{near}")',
        )
    uses_bf16 = torch.bfloat16 in (precision.stored, precision.computed)
    on_cuda = device.type == "cuda"  # others do not tell what they emulate
    if uses_bf16 and on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SetupError.of(
            "bf16-emulated",
            f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic",
            where=f"Session(precision={name!r})",
            why="torch would emulate it, slower than float32",
            fix='Session(precision="16-mixed")',
        )
    return precision


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of computations in ``precision``."""
    if precision.computed is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision.computed)


def attach(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Make a module compute in ``precision``.

    Mixed: ``forward`` runs under autocast. Its floating-point outputs are float32, so that the
    loss is computed in full precision. True: parameters and floating-point inputs are converted;
    with bfloat16 the outputs are float32, for the same reason. A module with an earlier ``attach``
    computes in the new precision only; parameters that were converted are not converted back.
    """
    _detach(model)
    if precision.stored is not None:
        _convert(model, precision)
        model.register_forward_pre_hook(_Hook(_cast_inputs(precision.stored)), with_kwargs=True)
    if precision.computed is not None:
        _autocast_forward(model, lambda: autocast(precision, device))
    if precision.stored == torch.bfloat16:
        model.register_forward_hook(_Hook(_cast_output))


def _convert(model: nn.Module, precision: Precision) -> None:
    others = [one for one in model.parameters() if one.is_floating_point()]
    others = [one for one in others if one.dtype != precision.stored]
    if any(map(sharded.is_dtensor, others)):
        raise option_contradicted(
            f"{len(others)} parameters are in {others[0].dtype}, and sharded already",
            where=f"Session(precision={precision.name!r})",
            why="torch cannot change the type of a sharded model in place",
            fix=f"model.to({precision.stored}) before parallelize_module and fully_shard",
        )
    if others or not any(map(sharded.is_dtensor, model.parameters())):
        model.to(precision.stored)


class _Hook:
    """A hook of ours: a copy of a module has it too, a pickled module has not.

    So a file of ``torch.save(model)`` needs no paceline to be read, and has the user's module.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    @left_alone
    def __call__(self, *args: Any) -> Any:
        return self._act(*args)

    def __deepcopy__(self, _: Any) -> _Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a function of Python's library that takes any arguments and returns None."""
        return getattr, (nullcontext(), "__exit__")


def _detach(model: nn.Module) -> None:
    """Remove the hooks of an earlier ``attach``: the outer of two contexts would exit first."""
    for hooks, marks in (
        (model._forward_pre_hooks, model._forward_pre_hooks_with_kwargs),
        (model._forward_hooks, model._forward_hooks_always_called),
    ):
        # Identified by module rather than by handle, because copies of a module have these hooks
        # too.
        own = [number for number, hook in hooks.items() if isinstance(hook, _Hook)]
        for number in own:
            del hooks[number]
            marks.pop(number, None)


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """Return nested containers with all floating-point tensors in ``dtype``."""
    return tree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor,
        values,
    )


def _cast_inputs(dtype: torch.dtype) -> Callable[..., Any]:
    def cast_inputs(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        return cast_floats(args, dtype), cast_floats(kwargs, dtype)

    return cast_inputs


def _cast_output(_module: nn.Module, _args: Any, output: Any) -> Any:
    return cast_floats(output, torch.float32)


def _autocast_forward(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    entered: list[AbstractContextManager[Any]] = []  # a stack, because a module may call itself

    # Dynamo cannot trace an __exit__ that is called by name: it compiled these two again in every
    # step, until its limit. Between them it compiles forward as a whole.
    @not_compiled
    def enter(*_: Any) -> None:
        entered.append(context())
        entered[-1].__enter__()

    @not_compiled
    def leave(_module: nn.Module, _args: Any, output: Any) -> Any:
        entered.pop().__exit__(None, None, None)
        return cast_floats(output, torch.float32)

    model.register_forward_pre_hook(_Hook(enter))
    model.register_forward_hook(_Hook(leave), always_call=True)  # even if forward raises


class LossScale:
    """The loss scale of float16: it raises small gradients, and skips a step that overflows.

    It uses ``torch.amp.GradScaler``. A step is skipped by removing the gradients, because
    optimizers leave parameters without one unchanged. So the user's ``optimizer.step()`` needs no
    wrapper.

    Whether a step overflows must not depend on the number of ranks. So each rank's loss is divided
    by the number of ranks: a sample's gradient is then the same as on one rank, and the mean over
    ranks is multiplied by that number. A gradient whose sum over ranks exceeds float16 counts as an
    overflow, because it would overflow on one rank.
    """

    def __init__(self, device: torch.device, world_size: int) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._world_size = world_size
        self._unscaled = False  # whether gradients left from the last step are unscaled

    @property
    def value(self) -> float:
        """The current scale."""
        return self._scaler.get_scale()

    def scale(self, loss: torch.Tensor, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
        """Return the loss, shape ``[]``, times the scale, divided by the number of ranks.

        The parameters are all that may hold gradients. Existing ones, for example of another loss,
        are scaled too, because those of this loss are added to them.
        """
        if self._unscaled:
            if gradients := sharded.local_gradients(parameters):
                torch._foreach_mul_(gradients, self.value / self._world_size)
            self._unscaled = False
        return self._scaler.scale(loss) / self._world_size

    def settle(self, parameters: Iterable[nn.Parameter], agree: Callable[[bool], bool]) -> bool:
        """Unscale gradients, or drop all if one is not finite; return whether they were kept.

        The scale is adapted. ``agree`` returns whether any rank passes True; trivial if ranks hold
        the same gradients.
        """
        self._unscaled = True
        held = [parameter for parameter in parameters if parameter.grad is not None]
        if not held:
            return True
        gradients = sharded.local_gradients(held)
        if self._world_size > 1:
            torch._foreach_mul_(gradients, self._world_size)
        verdict = _Verdict([_local(parameter) for parameter in held])
        beyond = _greatest(gradients) > FLOAT16_MAX
        self._scaler.unscale_(cast(Any, verdict))
        overflows = self._scaler._found_inf_per_device(cast(Any, verdict))
        bad = agree(beyond or any(bool(overflow.item()) for overflow in overflows.values()))
        for overflow in overflows.values():
            overflow.fill_(float(bad))
        self._scaler.step(cast(Any, verdict))
        self._scaler.update()
        if not verdict.kept:
            for parameter in held:
                parameter.grad = None
        return verdict.kept

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, and the steps until it grows."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale and the steps until it grows."""
        self._scaler.load_state_dict(state)


def _local(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter, or a tensor of its local values with its local gradient."""
    own = sharded.local_of(parameter)
    if own is not parameter:
        own = own.detach()
        own.grad = sharded.local_of(cast(torch.Tensor, parameter.grad))
    return own


def _greatest(gradients: list[torch.Tensor]) -> float:
    there = [gradient for gradient in gradients if gradient.numel()]
    norms = torch._foreach_norm(there, float("inf"))
    return float(torch.stack(norms).max()) if norms else 0.0


class _Verdict:
    """Stand-in for an optimizer: GradScaler calls its ``step`` if all gradients are finite."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.param_groups = [{"params": parameters}]
        self.kept = False

    def step(self) -> None:
        self.kept = True


def clip_norm(what: Any, max_norm: float, norm_type: float) -> torch.Tensor:
    """Scale gradients down to a norm; return the norm before as a plain tensor.

    Gradients may be on several meshes, or on none: torch takes the norm of those of one mesh.
    """
    parameters = [parameter for parameter in parameters_of(what) if parameter.grad is not None]
    sharded.complete_gradients(parameters)
    by_mesh: dict[Any, list[torch.Tensor]] = {}
    for gradient in (cast(torch.Tensor, parameter.grad) for parameter in parameters):
        by_mesh.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
    norms = [nn.utils.get_total_norm(gradients, norm_type) for gradients in by_mesh.values()]
    norms = [sharded.whole_of(norm) for norm in norms]
    norm = norms[0] if len(norms) == 1 else nn.utils.get_total_norm(norms, norm_type)
    own = [_local(parameter) for parameter in parameters]
    nn.utils.clip_grads_with_norm_(own, max_norm, norm)
    return norm


def clip_value(what: Any, limit: float) -> None:
    """Clip gradients to ``-limit`` and ``limit``."""
    parameters = [parameter for parameter in parameters_of(what) if parameter.grad is not None]
    sharded.complete_gradients(parameters)
    if parameters:  # of a step that overflowed there are no gradients
        nn.utils.clip_grad_value_([_local(parameter) for parameter in parameters], limit)


def parameters_of(what: Any) -> list[nn.Parameter]:
    """Return the parameters of an optimizer, a module, or an iterable of parameters."""
    if isinstance(what, torch.optim.Optimizer):
        return list(itertools.chain.from_iterable(group["params"] for group in what.param_groups))
    if isinstance(what, nn.Module):
        return list(what.parameters())
    return list(what)
