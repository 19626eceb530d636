"""Precision: in which type a model computes, by hooks on the user's module, and the loss scale of float16.

The hooks are all that is added: the module stays the user's own, with its class, its attributes and its keys.
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

from paceline.errors import Finding, SetupError, UsageError, closest

FLOAT16_MAX = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Precision:
    """In which types a model is kept and computes.

    Attributes:
        name: As the user gave it.
        kept: Type of parameters and of floating-point inputs; None leaves both as they are.
        computed: Type of autocast; None for no autocast.
        scaled: Whether the loss is scaled, because small gradients would vanish in float16.
    """

    name: str
    kept: torch.dtype | None = None
    computed: torch.dtype | None = None
    scaled: bool = False


PRECISIONS = {
    each.name: each
    for each in (
        Precision("32-true"),
        Precision("64-true", kept=torch.float64),
        Precision("16-mixed", computed=torch.float16, scaled=True),
        Precision("bf16-mixed", computed=torch.bfloat16),
        Precision("bf16-true", kept=torch.bfloat16),
    )
}


def choose(name: str, device: torch.device) -> Precision:
    """Return the precision of a name.

    Raises:
        UsageError: There is none of this name.
        SetupError: The GPU only emulates bfloat16, which is slower than float32 there.
    """
    found = PRECISIONS.get(str(name))
    if found is None:
        near = closest(str(name), PRECISIONS) or "bf16-mixed"
        raise UsageError(
            Finding(
                "option-invalid",
                f"precision={name!r} is not one of {', '.join(PRECISIONS)}",
                where="Session(precision=...)",
                fix=f'Session(precision="{near}")',
            )
        )
    half = torch.bfloat16 in (found.kept, found.computed)
    if half and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SetupError(
            Finding(
                "bf16-emulated",
                f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic",
                where=f"Session(precision={name!r})",
                why="torch would emulate it, slower than float32",
                fix='Session(precision="16-mixed")',
            )
        )
    return found


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which ``precision`` computes."""
    if precision.computed is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision.computed)


