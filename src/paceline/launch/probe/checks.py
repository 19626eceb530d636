"""Install the check inside a rank that ``--check-finite`` requests.

It checks a loss when its backward begins, and a gradient before it is accumulated, and does not
communicate with other ranks.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakTensorKeyDictionary

from paceline import counters
from paceline.errors import Finding, RunError
from paceline.machine.compiled import left_alone, not_traced, uncounted
from paceline.machine.parameters import names_of
from paceline.signatures import texts

# How long a rank whose own values are finite waits for the launcher to end it, before it ends
# itself.
_WAIT_S = 5.0


class _Record:
    """One parameter's gradients since the last step: whether one is not finite, and their order."""

    def __init__(self) -> None:
        self.bad: torch.Tensor | None = None
        self.turn = 0


class FiniteCheck:
    """Find the rank whose own loss or gradient is not finite.

    The flags stay on the device; the CPU waits for them once a step. A step that a gradient scaler
    skips does not count: the scaler does not call the optimizer, or passes ``found_inf`` to it.
    """

    def __init__(self, slot: memoryview[int], rank: int) -> None:
        self._slot, self._rank = slot, rank
        self._records: Any = WeakTensorKeyDictionary()
        self._loss: torch.Tensor | None = None
        self._turns = itertools.count(1)

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """Check the local gradients of parameters."""
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._records:
                self._records[parameter] = record = _Record()
                parameter.register_hook(self._hook(record))

    def _hook(self, record: _Record) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            record.bad = _either(record.bad, _not_finite(gradient))
            record.turn = next(self._turns)

        unserializable_hook(see)  # pickling a whole model leaves the hook out
        return left_alone(see)

    def see_losses(self, losses: Sequence[torch.Tensor]) -> None:
        """Check the losses with which a backward begins."""
        for loss in losses:
            self._loss = _either(self._loss, _not_finite(loss.detach()))

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Check before an optimizer step, or after the closure that computes the gradients."""
        closure = kwargs.get("closure")
        if closure is None and len(args) > 1 and callable(args[1]):
            closure = args[1]
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
        """Check the gradients that are about to be applied, and find out whose is not finite.

        Raises RunError if a gradient is not finite.
        """
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        applied = [_not_finite(gradient) for gradient in gradients]
        if _any(applied) and not _skipped(optimizer):
            self._raise(parameters)
        self._loss = None
        for parameter in parameters:
            if parameter in self._records:
                self._records[parameter].bad = None

    def _raise(self, parameters: Sequence[torch.Tensor]) -> None:
        step = self._slot[counters.STEPS] + 1
        if self._loss is not None and bool(self._loss):
            raise RunError(non_finite(self._rank, step, "loss"))
        checked = [parameter for parameter in parameters if parameter in self._records]
        bad = [parameter for parameter in checked if _any([self._records[parameter].bad])]
        if bad:
            first = min(bad, key=lambda parameter: self._records[parameter].turn)
            raise RunError(non_finite(self._rank, step, f"gradient of {names_of([first])[0]}"))
        # The value came from another rank, which raises now. This rank is not to blame, and must
        # not save it.
        time.sleep(_WAIT_S)
        raise RunError(non_finite(self._rank, step, ""))


def non_finite(rank: int, step: int, what: str) -> Finding:
    """Return the finding that a value is not finite; ``what`` is empty if it is another rank's."""
    subject = (
        f"rank {rank}'s {what} is"
        if what
        else f"the gradients that rank {rank} is about to apply are"
    )
    blame = "seen before it was averaged with those of other ranks"
    fix = (
        "look at its batch and at the learning rate; torch.autograd.set_detect_anomaly(True)"
        " names the operation"
    )
    if not what:
        fix = (
            "look at what changes gradients after backward (clipping, unscaling, a division), and"
            " at sums over ranks that overflow in fp16"
        )
    return Finding(
        "non-finite-on-one-rank",
        f"{subject} not finite in step {step}",
        where=f"rank {rank}, step {step}",
        evidence=(
            blame if what else texts.FINITE_ITSELF,
            "the step was not made: a checkpoint from before it is finite",
        ),
        fix=fix,
    )


def _not_finite(tensor: torch.Tensor) -> torch.Tensor:
    # a question to the DTensor itself would be a collective
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    values = local.coalesce().values() if local.is_sparse else local
    return ~values.isfinite().all()


def _either(flag: torch.Tensor | None, new_flag: torch.Tensor) -> torch.Tensor:
    return new_flag if flag is None or flag.device != new_flag.device else flag | new_flag


def _any(flags: Iterable[torch.Tensor | None]) -> bool:
    """Return whether a flag is set; synchronizes once with each device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for flag in flags:
        if flag is not None:
            by_device.setdefault(flag.device, []).append(flag)
    return any(bool(torch.stack(group).any()) for group in by_device.values())


def _skipped(optimizer: Optimizer) -> bool:
    """Return whether a gradient scaler makes a fused optimizer skip this step."""
    verdict = getattr(optimizer, "found_inf", None)
    return verdict is not None and bool(verdict)


def install(slot: memoryview[int], *, rank: int) -> None:
    """Raise when a loss or gradient is not finite."""
    check = FiniteCheck(slot, rank)
    _follow_parameters(check.follow)
    register_optimizer_step_pre_hook(_unless_compiled(check.before_step))
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def checked_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        check.see_losses([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = not_traced(checked_backward)


def _unless_compiled(
    hook: Callable[[Optimizer, Any, Any], Any],
) -> Callable[[Optimizer, Any, Any], Any]:
    """Return a hook that does nothing in compiled steps, whose graph it would break."""

    def check(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return hook(optimizer, args, kwargs)

    return left_alone(check)


def _follow_parameters(follow: Callable[[Iterable[torch.Tensor]], None]) -> None:
    """Call ``follow`` with the parameters of every new optimizer."""
    add = Optimizer.add_param_group

    @functools.wraps(add)
    def add_and_follow(self: Optimizer, param_group: dict[str, Any]) -> None:
        add(self, param_group)
        follow(self.param_groups[-1]["params"])

    Optimizer.add_param_group = left_alone(uncounted(add_and_follow))  # type: ignore[method-assign]
