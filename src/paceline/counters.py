"""The counters of a rank: a few integers in memory that its launcher shares, written at every step.

The rank writes without a system call (some 100 ns a batch). The launcher can read at any time, even
when the rank hangs or has ended. All times are of the monotonic clock, which all processes of a
machine share. Standard library only.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Positions in a rank's slot, each a signed 64-bit integer.
PHASE = 0
BEAT_NS = 1  # last sign of progress other than an optimizer step
BATCHES = 2
STEPS = 3
FIRST_STEP_NS = 4  # end of the first step: the rates exclude this slow step
LAST_STEP_NS = 5
DATA_NS = 6  # wait for the DataLoader since FIRST_STEP_NS
BACKWARD_NS = 7  # in backward since FIRST_STEP_NS: within it, ranks wait for each other
ARMED = 8  # 1: on request, the rank stops cleanly
# Training loops over DataLoaders that reached the loader's end:
LOOPS = 9
LOOP_BATCHES = 10  # batches of the last one; -1: another loop ran at the same time
FIRST_LOOP_BATCHES = 11  # batches of the first one; -1 as above
BATCHES_BEFORE = 12  # BATCHES minus this is the number of batches in the open training loop
LOOP_LENGTH = 17  # length of the last training loop's loader in batches; 0: unknown
# What the first indices of training loops show:
DATA_HASH = 13  # of indices and samples of the first one; 0: not available
DATA_INDICES = 14
SAME_ORDER = 15  # number of the training loop whose order equals that of the one before; 0: none
ORDER_INDICES = 16
# Number of fingerprints of what ranks hold alike, and the step of the last; the rest is in CHECKS.
NUM_CHECKS = 18
LAST_CHECK = 19
# Which samples are trained on and held out: see ``Split``.
SPLIT, SPLIT_SETS, SPLIT_PLACES = 20, slice(22, 50), 14 * 64
# If all ranks may share a DATA_HASH: hash of the results of some steps; 0: not available.
WORK_HASH = 50
# An evaluation whose sampler repeats samples to give all ranks the same number: the number of
# samples of its dataset, and the number with repetitions; 0: there was none.
DATASET_LENGTH = 51
PADDED_LENGTH = 52
# The parameters of an optimizer at the end: 1 + the number of steps until then if a parameter has a
# NaN, and the name of that parameter.
NAN_AFTER = 53
NAN_NAME = 54
NAN_NAME_LENGTH = 16
# The wait for a DataLoader worker:
AWAITED_NS = 70  # start of the rank's wait for a worker's batch; 0: it does not wait
AWAITED_PID = 71  # the worker's process id; 0: unknown
FORKED_AGAIN = 72  # DataLoaders that forked their workers a second time
# Samples and tokens of the first batch of the last training loop; 0: unknown.
BATCH_SAMPLES = 73
BATCH_TOKENS = 74
# Whether torch.distributed had a process group of several ranks: one of GROUP_*; 0: unknown.
GROUP = 75
GROUP_OF_SEVERAL, GROUP_NEVER = 1, 2
# Bytes of the rank's GPU that its tensors take after the last timed step, and its size; 0: unknown.
GPU_ALLOCATED = 76
GPU_BYTES = 77
EVALUATION_DRAWS = 78  # 1: reading samples of an evaluation has drawn random numbers
# The stages of the last steps that were timed: a ring of entries, each the number of steps before
# it, six durations in nanoseconds, and the bits of the last loss as a double.
STAGES = 80
STAGES_ENTRIES, STAGES_LENGTH = 64, 8
# Fingerprints, each a step (from 1), the number of collectives that the rank had begun, and two
# totals as doubles; see ``write_check``.
CHECKS = STAGES + STAGES_ENTRIES * STAGES_LENGTH
NUM_PLACES, CHECK_LENGTH = 16, 4
SLOT_LENGTH = CHECKS + NUM_PLACES * CHECK_LENGTH  # whole cache lines: no false sharing
SLOT_BYTES = SLOT_LENGTH * 8

# Steps that are timed are chosen by the fractional part of their number times the golden ratio, in
# units of 2^-64: no period of the script, such as an evaluation every 32 steps, coincides with all
# of them, and they are about as far apart (the three-distance theorem).
_GOLDEN_RATIO, _UNIT_BITS = 0x9E3779B97F4A7C15, 64
_BITS, _DOUBLE = struct.Struct("@q"), struct.Struct("@d")

# Phases: the progress of the script.
STARTING, RUNNING, RETURNED, FINISHED, LEFT = range(5)
# RETURNED: the script ended without error; threads and atexit handlers may still run.
# FINISHED: these have ended too; only the interpreter's teardown is left.
# LEFT: the script exited before its end, to be resumed (exit status 75).


# This rank's slot, set by the worker entry; None in a process that no launcher counts in.
mine: memoryview[int] | None = None
# The slots of all ranks of this node, also set by the worker entry.
board: SharedCounters | None = None


@dataclass(frozen=True)
class Counters:
    """The counters of a rank at the time they were read."""

    phase: int  # ``STARTING``, ``RUNNING``, ``RETURNED``, ``FINISHED`` or ``LEFT``
    steps: int  # optimizer steps so far
    batches: int  # batches taken from DataLoaders so far
    seconds: float  # time from the end of the first step to the end of the last
    data_s: float  # the part of ``seconds`` that the rank waited for data
    own_s: float  # the part of ``seconds`` outside backward; within backward, ranks wait for others
    loops: int = 0  # training loops over DataLoaders that reached the loader's end
    loop_batches: int = 0  # batches of the last such loop; 0 before the first, -1 if unknown
    first_loop_batches: int = 0  # batches of the first such loop; 0 and -1 likewise
    open_batches: int = 0  # batches of the open training loop
    loop_length: int = 0  # length in batches of the last training loop's loader; 0 if unknown
    beat_ns: int = 0  # last sign of progress, on the machine's monotonic clock; 0 before the first
    step_s: float = 0.0  # usual time of a step; 0 if unknown
    armed: bool = False  # whether the rank stops cleanly on request
    # whether the script has ended, and torch.distributed never had a process group of several ranks
    # in it
    never_grouped: bool = False
    checks: int = 0  # fingerprints of what ranks hold alike
    checked_step: int = 0  # step of the last of them

    @property
    def steps_per_s(self) -> float:
        """Steps per second after the first step; 0 with fewer than two steps."""
        return (self.steps - 1) / self.seconds if self.steps > 1 and self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Order:
    """What the first indices of a rank's training loops show."""

    data_hash: int = 0  # hash of indices and samples of the first loop; 0 if not available
    data_indices: int = 0  # number of indices in ``data_hash``
    same_order: int = 0  # number of the loop with the order of the one before; 0 if none has
    order_indices: int = 0  # number of indices that were compared
    work_hash: int = 0  # of losses, local gradients and parameters of some steps, likewise


