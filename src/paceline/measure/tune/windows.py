"""Turn the batches that ranks got into seconds per batch. Pure.

Workers deliver in bursts: with four of them, four batches come at about the same time, and then
none for as long as a batch takes to read. A single wait therefore says nothing. What is compared is
the time of a whole round of all workers, divided by its batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.launch.probe.loader_commands import Delivery

# Rounds that a window is summed up to: more would slow down the bootstrap and not narrow it.
_MOST_VALUES = 16
# A window is complete with so many rounds of each rank, if it is long enough.
_LEAST_ROUNDS, _LAST_ROUNDS = 5, 2
# Caches, queues and the threads of a rank need a moment to settle after a change.
_SETTLE_NS = 150_000_000


@dataclass(frozen=True)
class Window:
    """What ranks did while they followed one command."""

    # seconds per batch, a value for each round of the workers and each rank
    seconds: Sequence[float]
    # time from the first batch that counts to the last, of the rank that has seen the least; 0 or
    # less if there is none
    length_s: float
    start_s: float  # time from the command to the first batch: workers start in it. The longest.


def measure(by_rank: Mapping[int, Iterable[Delivery]], number: int, *, num_workers: int) -> Window:
    """Return what ranks did while they followed a command."""
    values: list[float] = []
    lengths, starts = [], [0.0]
    for deliveries in by_rank.values():
        own = [delivery for delivery in deliveries if delivery.number == number]
        times = [delivery.delivered_ns for delivery in own]
        values += rounds(times, num_workers)
        lengths.append((times[-1] - times[0] - _SETTLE_NS) * 1e-9 if times else 0.0)
        starts += [(own[0].delivered_ns - own[0].requested_ns) * 1e-9] if own else []
    return Window(values, min(lengths, default=0.0), max(starts))


def rounds(times_ns: Sequence[int], num_workers: int) -> list[float]:
    """Return the seconds per batch of each round, from the times when batches came.

    The first batches are left out: while the loop waits for the first one, the other workers read
    theirs, so up to ``num_workers`` more batches are there sooner than they will be later. So are
    all batches of the first moment. 0 workers: the training process reads them.
    """
    begin_ns = times_ns[0] + _SETTLE_NS if times_ns else 0
    settled = [time for time in times_ns[1 + num_workers :] if time >= begin_ns]
    per_round = max(1, num_workers)
    num_rounds = (len(settled) - 1) // per_round
    step = per_round * max(1, -(-num_rounds // _MOST_VALUES))
    return [
        (settled[end] - settled[end - step]) / step * 1e-9
        for end in range(step, len(settled), step)
    ]


def is_enough(window: Window, num_ranks: int, *, least_s: float, is_last: bool) -> bool:
    """Return whether a window is long enough: ``least_s`` if rounds are short.

    Fewer rounds are enough if ``is_last``: the window cannot become longer.
    """
    least = _LAST_ROUNDS if is_last else _LEAST_ROUNDS
    has_rounds = len(window.seconds) >= least * num_ranks
    return has_rounds and (is_last or window.length_s >= least_s)
