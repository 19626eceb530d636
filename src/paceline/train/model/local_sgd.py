"""Local SGD: ranks train apart, and average the change of their parameters now and then.

Each rank makes ``every`` optimizer steps without communication, the inner steps. Then the
differences between the outer parameters, which all ranks have in common, and each rank's own are
averaged, and serve as the gradient of an outer step (DiLoCo: Douillard et al., 2023, algorithm 1,
arXiv 2311.08105). All ranks continue from the result.

For everyone but the optimizer a model is its outer parameters: a forward without autograd computes
with them, and ``state_dict`` returns them. A rank's own parameters are of no use to others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from paceline.errors import Finding, UsageError, closest

OUTER = ("nesterov", "average")
_CHUNK_BYTES = 64 << 20  # averaged together: long enough for any link, and small beside the model


@dataclass(frozen=True)
class LocalSGD:
    """Ranks make several optimizer steps apart before they average the change of their parameters.

    Communication is reduced ``every`` times. The result is not that of synchronous training.

    Attributes:
        every: Optimizer steps (as ``session.step`` counts them) from one exchange to the next.
        outer: The outer step: ``"nesterov"``, with momentum over the exchanges, or ``"average"``,
            which continues from the mean of the ranks' parameters.
        lr: Learning rate of ``"nesterov"``; 0.7 if None.
        momentum: Momentum of ``"nesterov"``; 0.9 if None.
    """

    every: int
    outer: str = "nesterov"
    lr: float | None = None
    momentum: float | None = None

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rate and momentum of the outer step."""
        if self.outer == "average":
            return 1.0, 0.0
        lr = 0.7 if self.lr is None else self.lr
        momentum = 0.9 if self.momentum is None else self.momentum
        return lr, momentum


def check_options(options: LocalSGD) -> None:
    """Refuse options that are invalid or have no effect.

    Raises:
        UsageError: An option is invalid, or belongs to another outer step.
    """
    if not isinstance(options.every, int) or isinstance(options.every, bool) or options.every < 1:
        what = f"every={options.every!r} is not a positive int"
        raise _refusal("option-invalid", what, "every", "every=50")
    if options.outer not in OUTER:
        near = closest(str(options.outer), OUTER) or OUTER[0]
        what = f"outer={options.outer!r} is not one of {', '.join(OUTER)}"
        raise _refusal("option-invalid", what, "outer", f'outer="{near}"')
    for name, value in (("lr", options.lr), ("momentum", options.momentum)):
        if value is not None and options.outer == "average":
            what = f"{name}={value!r} has no effect: the mean has no {name}"
            raise _refusal("option-contradicted", what, name, 'outer="nesterov"')
    lr, momentum = options.rates
    if not _is_number(lr) or not 0 < lr < math.inf:
        raise _refusal("option-invalid", f"lr={lr!r} is not a positive number", "lr", "lr=0.7")
    if not _is_number(momentum) or not 0 <= momentum < 1:
        what = f"momentum={momentum!r} is not a number from 0 to 1, without 1"
        raise _refusal("option-invalid", what, "momentum", "momentum=0.9")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refusal(name: str, what: str, option: str, fix: str) -> UsageError:
    return UsageError(Finding(name, what, where=f"LocalSGD({option}=...)", fix=fix))


def in_common(parameter: torch.Tensor) -> torch.Tensor:
    """Return what all ranks have in common of a parameter: its outer value, or itself."""
    outer: torch.Tensor = getattr(parameter, "paceline_outer", parameter)
    return outer


def release(model: nn.Module) -> None:
    """End the local SGD of an earlier session with this model."""
    for hook in list(model._forward_pre_hooks.values()):
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, OuterModel):
            owner.release()


