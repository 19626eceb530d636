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
ARMED = 8  # 1: the rank stops well by itself when it is asked to
# Loops over DataLoaders that trained, and came to the loader's end:
LOOPS = 9
LOOP_BATCHES = 10  # batches of the last one; -1: another loop was under way beside it
FIRST_LOOP_BATCHES = 11  # batches of the first one; -1 likewise
BATCHES_BEFORE = 12  # what to take off BATCHES to have the batches of the training loop that is open now
LOOP_LENGTH = 17  # batches that the loader of the last training loop says it has; 0: it does not
# What the first indices of training loops showed:
DATA_HASH = 13  # of indices and samples of the first one; 0: nothing to say
DATA_INDICES = 14
SAME_ORDER = 15  # number of the training loop that had the order of the one before; 0: none had
ORDER_INDICES = 16
# Checksums of all parameters, each a step (from 1) and a sum. Level l keeps the last check whose number is a
# multiple of 2^l: of ranks and nodes that are looked at one after the other, some level shows the same step.
CHECKS = 18
CHECK_LEVELS = 16
# Of a training whose DATA_HASH all ranks may share: hash of what a few of its steps have computed; 0: not shown.
WORK_HASH = 50
# An evaluation whose sampler repeats samples so that all ranks have as many: samples of its dataset, and with those
# that are repeated; 0: none was seen.
DATASET_LENGTH = 51
PADDED_LENGTH = 52
# The parameters of an optimizer that has ended: 1 + the steps until then, if one of them has a NaN; its name.
NAN_AFTER = 53
NAN_NAME = 54
NAN_NAME_LENGTH = 16
# The wait for a DataLoader's worker:
AWAITED_NS = 70  # since when the rank waits for a batch of a worker; 0: it does not
AWAITED_PID = 71  # the worker's process; 0: it is not known
FORKED_AGAIN = 72  # DataLoaders that have forked their workers a second time
SLOT_LENGTH = 80  # whole cache lines: ranks do not slow each other
SLOT_BYTES = SLOT_LENGTH * 8

BATCH = struct.Struct("@2q")  # BEAT_NS and BATCHES
STEP = struct.Struct("@7q")  # BEAT_NS to OWN_NS

# Phases: how far the script has come.
STARTING, RUNNING, RETURNED, FINISHED, LEFT = range(5)
# RETURNED: the script came to its end without error, threads and atexit handlers may still run.
# FINISHED: those are through too; only the interpreter's own teardown is left.
# LEFT: the script ended itself before its end, to be resumed (exit status 75).


# This rank's slot, None in a process that no launcher counts in; set by the worker entry.
mine: memoryview[int] | None = None
# The slots of all ranks of this node, likewise.
board: SharedCounters | None = None


@dataclass(frozen=True)
class Counters:
    """What a rank's slot said when it was read.

    Attributes:
        phase: ``STARTING``, ``RUNNING``, ``RETURNED``, ``FINISHED`` or ``LEFT``.
        steps: Optimizer steps so far.
        batches: Batches taken from DataLoaders so far.
        seconds: Time from the end of the first step to the end of the last.
        data_s: Of these, waiting for data.
        own_s: Of these, outside backward (where waiting for other ranks happens).
        loops: Loops over DataLoaders that trained and came to the loader's end.
        loop_batches: Batches of the last of these, 0 before there was one, -1 if it cannot be told.
        first_loop_batches: The same of the first one.
        open_batches: Batches of the training loop that is open now.
        loop_length: Batches that the loader of the training loop that began last says it has, 0 if it does not.
        beat_ns: Last sign of progress, on the machine's monotonic clock; 0 before the first.
        step_s: Usual time of a step, 0 if unknown.
        armed: The rank stops well by itself when it is asked to.
    """

    phase: int
    steps: int
    batches: int
    seconds: float
    data_s: float
    own_s: float
    loops: int = 0
    loop_batches: int = 0
    first_loop_batches: int = 0
    open_batches: int = 0
    loop_length: int = 0
    beat_ns: int = 0
    step_s: float = 0.0
    armed: bool = False

    @property
    def steps_per_s(self) -> float:
        """Steps a second after the first; 0 with fewer than two."""
        return (self.steps - 1) / self.seconds if self.steps > 1 and self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Order:
    """What the first indices of a rank's training loops showed.

    Attributes:
        data_hash: Of indices and samples of the first loop; 0 if there is nothing to say.
        data_indices: Indices in it.
        same_order: Number of the loop that had the order of the one before, 0 if none had.
        order_indices: Indices that were compared.
        work_hash: Of losses, local gradients and parameters of a few steps of the first loop; 0 if nothing is shown.
    """

    data_hash: int = 0
    data_indices: int = 0
    same_order: int = 0
    order_indices: int = 0
    work_hash: int = 0


@dataclass(frozen=True)
class Awaited:
    """The DataLoader worker that a rank waits for.

    Attributes:
        pid: Its process; 0 if the rank waits for none, or it is not known which.
        since_ns: When the wait began, on the machine's monotonic clock.
        forked_again: DataLoaders that have forked their workers a second time.
    """

    pid: int = 0
    since_ns: int = 0
    forked_again: int = 0