class Split(NamedTuple):
    """Which samples of a dataset a rank trains on, and which it holds out."""

    identity: int  # of the dataset; 0 if it is unknown
    is_shared: bool  # whether the sampler of training divides it among ranks
    trained: int  # a bit for each of ``SPLIT_PLACES`` places of the dataset
    held_out: int = 0  # likewise; 0 if no evaluation of other samples was seen

    def write(self, slot: memoryview[int]) -> None:
        """Write it to a rank's slot, the identity last."""
        sets = self.trained | self.held_out << SPLIT_PLACES
        slot[SPLIT_SETS] = memoryview(sets.to_bytes(SPLIT_PLACES // 4, sys.byteorder)).cast("q")
        slot[SPLIT + 1], slot[SPLIT] = self.is_shared, self.identity


@dataclass(frozen=True)
class Awaited:
    """The DataLoader worker that a rank waits for."""

    pid: int = 0  # the worker's process id; 0 if it is unknown or the rank does not wait
    since_ns: int = 0  # start of the wait, on the machine's monotonic clock
    forked_again: int = 0  # number of DataLoaders that forked their workers a second time


class Check(NamedTuple):
    """The fingerprint of what a rank holds as all others do; see ``machine.fingerprints``."""

    collectives: int  # begun by the rank; at another number it is at another place
    first: float  # totals of its random projections, in units of the tolerance
    second: float


NOTHING = Counters(phase=STARTING, steps=0, batches=0, seconds=0.0, data_s=0.0, own_s=0.0)


def create(num_ranks: int) -> int:
    """Return a descriptor of zeroed memory with a slot per local rank; nothing is on disk."""
    size = max(1, num_ranks) * SLOT_BYTES
    if sys.platform == "linux":
        handle = os.memfd_create("paceline-counters")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle


class SharedCounters:
    """The slots of a node's ranks, mapped from the descriptor of ``create``."""

    def __init__(self, handle: int, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._memory = mmap.mmap(handle, max(1, num_ranks) * SLOT_BYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def slot(self, local_rank: int) -> memoryview[int]:
        """Return the slot of a rank for writing."""
        return self._numbers[local_rank * SLOT_LENGTH : (local_rank + 1) * SLOT_LENGTH]

    def clear(self) -> None:
        """Set all slots to zero before ranks restart."""
        for place in range(len(self._numbers)):
            self._numbers[place] = 0

    def read(self, local_rank: int) -> Counters:
        """Read the counters of a rank."""
        slot = self.slot(local_rank)
        steps = slot[STEPS]
        seconds = max(0, slot[LAST_STEP_NS] - slot[FIRST_STEP_NS]) / 1e9
        return Counters(
            phase=slot[PHASE],
            steps=steps,
            batches=slot[BATCHES],
            seconds=seconds,
            data_s=slot[DATA_NS] / 1e9,
            own_s=max(0.0, seconds - slot[BACKWARD_NS] / 1e9),
            loops=slot[LOOPS],
            loop_batches=slot[LOOP_BATCHES],
            first_loop_batches=slot[FIRST_LOOP_BATCHES],
            open_batches=slot[BATCHES] - slot[BATCHES_BEFORE],
            loop_length=slot[LOOP_LENGTH],
            beat_ns=max(slot[BEAT_NS], slot[LAST_STEP_NS]),
            step_s=seconds / (steps - 1) if steps > 1 else 0.0,
            armed=bool(slot[ARMED]),
            never_grouped=slot[GROUP] == GROUP_NEVER,
            checks=slot[NUM_CHECKS],
            checked_step=slot[LAST_CHECK],
        )

    def read_order(self, local_rank: int) -> Order:
        """Read what a rank's training loops show; hashes are written last, so they are complete."""
        places = (DATA_HASH, DATA_INDICES, SAME_ORDER, ORDER_INDICES, WORK_HASH)
        slot = self.slot(local_rank)
        return Order(*[slot[place] for place in places])

    def read_split(self, local_rank: int) -> Split:
        """Read which samples a rank trains on and holds out."""
        slot = self.slot(local_rank)
        identity, is_shared = slot[SPLIT], bool(slot[SPLIT + 1])  # the identity is written last
        sets = int.from_bytes(slot[SPLIT_SETS].tobytes(), sys.byteorder)
        held_out, trained = divmod(sets, 1 << SPLIT_PLACES)
        return Split(identity, is_shared, trained, held_out)

    def read_stages(self, local_rank: int) -> dict[int, tuple[int, ...]]:
        """Return the durations of stages by step, without one that is being written now."""
        slot = self.slot(local_rank)
        stages = {}
        for entry in range(STAGES_ENTRIES):
            place = STAGES + entry * STAGES_LENGTH
            step, durations = slot[place], tuple(slot[place + 1 : place + 7])
            if step and slot[place] == step:
                stages[step] = durations
        return stages

    def read_loss(self, local_rank: int) -> float | None:
        """Return the loss of the last step that was timed; None if it is unknown."""
        losses = losses_in(self.slot(local_rank))
        loss = losses[max(losses)] if losses else math.nan
        return loss if math.isfinite(loss) else None

    def read_batch(self, local_rank: int) -> tuple[int, int]:
        """Return the samples and tokens of a rank's batch; 0 if they are unknown."""
        slot = self.slot(local_rank)
        return slot[BATCH_SAMPLES], slot[BATCH_TOKENS]

    def read_gpu_memory(self, local_rank: int) -> tuple[int, int]:
        """Return what a rank's tensors take of its GPU, and its size in bytes; 0 if unknown."""
        slot = self.slot(local_rank)
        return slot[GPU_ALLOCATED], slot[GPU_BYTES]

    def read_padded(self, local_rank: int) -> tuple[int, int]:
        """Return the samples of a padded evaluation, without and with repetitions; else zeros."""
        slot = self.slot(local_rank)
        return slot[DATASET_LENGTH], slot[PADDED_LENGTH]

    def read_nan(self, local_rank: int) -> str:
        """Return the first parameter with a NaN at the end of a successful rank; else empty."""
        slot = self.slot(local_rank)
        has_returned = slot[PHASE] in (RETURNED, FINISHED)
        if not has_returned or slot[NAN_AFTER] != slot[STEPS] + 1:
            return ""  # the rank continued, or trained another model afterwards
        name = slot[NAN_NAME : NAN_NAME + NAN_NAME_LENGTH].tobytes()
        return name.rstrip(b"\0").decode(errors="replace")

    def read_awaited(self, local_rank: int) -> Awaited:
        """Read which DataLoader worker a rank waits for."""
        slot = self.slot(local_rank)
        since_ns = slot[AWAITED_NS]
        return Awaited(slot[AWAITED_PID] if since_ns else 0, since_ns, slot[FORKED_AGAIN])

    def read_checks(self, local_rank: int) -> dict[int, Check]:
        """Return a rank's fingerprints by step, without one that is being written now."""
        slot = self.slot(local_rank)
        checks = {}
        for place in range(CHECKS, SLOT_LENGTH, CHECK_LENGTH):
            step, collectives, first, second = slot[place : place + CHECK_LENGTH]
            if step and slot[place] == step:
                checks[step] = Check(collectives, _double(first), _double(second))
        return checks


def rarity(step: int) -> int:
    """Return k if a step is one of those of which 1 in 2^k is timed, and not 1 in 2^(k+1)."""
    fraction = step * _GOLDEN_RATIO & ((1 << _UNIT_BITS) - 1)
    return _UNIT_BITS - fraction.bit_length()


def losses_in(slot: memoryview[int]) -> dict[int, float]:
    """Return the losses of the last timed steps by step; NaN where it is unknown."""
    places = range(STAGES, CHECKS, STAGES_LENGTH)
    return {slot[place]: _double(slot[place + 7]) for place in places if slot[place]}


def _double(bits: int) -> float:
    number: float = _DOUBLE.unpack(_BITS.pack(bits))[0]
    return number


def _bits(number: float) -> int:
    bits: int = _BITS.unpack(_DOUBLE.pack(number))[0]
    return bits


def write_stages(
    slot: memoryview[int],
    *,
    number: int,  # steps that were written before it
    step: int,  # optimizer steps before it
    durations: Sequence[int],  # six, in nanoseconds, in the order of ``launch.monitor.stage_times``
    loss: float = math.nan,  # the value that the step's last backward began with
) -> None:
    """Write how long the stages of a step took."""
    place = STAGES + number % STAGES_ENTRIES * STAGES_LENGTH
    slot[place] = 0  # readers ignore the entry until it is complete
    for offset, duration in enumerate(durations, 1):
        slot[place + offset] = duration
    slot[place + 7] = _bits(loss)
    slot[place] = step


def write_nan(slot: memoryview[int], name: str) -> None:
    """Record that a parameter has a NaN after the steps so far."""
    num_bytes = NAN_NAME_LENGTH * 8
    encoded = name.encode()[:num_bytes].ljust(num_bytes, b"\0")
    slot[NAN_NAME : NAN_NAME + NAN_NAME_LENGTH] = memoryview(encoded).cast("q")
    slot[NAN_AFTER] = slot[STEPS] + 1


def others_read_other_data(data_hash: int) -> bool:
    """Return whether another rank of this node has another hash of indices and samples."""
    if board is None:
        return False
    return any(
        board.read_order(local).data_hash not in (0, data_hash) for local in range(board.num_ranks)
    )


def write_check(slot: memoryview[int], check: Check, *, step: int, at_powers: bool) -> list[int]:
    """Write a fingerprint of a step; return the places among ``NUM_PLACES`` that keep it.

    ``at_powers``: checks are as rare as powers of two, and the last ``NUM_PLACES`` are kept. Of
    more frequent ones, place l keeps the last whose number is a multiple of 2^l. Ranks and nodes
    are read one after the other, and some place shows the same step for all of them.
    """
    slot[NUM_CHECKS] += 1
    slot[LAST_CHECK] = step
    number = slot[NUM_CHECKS]
    rare = [(number - 1) % NUM_PLACES]
    places = rare if at_powers else [one for one in range(NUM_PLACES) if number % (1 << one) == 0]
    for place in places:
        start = CHECKS + CHECK_LENGTH * place
        slot[start] = 0  # readers ignore the entry until it is complete
        slot[start + 1] = check.collectives
        slot[start + 2], slot[start + 3] = _bits(check.first), _bits(check.second)
        slot[start] = step
    return places
