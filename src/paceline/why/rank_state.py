"""The observations of one rank over some seconds, and whether it has moved meanwhile. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.monitor.proof import Stand
from paceline.launch.monitor.stacks import Look, bytes_moved, is_still
from paceline.why.loops import Nest

# Motion of a rank. Still: nothing has moved. In place: the stack did not change, but the rank used
# a CPU or received bytes. Running: it was in several places, or has begun another collective.
STILL, IN_PLACE, RUNNING = "still", "in-place", "running"
# Calls in a line of the user's code that wait until the GPU has finished its work, collectives
# included.
_GPU_WAIT = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|wait)\(|\.to\(\s*['\"]cpu|\bprint\(")
_GPU_FUNCTIONS = ("synchronize", "wait_stream")


@dataclass(frozen=True)
class Account:
    """The observations of one rank."""

    run: str  # identifies the run on this host
    world_size: int  # number of ranks of the run
    job: str = ""  # Slurm job id, empty outside of Slurm
    started_by: str = ""  # description of the process that started the rank
    launcher: int = 0  # process id of the process that started the rank
    script: str = ""  # command that the rank runs
    seconds: float = 0.0  # how long the rank was observed
    position: Position = field(default_factory=lambda: Position(0))  # last position of the rank
    stand: Stand = field(default_factory=lambda: Stand(0))  # evidence for a proof
    motion: str = RUNNING  # ``STILL``, ``IN_PLACE`` or ``RUNNING``
    places: tuple[str, ...] = ()  # all places of the user's code in which the rank was seen
    facts: tuple[str, ...] = ()  # lines with what ``/proc`` shows of the rank and its children
    error: str = ""  # why the stack is not visible; empty if it is
    # finding if its DataLoader worker is proven to be deadlocked in its fork
    deadlock: Finding | None = None
    nccl: tuple[str, ...] = ()  # lines with the faults that NCCL's RAS reports
    # the user's frames of the stack, outermost first, and the loops around them
    loops: tuple[Nest, ...] = ()

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.position.rank

    @property
    def is_visible(self) -> bool:
        """Whether the rank's position is known."""
        return self.position.ended or bool(self.position.frames)

    def to_json(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {**asdict(self), "deadlock": self.deadlock and self.deadlock.to_json()}


def motion(
    looks: Sequence[Look],  # looks at one rank, in order
    *,
    seconds: float,  # time between the first and the last
) -> str:
    """Return how a rank has moved between the first look and the last."""
    calls = {
        (look.recorded.get("group"), look.recorded.get("seq")) for look in looks if look.recorded
    }
    stacks = [look.frames for look in looks if look.frames]
    # Another collective is progress even in the same line, in a loop without anything else in it.
    if len(calls) > 1 or any(frames != stacks[0] for frames in stacks):
        return RUNNING
    if is_still(looks, seconds) and not bytes_moved(looks):
        return STILL
    return IN_PLACE if stacks else RUNNING  # without a stack only the kernel's counters are known


def waits_for_gpu(
    frames: Sequence[Frame],  # the stack, outermost first
) -> bool:
    """Return whether a rank that stays in this place waits for its GPU to finish."""
    if not frames:
        return False
    inner = frames[-1]
    if not inner.user:
        return inner.function in _GPU_FUNCTIONS and "/torch/cuda/" in inner.file
    return bool(_GPU_WAIT.search(inner.code))