class OuterModel:
    """The outer parameters and buffers of a model, and its view for others.

    Buffers are those of rank 0 at the last exchange. Parameters that are frozen are the same on all
    ranks, and are left out.

    Args:
        model: The user's module; equal on all ranks.
        options: How the ranks' parameters are averaged.
        before_training: Called before each forward with autograd.

    Attributes:
        momenta: The momentum of each trained parameter, by name; empty until the first outer step.
    """

    def __init__(
        self, model: nn.Module, options: LocalSGD, *, before_training: Callable[[], None]
    ) -> None:
        self._model = model
        self._lr, self._momentum = options.rates
        self._before_training = before_training
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._outer: dict[torch.Tensor, torch.Tensor] = {
            parameter: parameter.detach().clone() for parameter in self._parameters.values()
        }
        for parameter, outer in self._outer.items():
            parameter.paceline_outer = outer  # type: ignore[attr-defined]  # for in_common
        self._buffers: dict[str, torch.Tensor] = {}
        self.momenta: dict[str, torch.Tensor] = {}
        self._copy_buffers()
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []
        self._depth = 0  # of forwards without autograd inside each other
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward),
            model.register_forward_hook(self._after_forward, always_call=True),
            # torch sets an attribute of the hook, which a method cannot have.
            model.register_state_dict_post_hook(partial(self._fill_state)),
            model.register_load_state_dict_post_hook(self._after_load),
        ]

    def __deepcopy__(self, _: Any) -> OuterModel:
        return self  # in a copied model the hooks do nothing

    def release(self) -> None:
        """Leave the model to a later session."""
        while self._hooks:
            self._hooks.pop().remove()
        for parameter in self._outer:
            del parameter.paceline_outer  # type: ignore[attr-defined]

    @torch.no_grad()
    def step(self, mean: Callable[[torch.Tensor], None]) -> None:
        """Make an outer step, and continue from it on all ranks.

        Args:
            mean: Replaces a tensor by its mean over all ranks; a collective.
        """
        for names in self._chunks():
            parameters = [self._parameters[name] for name in names]
            differences = [self._outer[parameter] - parameter for parameter in parameters]
            flat = torch.cat([difference.reshape(-1) for difference in differences])
            mean(flat)
            parts = flat.split([parameter.numel() for parameter in parameters])
            for name, parameter, part in zip(names, parameters, parts, strict=True):
                outer = self._outer[parameter]
                gradient = part.view_as(outer)
                if parameter.requires_grad:
                    outer.sub_(self._update(name, gradient), alpha=self._lr)
                else:  # frozen since setup: momentum must not move it
                    outer.sub_(gradient)
                parameter.copy_(outer)
        self._copy_buffers()

    def _update(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return the update of Nesterov's momentum, as torch.optim.SGD computes it."""
        if not self._momentum:
            return gradient
        momentum = self.momenta.setdefault(name, torch.zeros_like(gradient))
        momentum.mul_(self._momentum).add_(gradient)
        return gradient.add(momentum, alpha=self._momentum)

    def buffers(self) -> list[torch.Tensor]:
        """Return the model's buffers, which a script may have replaced since the last exchange."""
        return list(self._model.buffers())

    def own_tensors(self) -> dict[str, torch.Tensor]:
        """Return this rank's trained parameters and buffers, by name."""
        return {**self._parameters, **dict(self._model.named_buffers())}

    @torch.no_grad()
    def reset(self) -> None:
        """Make this rank's parameters and buffers the outer ones, without momentum."""
        for parameter, outer in self._outer.items():
            outer.copy_(parameter)
        self.momenta.clear()
        self._copy_buffers()

    @torch.no_grad()
    def _copy_buffers(self) -> None:
        self._buffers = {
            name: buffer.detach().clone() for name, buffer in self._model.named_buffers()
        }

    def _chunks(self) -> Iterator[list[str]]:
        """Yield names of parameters of one type and device that are averaged together."""
        kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
        for name, parameter in self._parameters.items():
            kinds.setdefault((parameter.dtype, parameter.device), []).append(name)
        for names in kinds.values():
            chunk: list[str] = []
            size = 0
            for name in names:
                chunk.append(name)
                size += self._parameters[name].nbytes
                if size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
            if chunk:
                yield chunk

    # The view for others

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if module is not self._model:
            return
        if torch.is_grad_enabled():
            self._before_training()
            return
        self._depth += 1
        if self._depth == 1:
            self._put_outer_in()

    def _after_forward(self, module: nn.Module, *_: Any) -> None:
        if module is not self._model or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._put_own_back()

    def _put_outer_in(self) -> None:
        # The modules get other tensors, as from torch.func.functional_call, and no tensor other
        # values: a graph that waits for its backward refers to this rank's.
        for prefix, module in self._model.named_modules():
            start = f"{prefix}." if prefix else ""
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter in self._outer:
                    self._replace(module._parameters, name, self._outer[parameter])
            for name, buffer in module._buffers.items():
                if buffer is not None and start + name in self._buffers:
                    self._replace(module._buffers, name, self._buffers[start + name])

    def _replace(self, holder: dict[str, Any], name: str, outer: torch.Tensor) -> None:
        self._replaced.append((holder, name, holder[name]))
        holder[name] = outer

    def _put_own_back(self) -> None:
        while self._replaced:
            holder, name, own = self._replaced.pop()
            holder[name] = own

    def _fill_state(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        if module is not self._model:
            return
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter in self._outer and prefix + name in state:
                state[prefix + name] = self._outer[parameter]
        for name, outer in self._buffers.items():
            if prefix + name in state:
                state[prefix + name] = outer

    def _after_load(self, module: nn.Module, _: Any) -> None:
        if module is self._model:
            self.reset()
