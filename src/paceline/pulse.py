"""The pulse of a rank: a few integers in memory that its launcher shares, written at every step.

The rank writes without a system call (some 100 ns a batch); the launcher reads whenever it likes, also
when the rank hangs or is gone. All times are of the monotonic clock, which is one for all processes of a
machine. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
from dataclasses import dataclass

# Places in a rank's slot, each a signed 64-bit integer. From BEAT_NS on they are written in this order.
PHASE = 0
BEAT_NS = 1  # last sign of progress
BATCHES = 2
STEPS = 3
FIRST_STEP_NS = 4  # end of the first step: the rates leave the first, slow step out
LAST_STEP_NS = 5
DATA_NS = 6  # waiting for the DataLoader since FIRST_STEP_NS
OWN_NS = 7  # since FIRST_STEP_NS, outside backward: data, forward, optimizer; not the wait for other ranks
SLOT_LENGTH = 8
SLOT_BYTES = SLOT_LENGTH * 8

BATCH = struct.Struct("@2q")  # BEAT_NS and BATCHES
STEP = struct.Struct("@7q")  # BEAT_NS to OWN_NS

# Phases: how far the script has come.
STARTING, RUNNING, RETURNED, FINISHED, LEFT = range(5)
# RETURNED: the script came to its end without error, threads and atexit handlers may still run.
# FINISHED: those are through too; only the interpreter's own teardown is left.
# LEFT: the script ended itself before its end, to be resumed (exit status 75).


@dataclass(frozen=True)
class Pulse:
    """What a rank's slot said when it was read.

    Attributes:
        phase: ``STARTING``, ``RUNNING``, ``RETURNED``, ``FINISHED`` or ``LEFT``.
        steps: Optimizer steps so far.
        batches: Batches taken from DataLoaders so far.
        seconds: Time from the end of the first step to the end of the last.
        data_s: Of these, waiting for data.
        own_s: Of these, outside backward (where waiting for other ranks happens).
    """

    phase: int
    steps: int
    batches: int
    seconds: float
    data_s: float
    own_s: float

    @property
    def steps_per_s(self) -> float:
        """Steps a second after the first; 0 with fewer than two."""
        return (self.steps - 1) / self.seconds if self.steps > 1 and self.seconds > 0 else 0.0


NOTHING = Pulse(phase=STARTING, steps=0, batches=0, seconds=0.0, data_s=0.0, own_s=0.0)


def create(num_ranks: int) -> int:
    """Return a file descriptor of zeroed memory with a slot for each local rank; nothing is left on disk."""
    size = max(1, num_ranks) * SLOT_BYTES
    if sys.platform == "linux":
        handle = os.memfd_create("paceline-pulse")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle


class PulseBoard:
    """The slots of a node's ranks, mapped from the descriptor of ``create``."""

    def __init__(self, handle: int, num_ranks: int) -> None:
        self._memory = mmap.mmap(handle, max(1, num_ranks) * SLOT_BYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def slot(self, local_rank: int) -> memoryview[int]:
        """Return the slot of a rank, to write to."""
        return self._numbers[local_rank * SLOT_LENGTH : (local_rank + 1) * SLOT_LENGTH]

    def clear(self) -> None:
        """Set all slots to zero, before ranks start again."""
        for place in range(len(self._numbers)):
            self._numbers[place] = 0

    def read(self, local_rank: int) -> Pulse:
        """Return what a rank has written."""
        slot = self.slot(local_rank)
        return Pulse(
            phase=slot[PHASE],
            steps=slot[STEPS],
            batches=slot[BATCHES],
            seconds=max(0, slot[LAST_STEP_NS] - slot[FIRST_STEP_NS]) / 1e9,
            data_s=slot[DATA_NS] / 1e9,
            own_s=slot[OWN_NS] / 1e9,
        )
