"""Handle batches of which a rank has one row or none.

Refuse what a model cannot compute, and keep a borrowed row out of collectives. Hooks are installed
for such a batch only, so other steps cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.errors import UsageError
from paceline.text import terminal
from paceline.train.data import Rows, is_of_rows, parts_of_batch, rebuilt

# Lazy batch norms are subclasses of these; SyncBatchNorm is not.
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_GATHERS = ("allgather", "_allgather_base")


class FewRows:
    """Watches a session's models while this rank has few rows."""

    def __init__(
        self,
        models: list[nn.Module],  # before they are made parallel
        gathers_itself: Callable[[], bool],  # every forward runs collectives, as with fsdp
        *,
        rank: int,  # global, for messages
    ) -> None:
        self._models, self._gathers_itself, self._rank = models, gathers_itself, rank
        self._has_warned = False
        self._undo: list[Callable[[], None]] = []

    def watch(self, rows: Rows | None, advice: str) -> None:
        """Watch a batch that has few rows on this rank; None ends the watch.

        ``advice`` is the fix to show if the batch cannot be computed.
        """
        self.stop()
        if rows is None or any(map(_is_compiled, self._models)):
            return  # a hook would cause a recompilation
        for model in self._models:
            for module in model.modules():
                if isinstance(module, BATCH_NORMS):
                    self._undo.append(module.register_forward_pre_hook(_Check(advice)).remove)

    def borrow(self, advice: str, *, is_left_out: bool) -> None:
        """Refuse to gather the borrowed row on other ranks until this rank's backward.

        ``advice`` is the fix to show if the script gathers it. ``is_left_out``: the caller already
        leaves borrowed rows out of its sums.
        """
        if not (is_left_out or self._has_warned):
            self._has_warned = True
            terminal.say(
                f"rank {self._rank}: this rank has no row of a batch and computes another rank's,"
                " which has no weight"
                " in session.backward and session.gather; leave it out of your own sums: if"
                " loader.rows: ..."
            )
        if not self._gathers_itself():
            self._undo += _patched_gathers(advice)

    def compute_without(self, batch: Any, empty: Any) -> None:
        """Let models that get an empty batch compute the real one, and return zero rows of it.

        Many models cannot compute zero rows. A tensor that was computed from part of the batch is
        passed to the model unchanged.
        """
        real = {id(part): (part, whole) for part, whole in _pairs(empty, batch)}
        if real:
            for model in self._models:
                swap = _Swap(real)
                self._undo.append(
                    model.register_forward_pre_hook(swap.before, with_kwargs=True).remove
                )
                self._undo.append(model.register_forward_hook(swap.after).remove)

    def stop(self) -> None:
        """Remove all hooks."""
        while self._undo:
            self._undo.pop()()


class _Check:
    """Hook of a batch norm that refuses a single row; it can be copied together with its module."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __call__(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if not inputs or not isinstance(inputs[0], torch.Tensor) or inputs[0].dim() < 2:
            return
        shape = inputs[0].shape
        uses_batch = module.training or module.running_mean is None
        if uses_batch and shape[0] * math.prod(shape[2:]) == 1:
            raise UsageError.of(
                "rows-too-few",
                f"{type(module).__name__} got one row, of which it cannot take a variance",
                where="the forward of the model, in training",
                why="this batch has one row or none on this rank",
                fix=self._advice,
            )


def _patched_gathers(advice: str) -> list[Callable[[], None]]:
    if not torch.distributed.is_available():
        return []
    group_type: Any = torch.distributed.ProcessGroup
    undo: list[Callable[[], None]] = []
    for name in _GATHERS:
        original = vars(group_type).get(name)
        if original is not None:
            setattr(group_type, name, _refusing(original, advice))
            undo.append(lambda name=name, original=original: setattr(group_type, name, original))  # type: ignore[misc]
    return undo


def _refusing(original: Any, advice: str) -> Callable[..., Any]:
    def gather(group: Any, *arguments: Any, **named: Any) -> Any:
        inputs = _tensors(arguments[1]) if len(arguments) > 1 else []
        if any(tensor.is_floating_point() and tensor.numel() > 1 for tensor in inputs):
            raise UsageError.of(
                "rows-too-few",
                "this rank has no row of the batch, and would gather another rank's row a"
                " second time",
                where="an all_gather between forward and backward",
                why="a loss over gathered rows would count that row twice",
                fix=advice,
            )
        return original.__get__(group, type(group))(*arguments, **named)

    return gather


class _Swap:
    """Hooks of a model that gets an empty batch."""

    def __init__(
        self,
        # by ``id`` of each empty tensor or TensorDict: it, and what it was cut from
        real: dict[int, tuple[Any, Any]],
    ) -> None:
        self._real, self._has_swapped = real, False

    def before(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Replace the empty tensors by the real ones, if every empty tensor has one."""
        empty = [tensor for tensor in _tensors([inputs, named]) if tensor.dim() and not len(tensor)]
        self._has_swapped = bool(empty) and all(id(tensor) in self._real for tensor in empty)
        return (self._full(inputs), self._full(named)) if self._has_swapped else None

    def after(self, _: nn.Module, __: Any, outputs: Any) -> Any:
        """Remove the rows from the outputs."""
        return _without_first(outputs) if self._has_swapped else None

    def _full(self, part: Any) -> Any:
        if id(part) in self._real:
            return self._real[id(part)][1]
        return part if isinstance(part, torch.Tensor) else rebuilt(part, self._full)


def _without_first(part: Any) -> Any:
    if is_of_rows(part):
        return part[:0] if part.dim() else part
    return rebuilt(part, _without_first)


def _tensors(part: Any) -> list[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        return [part]
    return [tensor for inner in parts_of_batch(part) for tensor in _tensors(inner)]


def _pairs(empty: Any, batch: Any) -> list[tuple[Any, Any]]:
    """Return the empty tensors and TensorDicts of a batch, each with what it was cut from."""
    own = [(empty, batch)] if is_of_rows(empty) and empty.dim() and not len(empty) else []
    parts = zip(parts_of_batch(empty), parts_of_batch(batch), strict=False)
    return own + [pair for part, whole in parts for pair in _pairs(part, whole)]


def _is_compiled(model: nn.Module) -> bool:
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
