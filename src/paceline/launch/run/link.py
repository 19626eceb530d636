"""Exchange state between the launcher's main thread and the thread of its node.

Each thread writes one of two slots, always as a whole, and reads the other. So neither thread
changes an object that the other uses.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.launch.monitor.attempt import Attempt
from paceline.launch.run.folder import RunFolder

if TYPE_CHECKING:
    from paceline.launch.rendezvous.handler import Meeting
    from paceline.launch.run.supervision import Supervision


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


@dataclass(frozen=True)
class NodeEnd:
    """How the thread of the node has ended."""

    succeeded: bool = False  # whether the ranks of this node have succeeded
    # the exception that ended the thread; None if there was none
    error: BaseException | None = None


@dataclass(frozen=True)
class Progress:
    """How far the node has come."""

    # how this node takes part in the run; None until it has met the others
    meeting: Meeting | None = None
    folder: RunFolder | None = None  # the run folder; None until the run has a name
    # watches the ranks of the newest attempt; None before the first one
    supervision: Supervision | None = None
    num_attempts: int = 1  # number of attempts, including one that has not started yet
    is_stopping: bool = False  # whether the agent has noticed that it must stop
    end: NodeEnd | None = None  # how the thread has ended; None while it runs


class Link:
    """The two slots."""

    def __init__(self) -> None:
        # the request to stop; None without one. Written by the main thread, once.
        self.stop: StopRequest | None = None
        self.progress = Progress()  # written by the node's thread

    def advance(self, **changes: Any) -> None:
        """Report to the main thread how far the node has come."""
        self.progress = replace(self.progress, **changes)
