"""Refuse an optimizer's step that would let the ranks of a session drift apart, before it is made.

Two questions answer for many mistakes. Has ``session.setup`` seen every parameter that
``session.backward`` trains? Its forgotten call, a head outside of the model, a bare parameter and a
group that is added later are such. And have ranks exchanged anything since the optimizer's last
step? They have not after a backward inside a group of accumulated batches, or after gradients that
were set by hand.

A backward without a forward of a parallel model is such a mistake too: DDP averages gradients only
after a forward, so it is tracked which models ran.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from paceline.errors import UsageError
from paceline.machine import parameters
from paceline.machine.compiled import not_compiled
from paceline.machine.parameters import held_by
from paceline.train import runtime
from paceline.train.session import foreign_backward


class ForwardTracker:
    """Tracks which parallel models ran since their reduced backward; only these are averaged."""

    def __init__(self) -> None:
        self.models: list[DistributedDataParallel] = []  # tracked models, in the order of ``watch``
        self._ready: dict[int, None] = {}  # numbers of the models that have run

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __deepcopy__(self, _: Any) -> ForwardTracker:
        return self  # a copied model, for example of averaged weights, is not the session's

    def watch(self, model: DistributedDataParallel) -> None:
        """Track the forwards of a model."""
        number = len(self.models)
        self.models.append(model)
        model.register_forward_pre_hook(_RecordForward(self, number))

    def record(self, number: int) -> None:
        """Record that a model has run."""
        self._ready[number] = None

    def clear(self) -> None:
        """Begin again after a reduced backward."""
        self._ready.clear()

    def models_that_ran(self) -> set[DistributedDataParallel]:
        """Return the models that have run."""
        return {self.models[number] for number in self._ready}

    @contextmanager
    def reduced_backward(self) -> Iterator[None]:
        """Enclose the reduced backward of one of several models, and clear the models it reached.

        Raises UsageError if the backward changed gradients of a model that had not run.
        """
        before = [_versions_of_gradients(model) for model in self.models]
        yield
        changed = [
            number
            for number, model in enumerate(self.models)
            if _versions_of_gradients(model) != before[number]
        ]
        if any(number not in self._ready for number in changed):
            raise not_averaged()
        for number in changed:
            del self._ready[number]


class _RecordForward:
    """Forward hook that records a run; it can be copied together with its model."""

    def __init__(self, tracker: ForwardTracker, number: int) -> None:
        self._tracker, self._number = tracker, number

    def __call__(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._tracker.record(self._number)


def _versions_of_gradients(model: nn.Module) -> list[tuple[int, int]]:
    """Return values that differ after a backward has changed a gradient of the model."""
    gradients = (parameter.grad for parameter in model.parameters())
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]


def not_averaged() -> UsageError:
    """Return the error for a backward without a forward of a parallel model before."""
    return UsageError.of(
        "gradients-not-averaged",
        "no parallel model has run since the last backward, so these gradients would stay on"
        " this rank",
        where="session.backward(loss)",
        why=(
            "DDP averages in the first backward after a forward of the model that setup"
            " returned; ranks would silently drift apart"
        ),
        fix=(
            "add the losses up and call session.backward(first + second) once, and call the"
            " model that session.setup returned, not the one inside"
        ),
    )


@dataclass
class _Steps:
    """What is known of an optimizer."""

    num_groups: int  # of its parameters
    holds: bool  # whether it holds a parameter that was set up
    exchanges: int | None = None  # those that ranks had made at its last step
    gradient: Callable[[], Any] = lambda: None  # the first gradient of that step, if it lives


class StepGuard:
    """Looks at the optimizer steps of one of several ranks."""

    def __init__(
        self,
        *,
        # returns whether a parameter is that of a model that was set up
        is_set_up: Callable[[torch.Tensor], bool],
        is_inside_group: Callable[[], bool],  # gradients are accumulated that were not averaged
        has_batch: Callable[[], bool],  # a loader of the session has shared out a batch
    ) -> None:
        self._is_set_up, self._is_inside_group = is_set_up, is_inside_group
        self._has_batch = has_batch
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Steps] = weakref.WeakKeyDictionary()
        self._strangers: Any = WeakTensorKeyDictionary()  # trained, and of no model
        self.inspects = True  # whether to look at what the next backward reaches
        foreign_backward.watch_steps(self)

    @not_compiled
    def inspect(self, leaves: Iterable[torch.Tensor], *, has_models: bool) -> None:
        """Look for tensors that a backward reaches, and that nothing keeps equal on all ranks.

        Raises UsageError if there are such tensors, and no model was set up.
        """
        self.inspects = False
        unknown = [leaf for leaf in leaves if not self._is_set_up(leaf)]
        averaged = _of_other_models() if unknown else set()
        for leaf in unknown:
            if id(leaf) not in averaged and not hasattr(leaf, "_local_tensor"):
                self._strangers[leaf] = None
        if not has_models and len(self._strangers):
            raise _without_model(next(iter(self._strangers)))

    def before_step(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that is about to step."""
        steps = self._optimizers.get(optimizer)
        if steps is None or steps.num_groups != len(optimizer.param_groups):
            held = held_by(optimizer)
            steps = _Steps(len(optimizer.param_groups), any(map(self._is_set_up, held)))
            self._optimizers[optimizer] = steps
            self.inspects = True
        if len(self._strangers):
            self._refuse_strangers(optimizer)
        if not steps.holds:
            return
        exchanges = _exchanges()
        if self._is_inside_group() and _first_trained(optimizer) is not None:
            raise _not_complete(optimizer)
        gradient = next((one.grad for one in held_by(optimizer) if one.grad is not None), None)
        is_new = gradient is not None and gradient is not steps.gradient()
        has_exchanged = exchanges is None or exchanges != steps.exchanges
        if is_new and not has_exchanged and self._has_batch():
            self._refuse_by_hand(optimizer)
        steps.exchanges = exchanges
        steps.gradient = (lambda: None) if gradient is None else weakref.ref(gradient)

    def _refuse_strangers(self, optimizer: Optimizer) -> None:
        for parameter in held_by(optimizer):
            if parameter.grad is not None and parameter in self._strangers:
                name = parameters.name_of(parameter)
                raise UsageError.of(
                    "gradients-not-averaged",
                    f"{name} is trained by session.backward, and no model that was set up has it",
                    where=f"{type(optimizer).__name__}.step()",
                    why="its gradient is that of this rank only; ranks would drift apart",
                    fix=(
                        f"make {name} part of the model before session.setup(model, optimizer),"
                        " or set its module up too: head = session.setup(head)"
                    ),
                )

    def _refuse_by_hand(self, optimizer: Optimizer) -> None:
        """Refuse new gradients, between which and those of the last step nothing was exchanged."""
        trained = _first_trained(optimizer)
        if trained is None:
            return
        raise UsageError.of(
            "gradients-not-averaged",
            f"{parameters.name_of(trained)}.grad is this rank's own: ranks have exchanged"
            f" nothing since the last {type(optimizer).__name__}.step()",
            where=f"{type(optimizer).__name__}.step()",
            why="a gradient that was set by hand is that of this rank's rows only",
            fix=(
                "session.backward(loss) in place of torch.autograd.grad, or average each:"
                " p.grad = session.reduce(gradient) / session.world_size"
            ),
        )


