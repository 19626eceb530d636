"""Whether losses and local gradients are finite: whose was not, seen before DDP averages it and spreads it to all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakTensorKeyDictionary

from paceline import pulse
from paceline.errors import Finding, RunError
from paceline.launch.probe.compiled import left_alone
from paceline.launch.probe.parameters import names_of

# How long a rank with nothing to blame on itself waits for the launcher to end it, before it ends itself.
_WAIT_S = 5.0


class _Seen:
    """What was seen of one parameter's local gradients since the last step: is any not finite, and which came first."""

    def __init__(self) -> None:
        self.bad: torch.Tensor | None = None
        self.turn = 0


class FiniteCheck:
    """Finds the rank whose own loss or gradient is not finite.

    What is seen stays on the device, as flags; once a step, and only then, they are waited for. A step that a
    gradient scaler skips is none: it calls no optimizer, or hands it the verdict.

    Args:
        slot: The rank's pulse.
        rank: The rank.
    """

    def __init__(self, slot: memoryview[int], rank: int) -> None:
        self._slot, self._rank = slot, rank
        self._seen: Any = WeakTensorKeyDictionary()
        self._loss: torch.Tensor | None = None
        self._turns = itertools.count(1)

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """See the local gradients of parameters."""
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._seen:
                self._seen[parameter] = seen = _Seen()
                parameter.register_hook(self._hook(seen))

    def _hook(self, seen: _Seen) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            seen.bad = _either(seen.bad, _not_finite(gradient))
            seen.turn = next(self._turns)

        unserializable_hook(see)  # a model that is saved whole is saved without it
        return left_alone(see)

    def see_losses(self, losses: Sequence[torch.Tensor]) -> None:
        """See what a backward begins with."""
        for loss in losses:
            self._loss = _either(self._loss, _not_finite(loss.detach()))

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Look before a step is made; where a closure makes the gradients, look when it has."""
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 and callable(args[1]) else None)
        if closure is None:
            self.look(optimizer)
            return None

        def then_look() -> Any:
            loss = closure()
            self.look(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": then_look}
        return (args[0], then_look, *args[2:]), kwargs

    def look(self, optimizer: Optimizer) -> None:
        """Raise if a gradient that is about to be applied is not finite, and see whose it was.

        Raises:
            RunError: It is not.
        """
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        applied = [_not_finite(each.grad) for each in parameters if each.grad is not None]
        if _any(applied) and not _skipped(optimizer):
            self._tell(parameters)
        self._loss = None
        for parameter in parameters:
            if parameter in self._seen:
                self._seen[parameter].bad = None

    def _tell(self, parameters: Sequence[torch.Tensor]) -> None:
        step = self._slot[pulse.STEPS] + 1
        if self._loss is not None and bool(self._loss):
            raise RunError(non_finite(self._rank, step, "loss"))
        seen = [(self._seen[each], each) for each in parameters if each in self._seen]
        bad = [(record.turn, place) for place, (record, _) in enumerate(seen) if _any([record.bad])]
        if bad:
            parameter = seen[min(bad)[1]][1]
            name = names_of([parameter])[0]
            raise RunError(non_finite(self._rank, step, f"gradient of {name}"))
        # It came from another rank, which raises now; this one must neither be blamed nor go on and save it.
        time.sleep(_WAIT_S)
        raise RunError(non_finite(self._rank, step, ""))


def non_finite(rank: int, step: int, what: str) -> Finding:
    """Return the finding about a loss or gradient that is not finite; ``what`` is empty if nobody saw whose it is."""
    said = f"rank {rank}'s {what} is" if what else f"the gradients that rank {rank} is about to apply are"
    seen = "seen before it was averaged with those of other ranks"
    own = "its own loss and gradients were finite when they were made"
    return Finding(
        "non-finite-on-one-rank",
        f"{said} not finite in step {step}",
        where=f"rank {rank}, step {step}",
        evidence=(seen if what else own, "the step was not made: a checkpoint from before it is finite"),
        fix="look at its batch and at the learning rate; torch.autograd.set_detect_anomaly(True) names the operation",
    )


def _not_finite(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)  # asking a DTensor is a collective
    values = local.coalesce().values() if local.is_sparse else local
    return ~values.isfinite().all()


def _either(one: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if one is None or one.device != other.device else one | other


def _any(flags: Iterable[torch.Tensor | None]) -> bool:
    """Return whether a flag is set; waits for each device once."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for flag in flags:
        if flag is not None:
            by_device.setdefault(flag.device, []).append(flag)
    return any(bool(torch.stack(each).any()) for each in by_device.values())


def _skipped(optimizer: Optimizer) -> bool:
    """Return whether a gradient scaler has told a fused optimizer to leave this step out."""
    verdict = getattr(optimizer, "found_inf", None)
    return verdict is not None and bool(verdict)
