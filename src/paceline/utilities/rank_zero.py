"""``rank_zero_only``, by the rank that this process has, also before a Session or a Trainer."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from paceline.machine import own_world
from paceline.signatures.lightning_names import refuse


def rank_zero_only(function: Callable[..., Any], default: Any = None) -> Callable[..., Any]:
    """Return a function that runs on rank 0, and returns ``default`` on other ranks."""

    @wraps(function)
    def of_main(*args: Any, **options: Any) -> Any:
        return function(*args, **options) if own_world.read().rank == 0 else default

    return of_main


__getattr__ = partial(refuse, "paceline.utilities")
