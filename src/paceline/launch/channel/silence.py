"""Decide whether a silent node is lost, from the length of its silence and what is proven. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.errors import Notice
from paceline.text.wording import duration

# Reasons to call a node lost.
CLOSED = "closed"  # its host closed its launcher's connection; no heartbeat since then
REFUSED = "refused"  # its host answers, but its launcher's port is closed
DOWN = "down"  # the scheduler reports the node as down
SILENT = "silent"  # no heartbeat and no training step during --node-timeout


class NodeLost(Exception):
    """A node is lost that the run needs; the other nodes would wait for it forever."""


@dataclass(frozen=True)
class Silence:
    """What is known about a silent node."""

    silent_s: float  # seconds since its last heartbeat
    # seconds since ranks made a step on any node that can be heard, or since the start
    stepless_s: float
    # whether its host closed its launcher's connection after the last heartbeat
    is_closed: bool = False
    state: str = ""  # the scheduler's state of the node; empty without a scheduler


@dataclass(frozen=True)
class Loss:
    """A lost node, or the lost host of the run's store."""

    host: str = ""  # its host; empty if unknown
    reason: str = SILENT  # ``CLOSED``, ``REFUSED``, ``DOWN`` or ``SILENT``
    silent_s: float = 0.0  # how long it was silent, in seconds

    def to_json(self) -> list[Any]:
        """Return the loss as plain data."""
        return [self.host, self.reason, self.silent_s]


def judge(silence: Silence, *, node_timeout_s: float, closed_s: float) -> str:
    """Return why a node is lost; empty if it may come back.

    ``closed_s`` is how long a node without a connection may be silent: a living launcher reconnects
    at once.
    """
    if silence.is_closed and silence.silent_s > closed_s:
        return CLOSED
    if is_down(silence.state):
        return DOWN
    if min(silence.silent_s, silence.stepless_s) > node_timeout_s:
        return SILENT
    return ""


def is_down(state: str) -> bool:
    """Return whether a node state, as ``sinfo`` prints it, means that the node is down."""
    return state.lower().startswith("down")


@dataclass
class Silences:
    """The successive silences of one node, or of the host of the run's store."""

    began_s: float | None = None  # when the current silence began; None if there is none
    # how long the next silence lasts before a notice, in seconds; None before the first silence
    notice_after_s: float | None = None

    def is_news(self, silent_s: float, *, default_s: float) -> bool:
        """Return whether a silence is worth a notice; the first has to last ``default_s``."""
        return silent_s > (default_s if self.notice_after_s is None else self.notice_after_s)

    def update(
        self, name: str, silent_s: float, *, is_silent: bool, now_s: float, node_timeout_s: float
    ) -> Notice | None:
        """Record whether there is a silence; return the notice if it starts or ends, else None."""
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
        advice=(
            f"the run is ended after {duration(node_timeout_s)} without a heartbeat and without"
            " training steps (--node-timeout)"
        ),
    )


def heard_again(name: str, *, silent_s: float) -> Notice:
    """Return the notice that a silent node is heard again."""
    return Notice(f"{name} is heard again, after {silent_s:.0f} s")


def next_notice_s(lasted_s: float, *, node_timeout_s: float) -> float:
    """Return how many seconds the next silence of a node lasts before a notice.

    On a full link, heartbeats queue behind gradients: a silence like the last one is not news. The
    notice must come well before the node is lost.
    """
    return max(lasted_s, min(2 * lasted_s, node_timeout_s / 2))


def named(node: int, host: str) -> str:
    """Return the name of a node, by which a person finds it."""
    return f"node {node} ({host})" if host else f"node {node}"


def store_named(host: str) -> str:
    """Return the name of the store's host, for notices about a store that does not answer."""
    return f"the head, {host}," if host else "the head, which hosts the run's store,"
