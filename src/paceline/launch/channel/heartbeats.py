"""When nodes were heard last, on a clock that runs only while this process does.

A launcher that was stopped for two minutes has heard nobody for two minutes, and must not hold that against them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.launch.channel.silence import Silence

# Between two looks more time than this, beside the usual, was spent stopped or without a CPU.
_MOST_LATE_S = 2.0


@dataclass
class Heard:
    """What was heard of one node.

    Attributes:
        beat: Its last heartbeat: a counter, who it is, and how many steps its ranks have made.
        since_s: When that came, on the clock of this module.
        wall_s: The same on the machine's clock.
        is_closed: The connection of its launcher is closed.
        state: What the scheduler says of it.
    """

    beat: bytes = b""
    since_s: float = 0.0
    wall_s: float = field(default_factory=time.time)
    is_closed: bool = False
    state: str = ""

    @property
    def launcher(self) -> str:
        """Host and pid of its launcher, as ``liveness.name_of`` writes them; empty before the first heartbeat."""
        words = self.beat.decode().split(" ")
        return words[1] if len(words) > 1 else ""

    @property
    def host(self) -> str:
        """Its host, empty before the first heartbeat."""
        return self.launcher.rpartition(":")[0]

    @property
    def steps(self) -> str:
        """How many steps its ranks have made, as it wrote it."""
        return self.beat.decode().rpartition(" ")[2]


def write_beat(count: int, launcher: str, steps: int) -> str:
    """Return a heartbeat as it is written into the store."""
    return f"{count} {launcher} {steps}"


class Heartbeats:
    """The heartbeats of some nodes.

    Args:
        nodes: Their node ranks.
        tick_s: How often ``advance`` is called.
    """

    def __init__(self, nodes: Iterable[int], *, tick_s: float) -> None:
        self.now_s = 0.0
        self._tick_s = tick_s
        self._looked_s = time.monotonic()
        self._stepped_s = 0.0
        self.heard = {node: Heard() for node in nodes}

    def advance(self) -> None:
        """Let the clock run on; of a time in which this process did not run it counts a moment."""
        now_s = time.monotonic()
        self.now_s += min(now_s - self._looked_s, self._tick_s + _MOST_LATE_S)
        self._looked_s = now_s

    def step(self) -> None:
        """Note that ranks somewhere have made an optimizer step."""
        self._stepped_s = self.now_s

    def hear(self, node: int, beat: bytes) -> None:
        """Note a heartbeat as it stands in the store now."""
        heard = self.heard[node]
        if beat == heard.beat:
            return
        before = heard.steps
        heard.beat, heard.since_s, heard.wall_s = beat, self.now_s, time.time()
        heard.is_closed, heard.state = False, ""
        if heard.steps != before:
            self.step()

    @property
    def stepless_s(self) -> float:
        """Seconds since ranks somewhere made an optimizer step, or since the start."""
        return self.now_s - self._stepped_s

    def silence(self, node: int) -> Silence:
        """Return what is known of the silence of a node."""
        heard = self.heard[node]
        return Silence(self.now_s - heard.since_s, self.stepless_s, heard.is_closed, heard.state)
