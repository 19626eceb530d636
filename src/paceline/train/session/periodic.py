"""Decide when a checkpoint is due between those that a script saves: every n steps or minutes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from paceline.errors import UsageError, option_invalid

_WHERE = "session.save_every(...)"


class Periodic:
    """When checkpoints are due, as one rank sees it.

    All ranks count the same steps. Their clocks differ, so a checkpoint that is due by time is
    saved when all ranks agree that it is late on one of them.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,  # in seconds
    ) -> None:
        # number of latest checkpoints to keep; None until ``begin``
        self.keep_last: int | None = None
        self._clock = clock
        self._steps: int | None = None
        self._seconds: float | None = None
        self._saved_step, self._saved_at_s = 0, clock()

    def begin(self, *, steps: int | None, minutes: float | None, keep_last: int, step: int) -> None:
        """Save every so many steps or minutes from now on, whichever comes first.

        Raises UsageError if neither is given, or a value is not positive.
        """
        _check(steps, minutes, keep_last)
        self._steps, self.keep_last = steps, keep_last
        self._seconds = None if minutes is None else 60 * minutes
        self.note_saved(step)

    def note_saved(self, step: int) -> None:
        """Count from here: a checkpoint of this step was saved or restored."""
        self._saved_step, self._saved_at_s = step, self._clock()

    def is_late(self) -> bool:
        """Return whether this rank's clock says that a checkpoint is due."""
        return self._seconds is not None and self._clock() - self._saved_at_s >= self._seconds

    def is_due(self, step: int, *, is_late: bool) -> bool:
        """Return whether to save after a step; ``is_late``: ranks agreed that it is due."""
        if step == self._saved_step:
            return False
        is_due_by_steps = self._steps and step // self._steps > self._saved_step // self._steps
        return is_late or bool(is_due_by_steps)

    def keeping(self) -> dict[str, Any]:
        """Return which checkpoints to keep where the script has not saved any."""
        # All of the best: how many the script keeps is known from its first save on.
        keep_last = sys.maxsize if self.keep_last is None else self.keep_last
        return {"mode": "max", "keep_last": keep_last, "keep_best": sys.maxsize}


def _check(steps: Any, minutes: Any, keep_last: Any) -> None:
    if steps is None and minutes is None:
        raise _refusal("neither steps nor minutes is given")
    if steps is not None and not _is_count(steps):
        raise _refusal(f"steps={steps!r} is not a positive int")
    if minutes is not None and not _is_duration(minutes):
        raise _refusal(f"minutes={minutes!r} is not a positive number")
    if not _is_count(keep_last):
        raise _refusal(f"keep_last={keep_last!r} is not a positive int")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _refusal(what: str) -> UsageError:
    fix = "session.save_every(minutes=15), or session.save_every(steps=1000)"
    return option_invalid(what, where=_WHERE, fix=fix)
