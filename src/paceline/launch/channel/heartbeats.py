"""Record when each node's last heartbeat came, on a clock that runs only while this process runs.

A launcher that was stopped for two minutes has heard no node for two minutes, but the nodes were
not silent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.launch.channel.silence import Silence

# Time beyond this between two looks, on top of the interval, was spent stopped or without a CPU.
_MOST_LATE_S = 2.0


@dataclass
class NodeRecord:
    """The last heartbeat of one node, and what else is known about the node."""

    # its last heartbeat: a counter, the launcher's name, and how many steps its ranks made
    beat: bytes = b""
    since_s: float = 0.0  # when the heartbeat arrived, on the clock of this module
    # when the heartbeat arrived, on the machine's clock
    wall_s: float = field(default_factory=time.time)
    is_closed: bool = False  # whether the connection of its launcher is closed
    state: str = ""  # the scheduler's state of the node; empty if unknown

    @property
    def launcher(self) -> str:
        """Name of its launcher, as ``liveness.name_of`` returns it; empty before a heartbeat."""
        words = self.beat.decode().split(" ")
        return words[1] if len(words) > 1 else ""

    @property
    def host(self) -> str:
        """Its host; empty before the first heartbeat."""
        return self.launcher.rpartition(":")[0]

    @property
    def steps(self) -> str:
        """The number of steps of its ranks, as the node wrote it."""
        return self.beat.decode().rpartition(" ")[2]


def write_beat(count: int, launcher: str, steps: int) -> str:
    """Return a heartbeat in the form that the store holds."""
    return f"{count} {launcher} {steps}"


class Heartbeats:
    """The heartbeats of some nodes."""

    def __init__(
        self,
        nodes: Iterable[int],
        *,
        tick_s: float,  # between two calls of ``advance``
    ) -> None:
        self.now_s = 0.0  # the time on the clock of this module
        self._tick_s = tick_s
        self._looked_s = time.monotonic()
        self._stepped_s = 0.0
        # what is known about each node, by node rank
        self.records = {node: NodeRecord() for node in nodes}

    def advance(self) -> None:
        """Advance the clock.

        A time in which this process did not run counts as a short moment.
        """
        now_s = time.monotonic()
        self.now_s += min(now_s - self._looked_s, self._tick_s + _MOST_LATE_S)
        self._looked_s = now_s

    def step(self) -> None:
        """Record that ranks on some node have made an optimizer step."""
        self._stepped_s = self.now_s

    def record(self, node: int, beat: bytes) -> None:
        """Record a heartbeat as the store holds it now."""
        last = self.records[node]
        if beat == last.beat:
            return
        steps_before = last.steps
        last.beat, last.since_s, last.wall_s = beat, self.now_s, time.time()
        last.is_closed, last.state = False, ""
        if last.steps != steps_before:
            self.step()

    @property
    def stepless_s(self) -> float:
        """Seconds since ranks on any node made an optimizer step, or since the start."""
        return self.now_s - self._stepped_s

    def silence(self, node: int) -> Silence:
        """Return what is known about the silence of a node."""
        last = self.records[node]
        return Silence(self.now_s - last.since_s, self.stepless_s, last.is_closed, last.state)
