"""Print what a launcher waits for: after some seconds, and again when that has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from paceline import deadlines
from paceline.errors import Notice
from paceline.text.wording import duration


class Waiting:
    """One wait for other nodes.

    Args:
        inform: Prints a notice.
        limit_s: How long the wait may last, in seconds.
    """

    def __init__(self, inform: Callable[[Notice], None], *, limit_s: float) -> None:
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

        Args:
            picture: The notice, without the time that has passed and the limit.
            until: When the wait ends; empty for the usual limit.
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
