"""A callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.errors import UsageError, closest
from paceline.train.trainer.callback import HOOKS, STAGE_HOOKS, Callback


class LambdaCallback(Callback):
    """A callback made of functions, one for each hook.

    Args:
        **functions: Functions by the name of the hook; None leaves it out.

    Raises:
        UsageError: A name is not that of a hook.
    """

    def __init__(self, **functions: Callable[..., Any] | None) -> None:
        names = (*HOOKS, *STAGE_HOOKS)
        for name, function in functions.items():
            if name not in names:
                near = closest(name, names) or "on_train_epoch_end"
                raise UsageError.of(
                    "option-unknown",
                    f"{name} is not a hook",
                    where=f"LambdaCallback({name}=...)",
                    fix=f"LambdaCallback({near}=...)",
                )
            if function is not None:
                setattr(self, name, function)
