"""Decide early stopping: whether a metric no longer improves."""

from __future__ import annotations

import math
from typing import Any


class Monitor:
    """Tracks one metric."""

    def __init__(
        self,
        name: str,
        *,
        mode: str,  # "min" if smaller values are better, "max" if greater ones are
        patience: int | None,  # values without improvement after which to stop; None means never
        min_delta: float,  # least improvement that counts; NaN never counts
    ) -> None:
        self.name, self._mode, self._patience, self._min_delta = name, mode, patience, min_delta
        self.best: float | None = None
        self._waited = 0

    def see(self, value: float) -> None:
        """Record a value."""
        if self._improves(value):
            self.best, self._waited = value, 0
        else:
            self._waited += 1

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)
        gain = self.best - value if self._mode == "min" else value - self.best
        return gain > self._min_delta

    @property
    def is_over(self) -> bool:
        """Whether training must stop."""
        return self._patience is not None and self._waited >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the number of values since."""
        return {"best": self.best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best value and the count."""
        self.best, self._waited = state["best"], state["waited"]
