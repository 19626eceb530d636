"""Decide how long a launcher waits for nodes, and print what it waits for: after some seconds, and
again when that has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from paceline import deadlines
from paceline.errors import Notice
from paceline.launch.plan.options import Options
from paceline.launch.plan.starter_defaults import POD
from paceline.text.wording import duration

_DEFAULT_JOIN_S = 600


def join_limit_s(options: Options) -> float:
    """Return how long the start may wait for nodes, in seconds."""
    typed = typed_limit_s(options)
    if typed is not None:
        return typed
    if options.no_check:
        return _DEFAULT_JOIN_S
    if options.starter_defaults.starts_together:
        return deadlines.scaled(deadlines.SLURM_START)
    if options.starter_defaults.starter == POD:
        return deadlines.scaled(deadlines.POD_START)
    is_static = options.rdzv_backend == "static"
    return deadlines.scaled(deadlines.STATIC_START if is_static else deadlines.C10D_START)


def typed_limit_s(options: Options) -> float | None:
    """Return the limit that the user has given, in seconds; None if there is none."""
    settings = dict(options.rdzv_conf)
    typed = settings.get("join_timeout", settings.get("timeout", options.roll_call_timeout))
    return None if typed is None else float(typed)


def rejoin_limit_s(options: Options) -> float:
    """Return how long a restart may wait for nodes, in seconds: some ranks need time to end."""
    settings = dict(options.rdzv_conf)
    return float(settings.get("join_timeout", settings.get("timeout", _DEFAULT_JOIN_S)))


class Waiting:
    """One wait for other nodes."""

    def __init__(
        self,
        inform: Callable[[Notice], None],
        *,
        limit_s: float,  # how long the wait may last
    ) -> None:
        self._inform = inform
        self.limit_s = limit_s
        self._start_s = time.monotonic()
        self._next_s = self._start_s + deadlines.scaled(deadlines.MISSING_NODE_NOTICE)
        self._printed: Notice | None = None

    @property
    def waited_s(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._start_s

    @property
    def is_over(self) -> bool:
        """Whether the wait has reached its limit."""
        return self.waited_s > self.limit_s

    @property
    def is_due(self) -> bool:
        """Whether a changed notice would be printed now."""
        return time.monotonic() >= self._next_s

    def show(self, picture: Notice, *, until: str = "") -> None:
        """Print the notice of this wait, if it is due and has changed.

        ``picture`` has neither the time that has passed nor the limit. The wait ends with
        ``until``; empty for the usual limit.
        """
        if not self.is_due or picture == self._printed:
            return
        self._printed = picture
        self._next_s = time.monotonic() + deadlines.scaled(deadlines.MISSING_NODE_NOTICE)
        ends = f"the wait ends after {until or duration(self.limit_s)} (--roll-call-timeout)"
        advice = f"{picture.advice}; {ends}" if picture.advice else ends
        self._inform(
            replace(picture, what=f"{picture.what}, for {self.waited_s:.0f} s", advice=advice)
        )