def attach(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Let a module compute in ``precision``.

    Mixed: ``forward`` runs under autocast. Floating-point tensors that leave ``forward`` are float32, so that the
    loss is computed in full precision. True: parameters and floating-point inputs are converted; of bfloat16 the
    outputs are float32, for the same reason. A module that was attached before computes in the new precision alone;
    parameters that were converted then stay as they are.
    """
    _detach(model)
    if precision.kept is not None:
        model.to(precision.kept)
        model.register_forward_pre_hook(_cast_inputs(precision.kept), with_kwargs=True)
    if precision.computed is not None:
        _autocast_forward(model, lambda: autocast(precision, device))
    if precision.name not in ("32-true", "64-true"):
        model.register_forward_hook(lambda _module, _args, output: cast_floats(output, torch.float32))


def _detach(model: nn.Module) -> None:
    """Take off the hooks of an earlier ``attach``: of two contexts the outer one would be left first, and stay on."""
    for hooks, marks in (
        (model._forward_pre_hooks, model._forward_pre_hooks_with_kwargs),
        (model._forward_hooks, model._forward_hooks_always_called),
    ):
        # Known by where they were written and not by a handle, because a copy of a module has them as well.
        for number in [number for number, hook in hooks.items() if getattr(hook, "__module__", None) == __name__]:
            del hooks[number]
            marks.pop(number, None)


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """Return nested containers with all floating-point tensors in ``dtype``."""
    return tree.tree_map_only(torch.Tensor, lambda each: each.to(dtype) if each.is_floating_point() else each, values)


def _cast_inputs(dtype: torch.dtype) -> Callable[..., Any]:
    def cast_inputs(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        return cast_floats(args, dtype), cast_floats(kwargs, dtype)

    return cast_inputs


def _autocast_forward(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    entered: list[AbstractContextManager[Any]] = []  # a stack, as a module may call itself

    def enter(*_: Any) -> None:
        entered.append(context())
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)  # also where forward raises


class LossScale:
    """The loss scale of float16: small gradients are lifted, and a step that overflows is skipped.

    Stands on ``torch.amp.GradScaler``. A step is skipped by taking the gradients away, because optimizers leave
    parameters without one as they are: no wrapper around the user's ``optimizer.step()`` is needed.

    Whether a step overflows must not depend on the number of ranks. So the loss of each rank is divided by their
    number: what flows back for a sample is then what it would be on one rank, which the mean over ranks multiplies.
    And a gradient whose sum over ranks is beyond float16 counts as an overflow, as it would be one on one rank.

    Args:
        device: Of this rank.
        world_size: Number of ranks.
    """

    def __init__(self, device: torch.device, world_size: int) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._world_size = world_size
        self._unscaled = False  # gradients that are left from the step before are true ones

    @property
    def value(self) -> float:
        """The present scale."""
        return self._scaler.get_scale()

    def scale(self, loss: torch.Tensor, parameters: Iterable[nn.Parameter]) -> torch.Tensor:
        """Return the loss times the scale, divided by the number of ranks.

        Args:
            loss: The loss, shape ``[]``.
            parameters: All that may hold gradients. Those left from before, as of a loss that shares them, are
                scaled too, because those of this loss are added to them.
        """
        if self._unscaled:
            left = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if left:
                torch._foreach_mul_(left, self.value / self._world_size)
            self._unscaled = False
        return self._scaler.scale(loss) / self._world_size

    def settle(self, parameters: Iterable[nn.Parameter], agree: Callable[[bool], bool]) -> bool:
        """Turn gradients into true ones, or drop all of them if one is not finite; adapt the scale.

        Args:
            parameters: All that may hold gradients.
            agree: Whether any rank says so; where ranks hold the same gradients they agree by themselves.

        Returns:
            Whether the gradients were kept.
        """
        self._unscaled = True
        held = [parameter for parameter in parameters if parameter.grad is not None]
        if not held:
            return True
        gradients = [cast(torch.Tensor, parameter.grad) for parameter in held]
        if self._world_size > 1:
            torch._foreach_mul_(gradients, self._world_size)
        verdict = _Verdict(held)
        beyond = _greatest(gradients) > FLOAT16_MAX
        self._scaler.unscale_(cast(Any, verdict))
        found = self._scaler._found_inf_per_device(cast(Any, verdict))
        bad = agree(beyond or any(bool(each.item()) for each in found.values()))
        for each in found.values():
            each.fill_(float(bad))
        self._scaler.step(cast(Any, verdict))
        self._scaler.update()
        if not verdict.kept:
            for parameter in held:
                parameter.grad = None
        return verdict.kept

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and how far it is from growing."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        self._scaler.load_state_dict(state)


def _greatest(gradients: list[torch.Tensor]) -> float:
    local = [cast(Any, each).to_local() if hasattr(each, "to_local") else each for each in gradients]
    norms = torch._foreach_norm([each for each in local if each.numel()], float("inf"))
    return float(torch.stack(norms).max()) if norms else 0.0


class _Verdict:
    """What GradScaler takes for an optimizer: its step is called if all gradients are finite."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]
        self.kept = False

    def step(self) -> None:
        self.kept = True


def clip_norm(what: Any, max_norm: float, norm_type: float) -> torch.Tensor:
    """Scale gradients down to a norm; return the norm before, also of sharded gradients, as a plain tensor."""
    norm = nn.utils.clip_grad_norm_(parameters_of(what), max_norm, norm_type)
    return cast(torch.Tensor, norm.full_tensor()) if hasattr(norm, "full_tensor") else norm


def parameters_of(what: Any) -> list[nn.Parameter]:
    """Return the parameters of an optimizer, a module, or an iterable of parameters."""
    if isinstance(what, torch.optim.Optimizer):
        return list(itertools.chain.from_iterable(group["params"] for group in what.param_groups))
    if isinstance(what, nn.Module):
        return list(what.parameters())
    return list(what)