def _exchanges() -> int | None:
    """Return how many collectives may have averaged gradients so far; None if it is unknown."""
    try:
        groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
        count: int = sum(group._get_sequence_number_for_group() for group in groups)
        return count - runtime.num_own_collectives()
    except RuntimeError:  # a backend that does not count
        return None


def _of_other_models() -> set[int]:
    """Return the parameters that a DistributedDataParallel of the script averages."""
    return {
        id(parameter)
        for module in parameters.modules()
        if isinstance(module, DistributedDataParallel)
        for parameter in module.parameters()
    }


def _first_trained(optimizer: Optimizer) -> torch.Tensor | None:
    """Return the first parameter of an optimizer whose gradient is not zero."""
    return next((one for one in held_by(optimizer) if foreign_backward.is_there(one.grad)), None)


def _without_model(parameter: torch.Tensor) -> UsageError:
    return UsageError.of(
        "gradients-not-averaged",
        f"{parameters.name_of(parameter)} is trained on several ranks, and no model was set up",
        where="session.backward(loss)",
        why="every rank would train a model of its own",
        fix="model, optimizer = session.setup(model, optimizer)",
    )


def _not_complete(optimizer: Optimizer) -> UsageError:
    return UsageError.of(
        "gradients-not-averaged",
        f"{type(optimizer).__name__} steps inside a group of accumulated batches, on gradients"
        " of this rank only",
        where=f"{type(optimizer).__name__}.step() after session.backward(loss)",
        why="session.backward returns True where gradients are complete and averaged",
        fix="if session.backward(loss): optimizer.step(); optimizer.zero_grad()",
    )
