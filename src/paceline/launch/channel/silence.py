"""Whether a node that is silent is lost: how long it has been silent and what is proven in, a reason out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.errors import Notice
from paceline.text.wording import duration

# Reasons to call a node lost.
CLOSED = "closed"  # its host has closed its launcher's connection, and no heartbeat has come since
REFUSED = "refused"  # its host answers, and its launcher's port is not open any more
DOWN = "down"  # the scheduler says so
SILENT = "silent"  # neither a heartbeat nor a training step for the time of --node-timeout


class NodeLost(Exception):
    """A node that the run cannot do without is lost, and the others would wait for it in vain."""


@dataclass(frozen=True)
class Silence:
    """What is known of a node that is silent.

    Attributes:
        silent_s: Since its last heartbeat.
        stepless_s: Since ranks on any node that can be heard made a training step, or since the start.
        is_closed: Its host has closed its launcher's connection after the last heartbeat.
        state: What the scheduler says of the node, empty if there is none.
    """

    silent_s: float
    stepless_s: float
    is_closed: bool = False
    state: str = ""


@dataclass(frozen=True)
class Loss:
    """A node that is lost, or the host of the run's store.

    Attributes:
        host: Its host, empty if that is not known.
        reason: ``CLOSED``, ``REFUSED``, ``DOWN`` or ``SILENT``.
        silent_s: How long it had been silent.
    """

    host: str = ""
    reason: str = SILENT
    silent_s: float = 0.0

    def to_json(self) -> list[Any]:
        """Return the loss as plain data."""
        return [self.host, self.reason, self.silent_s]


def judge(silence: Silence, *, node_timeout_s: float, closed_s: float) -> str:
    """Return why a node is lost, empty if it may come back.

    Args:
        silence: What is known of it.
        node_timeout_s: ``--node-timeout``.
        closed_s: How long a node without its connection may be silent; it is made again at once if it lives.
    """
    if silence.is_closed and silence.silent_s > closed_s:
        return CLOSED
    if is_down(silence.state):
        return DOWN
    if min(silence.silent_s, silence.stepless_s) > node_timeout_s:
        return SILENT
    return ""


def is_down(state: str) -> bool:
    """Return whether a state of a node, as ``sinfo`` prints it, says that the node is down."""
    return state.lower().startswith("down")


@dataclass
class Silences:
    """The silences of one node, or of the host of the run's store, one after the other.

    Attributes:
        began_s: When the present silence began; None if there is none.
        notice_after_s: How long the next silence lasts before it is worth a notice; None before the first one.
    """

    began_s: float | None = None
    notice_after_s: float | None = None

    def is_news(self, silent_s: float, *, default_s: float) -> bool:
        """Return whether a silence has lasted long enough for a notice.

        Args:
            silent_s: How long it has lasted.
            default_s: How long the first silence must last.
        """
        return silent_s > (default_s if self.notice_after_s is None else self.notice_after_s)

    def update(
        self, name: str, silent_s: float, *, is_silent: bool, now_s: float, node_timeout_s: float
    ) -> Notice | None:
        """Record whether there is a silence now; return the notice of its begin or end, None if nothing is new."""
        if is_silent and self.began_s is None:
            self.began_s = now_s - silent_s
            return notice(name, silent_s=silent_s, node_timeout_s=node_timeout_s)
        if not is_silent and self.began_s is not None:
            lasted_s = now_s - silent_s - self.began_s
            self.began_s = None
            self.notice_after_s = next_notice_s(lasted_s, node_timeout_s=node_timeout_s)
            return heard_again(name, silent_s=lasted_s)
        return None


def notice(name: str, *, silent_s: float, node_timeout_s: float) -> Notice:
    """Return the notice that a node is silent."""
    return Notice(
        f"{name} has been silent for {silent_s:.0f} s",
        details=("stopped, killed, or cut off: no heartbeat of its launcher arrives",),
        advice=f"the run is ended after {duration(node_timeout_s)} without a heartbeat and without training steps "
        "(--node-timeout)",
    )


def heard_again(name: str, *, silent_s: float) -> Notice:
    """Return the notice that a node that was silent is heard again."""
    return Notice(f"{name} is heard again, after {silent_s:.0f} s")


def next_notice_s(lasted_s: float, *, node_timeout_s: float) -> float:
    """Return from how many seconds on the next silence of a node is worth a notice.

    Where a link is full, heartbeats queue behind gradients: a silence like the last one is nothing new.

    Args:
        lasted_s: The silence that has just ended.
        node_timeout_s: When the node would have been lost; a notice is to come well before.
    """
    return max(lasted_s, min(2 * lasted_s, node_timeout_s / 2))


def named(node: int, host: str) -> str:
    """Return the name of a node, by which a person finds it."""
    return f"node {node} ({host})" if host else f"node {node}"


def store_named(host: str) -> str:
    """Return the name of the host of the run's store, where it is the store that does not answer."""
    return f"the head, {host}," if host else "the head, which hosts the run's store,"
