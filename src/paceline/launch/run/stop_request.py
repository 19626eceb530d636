"""The request to end the ranks in order: written by the main thread, read by that of the node."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from paceline.launch.monitor.attempt import Attempt


@dataclass(frozen=True)
class StopRequest:
    """A request to end the ranks in order."""

    signum: signal.Signals  # the signal for the ranks
    # the attempt whose ranks have already received the signal, because its sender signalled them
    # too; None if they have not
    reached_attempt: Attempt | None = None

    def has_reached(self, attempt: Attempt, signum: int) -> bool:
        """Return whether the ranks of an attempt have already received a signal."""
        return self.reached_attempt is attempt and self.signum == signum


@dataclass
class StopSlot:
    """Where the request is written, once and as a whole, and read."""

    request: StopRequest | None = None  # None without one
