"""Track which parallel models ran, because DDP averages gradients only after a forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UsageError


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
