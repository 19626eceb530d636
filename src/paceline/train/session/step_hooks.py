"""Call objects before each step of any optimizer, as long as they live.

torch's hook is set once and stays: taking it off while torch goes through its hooks, which a
garbage collection may do at any time, would end the step with an error.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.machine.compiled import left_alone, not_compiled


class Watcher(Protocol):
    """An object that looks at steps."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that is about to step."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_hooks: list[Any] = []  # torch's hook, once it is set


def watch(watcher: Watcher) -> None:
    """Call ``watcher.before_step`` before each step, until ``unwatch`` or the watcher's end."""
    _watchers.add(watcher)
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))


def unwatch(watcher: Watcher) -> None:
    """Stop calling a watcher."""
    _watchers.discard(watcher)


@left_alone
def _before_step(optimizer: Optimizer, *_: Any) -> None:
    if not torch.compiler.is_compiling():  # whose graph a look would break
        _look(optimizer)


@not_compiled
def _look(optimizer: Optimizer) -> None:
    for watcher in list(_watchers):
        watcher.before_step(optimizer)
