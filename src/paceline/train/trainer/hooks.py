"""Call the hooks of a task and of callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.errors import UsageError, option_invalid
from paceline.train.trainer.callback import HOOKS, OF_TASK, STAGE_HOOKS, Callback
from paceline.train.trainer.module import Module


class Hooks:
    """The methods to call at each moment: the task's first, then the callbacks' in their order."""

    def __init__(self, trainer: Any, task: Any, callbacks: Sequence[Any]) -> None:
        self._front = (trainer, task)
        self._of_task = {
            name: getattr(task, name)
            for name in (*HOOKS, *OF_TASK)
            if has_own(task, name, base=Module)
        }
        self._of_callbacks = {
            name: [
                getattr(callback, name)
                for callback in callbacks
                if has_own(callback, name, base=Callback)
            ]
            for name in (*HOOKS, *STAGE_HOOKS)
        }

    def call(self, name: str, *args: Any) -> None:
        """Call the task's method and the callbacks'."""
        self.call_task(name, *args)
        self.call_callbacks(name, *args)

    def call_task(self, name: str, *args: Any) -> None:
        """Call the task's method."""
        if name not in self._of_task:
            return
        result = self._of_task[name](*args)
        if isinstance(result, int) and result == -1 and name == "on_train_batch_start":
            raise _skips_epoch()

    def call_callbacks(self, name: str, *args: Any) -> None:
        """Call the callbacks' methods."""
        for method in self._of_callbacks[name]:
            method(*self._front, *args)

    def caller(self, name: str) -> Callable[..., None] | None:
        """Return a function equivalent to ``call``, or None if there is nothing to call."""
        if name not in self._of_task and not self._of_callbacks[name]:
            return None
        return lambda *args: self.call(name, *args)


def has_own(owner: Any, name: str, *, base: type) -> bool:
    """Return whether an object has a method that is not the one of our base class."""
    method = getattr(owner, name, None)
    function = getattr(method, "__func__", method)
    return callable(method) and function is not getattr(base, name, None)


def _skips_epoch() -> UsageError:
    return option_invalid(
        "on_train_batch_start returned -1, which under Lightning skips the rest of the epoch",
        where="on_train_batch_start",
        why="if one rank leaves out batches, the others wait for it",
        fix="Trainer(limit_train_batches=100), or return 0 * loss in training_step",
    )
