"""Collect the steps whose stages the ranks of a node have timed, and choose the same ones on all
nodes.

A rank keeps its last timed steps in a ring. The launcher reads the rings twice a second, and keeps
the steps that all ranks of the node have timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from paceline.counters import SharedCounters, rarity

EVERY_S = 0.25
TRIAL_EVERY_S = 0.02  # all steps of a trial are timed, and the ring holds 64 of them
MOST = 1024  # steps that a node keeps
MOST_SENT = 256  # steps that a node sends; what comes every 50 steps has to be in them
_MOST_VALUES = 200_000  # durations of all ranks that are sent together

Durations = tuple[int, ...]


class TimedSteps:
    """The timed steps of a node's ranks in one attempt."""

    def __init__(
        self,
        counters: SharedCounters,  # the counters of the node's ranks
        ranks: Mapping[int, int],  # rank by local rank
        *,
        every_s: float = EVERY_S,  # seconds between two looks at the rings
    ) -> None:
        self._counters, self._ranks, self._every_s = counters, ranks, every_s
        self._steps: dict[int, dict[int, Durations]] = {}
        self._next_s = 0.0

    def tick(self) -> None:
        """Read if an interval has passed; otherwise almost free."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self.look()

    def look(self) -> None:
        """Read what the ranks have timed since the last call."""
        by_rank = {rank: self._counters.read_stages(local) for local, rank in self._ranks.items()}
        if not by_rank:
            return
        common = set.intersection(*(set(steps) for steps in by_rank.values()))
        for step in common - set(self._steps):
            self._steps[step] = {rank: steps[step] for rank, steps in by_rank.items()}
        if len(self._steps) > 2 * MOST:
            self._steps = {step: self._steps[step] for step in choose(self._steps, MOST)}

    def latest(self, count: int) -> dict[int, dict[int, Durations]]:
        """Return the last ``count`` steps, durations by rank."""
        return {step: self._steps[step] for step in sorted(self._steps)[-count:]}

    def to_send(self, world_size: int) -> dict[int, dict[int, Durations]]:
        """Return steps of the whole attempt, in a number that suits the size of the world."""
        return {step: self._steps[step] for step in choose(self._steps, most_sent(world_size))}


def most_sent(world_size: int) -> int:
    """Return how many steps suit a number of ranks: each has the durations of all of them."""
    return max(16, min(MOST_SENT, _MOST_VALUES // (6 * world_size)))


def choose(steps: Iterable[int], count: int) -> list[int]:
    """Choose ``count`` steps that other nodes choose too, in order.

    Nodes may have timed different steps, one in 4 and one in 8 say, and may have missed some. Rare
    steps were timed by more of them.
    """
    rarest = sorted(steps, key=lambda step: (rarity(step), step), reverse=True)
    return sorted(rarest[:count])


def to_json(steps: Mapping[int, Mapping[int, Durations]]) -> dict[str, dict[str, list[int]]]:
    """Return steps as plain data, in microseconds."""
    return {
        str(step): {
            str(rank): [duration // 1000 for duration in durations]
            for rank, durations in ranks.items()
        }
        for step, ranks in steps.items()
    }


def from_json(values: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[int, dict[int, Durations]]:
    """Return the steps from the data that ``to_json`` returned, in nanoseconds."""
    return {
        int(step): {
            int(rank): tuple(duration * 1000 for duration in durations)
            for rank, durations in ranks.items()
        }
        for step, ranks in values.items()
    }


def join(nodes: Sequence[Mapping[int, Mapping[int, Durations]]]) -> dict[int, dict[int, Durations]]:
    """Return the steps that all nodes have sent, in order, with the durations of all ranks."""
    if not nodes:
        return {}
    common = set.intersection(*(set(steps) for steps in nodes))
    return {
        step: {rank: durations for steps in nodes for rank, durations in steps[step].items()}
        for step in sorted(common)
    }
