"""Tell the launcher's main thread how far the thread of its node has come.

Each of the two threads writes one slot, always as a whole, and reads the other's: ``Link`` here,
and ``StopSlot`` (``stop_request``) in the other direction. So neither changes an object that the
other uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.launch.run.folder import RunFolder

if TYPE_CHECKING:
    from paceline.launch.rendezvous.handler import NodeMeeting
    from paceline.launch.run.supervision import Supervision


@dataclass(frozen=True)
class NodeEnd:
    """How the thread of the node has ended."""

    succeeded: bool = False  # whether the ranks of this node have succeeded
    # the exception that ended the thread; None if there was none
    error: BaseException | None = None


@dataclass(frozen=True)
class NodeProgress:
    """How far the node has come."""

    # how this node takes part in the run; None until it has met the others
    meeting: NodeMeeting | None = None
    folder: RunFolder | None = None  # the run folder; None until the run has a name
    # watches the ranks of the newest attempt; None before the first one
    supervision: Supervision | None = None
    num_attempts: int = 1  # number of attempts, including one that has not started yet
    is_stopping: bool = False  # whether the agent has noticed that it must stop
    end: NodeEnd | None = None  # how the thread has ended; None while it runs


class Link:
    """The slot that the node's thread writes."""

    def __init__(self) -> None:
        self.progress = NodeProgress()

    def advance(self, **changes: Any) -> None:
        """Report to the main thread how far the node has come."""
        self.progress = replace(self.progress, **changes)