NOTHING = Counters(phase=STARTING, steps=0, batches=0, seconds=0.0, data_s=0.0, own_s=0.0)


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


class SharedCounters:
    """The slots of a node's ranks, mapped from the descriptor of ``create``.

    Attributes:
        num_ranks: How many there are.
    """

    def __init__(self, handle: int, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._memory = mmap.mmap(handle, max(1, num_ranks) * SLOT_BYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def slot(self, local_rank: int) -> memoryview[int]:
        """Return the slot of a rank, to write to."""
        return self._numbers[local_rank * SLOT_LENGTH : (local_rank + 1) * SLOT_LENGTH]

    def clear(self) -> None:
        """Set all slots to zero, before ranks start again."""
        for place in range(len(self._numbers)):
            self._numbers[place] = 0

    def read(self, local_rank: int) -> Counters:
        """Return what a rank has written."""
        slot = self.slot(local_rank)
        steps, seconds = slot[STEPS], max(0, slot[LAST_STEP_NS] - slot[FIRST_STEP_NS]) / 1e9
        return Counters(
            phase=slot[PHASE],
            steps=steps,
            batches=slot[BATCHES],
            seconds=seconds,
            data_s=slot[DATA_NS] / 1e9,
            own_s=slot[OWN_NS] / 1e9,
            loops=slot[LOOPS],
            loop_batches=slot[LOOP_BATCHES],
            first_loop_batches=slot[FIRST_LOOP_BATCHES],
            open_batches=slot[BATCHES] - slot[BATCHES_BEFORE],
            loop_length=slot[LOOP_LENGTH],
            beat_ns=slot[BEAT_NS],
            step_s=seconds / (steps - 1) if steps > 1 else 0.0,
            armed=bool(slot[ARMED]),
        )

    def read_order(self, local_rank: int) -> Order:
        """Return what a rank's training loops showed; a hash is written last, so that it is whole."""
        slot = self.slot(local_rank)
        data_hash, same_order = slot[DATA_HASH], slot[SAME_ORDER]
        return Order(data_hash, slot[DATA_INDICES], same_order, slot[ORDER_INDICES], slot[WORK_HASH])

    def read_padded(self, local_rank: int) -> tuple[int, int]:
        """Return the samples of a padded evaluation's dataset, and with those that were repeated; zeros for none."""
        slot = self.slot(local_rank)
        return slot[DATASET_LENGTH], slot[PADDED_LENGTH]

    def read_nan(self, local_rank: int) -> str:
        """Return the first parameter with a NaN in it at the end of a rank that has succeeded; empty for none."""
        slot = self.slot(local_rank)
        has_returned = slot[PHASE] in (RETURNED, FINISHED)
        if not has_returned or slot[NAN_AFTER] != slot[STEPS] + 1:
            return ""  # it goes on, or trained something else after that
        name = slot[NAN_NAME : NAN_NAME + NAN_NAME_LENGTH].tobytes()
        return name.rstrip(b"\0").decode(errors="replace")

    def read_awaited(self, local_rank: int) -> Awaited:
        """Return the DataLoader worker that a rank waits for."""
        slot = self.slot(local_rank)
        since_ns = slot[AWAITED_NS]
        return Awaited(slot[AWAITED_PID] if since_ns else 0, since_ns, slot[FORKED_AGAIN])

    def read_checks(self, local_rank: int) -> dict[int, int]:
        """Return a rank's checksums by step; one that is being written now is left out."""
        slot = self.slot(local_rank)
        found = {}
        for place in range(CHECKS, CHECKS + 2 * CHECK_LEVELS, 2):
            step, checksum = slot[place], slot[place + 1]
            if step and slot[place] == step:
                found[step] = checksum
        return found


def write_nan(slot: memoryview[int], name: str) -> None:
    """Write that a parameter has a NaN after the steps that were made so far."""
    room = NAN_NAME_LENGTH * 8
    slot[NAN_NAME : NAN_NAME + NAN_NAME_LENGTH] = memoryview(name.encode()[:room].ljust(room, b"\0")).cast("q")
    slot[NAN_AFTER] = slot[STEPS] + 1


def others_read_other_data(data_hash: int) -> bool:
    """Return whether a rank of this node is known to read other samples than this one, whose hash is given."""
    if board is None:
        return False
    return any(board.read_order(local).data_hash not in (0, data_hash) for local in range(board.num_ranks))


def write_check(slot: memoryview[int], *, number: int, step: int, checksum: int) -> None:
    """Write a checksum of all parameters.

    Args:
        slot: The rank's.
        number: Number of the check, from 1.
        step: Optimizer step that it was made after.
        checksum: The sum, signed 64 bits.
    """
    for level in range(CHECK_LEVELS):
        if number % (1 << level):
            break
        place = CHECKS + 2 * level
        slot[place] = 0  # whoever reads now sees none
        slot[place + 1] = checksum
        slot[place] = step
