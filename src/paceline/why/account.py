"""What is known of one rank after it was looked at for some seconds, and whether it has moved meanwhile. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.monitor.proof import Stand
from paceline.launch.monitor.stacks import Look
from paceline.why.loops import Nest

# Whether a rank has moved: nothing of it has; it was seen in one place only, and ran or received bytes; in several
# places, or it has begun another collective.
STILL, IN_PLACE, RUNNING = "still", "in-place", "running"
_STILL_CPU = 0.05  # of one CPU
_MOVING_BYTES = 1 << 18  # read and written, more than a log line
_WAKES_EVERY_S = 2.5  # torch's loop that waits for a worker's batch wakes every 5 s
# What makes a line of the user's wait until the GPU has done all that it was given, the other ranks' part included.
_GPU_WAIT = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|wait)\(|\.to\(\s*['\"]cpu|\bprint\(")
_GPU_FUNCTIONS = ("synchronize", "wait_stream")


@dataclass(frozen=True)
class Account:
    """One rank.

    Attributes:
        run: What names its run.
        world_size: Ranks of the run.
        job: Number of its Slurm job, empty outside of Slurm.
        started_by: The process that started it, in words.
        launcher: That process.
        script: What it runs.
        seconds: How long it was looked at.
        position: Where it was seen last.
        stand: What a proof may rest on.
        motion: ``STILL``, ``IN_PLACE`` or ``RUNNING``.
        places: All places of the user's code in which it was seen.
        facts: What ``/proc`` shows of it and its children, lines.
        error: Why no stack of it is visible; empty if one is.
        deadlock: Its DataLoader worker is proven to be deadlocked in its fork.
        nccl: What NCCL's RAS says is wrong, lines.
        loops: The user's frames of its stack, outermost first, and the loops around them.
    """

    run: str
    world_size: int
    job: str = ""
    started_by: str = ""
    launcher: int = 0
    script: str = ""
    seconds: float = 0.0
    position: Position = field(default_factory=lambda: Position(0))
    stand: Stand = field(default_factory=lambda: Stand(0))
    motion: str = RUNNING
    places: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    error: str = ""
    deadlock: Finding | None = None
    nccl: tuple[str, ...] = ()
    loops: tuple[Nest, ...] = ()

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.position.rank

    @property
    def is_visible(self) -> bool:
        """Whether it is known where it is."""
        return self.position.ended or bool(self.position.frames)

    def to_json(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {**asdict(self), "deadlock": self.deadlock and self.deadlock.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Account:
        """Return the account with the values that ``to_json`` returned."""
        return cls(
            **{
                **values,
                "position": Position.from_json(values["position"]),
                "stand": Stand.from_json(values["stand"]),
                "places": tuple(values["places"]),
                "facts": tuple(values["facts"]),
                "nccl": tuple(values["nccl"]),
                "loops": tuple(_nest(nest_values) for nest_values in values["loops"]),
                "deadlock": values["deadlock"] and Finding.from_json(values["deadlock"]),
            }
        )


def _nest(values: Mapping[str, Any]) -> Nest:
    return Nest(**{**values, "loops": tuple((first, last) for first, last in values["loops"])})


def motion(looks: Sequence[Look], *, seconds: float) -> str:
    """Return whether a rank has moved between the first look and the last.

    Args:
        looks: At one rank, in their order.
        seconds: How far the first and the last are apart.
    """
    first, last = looks[0], looks[-1]
    calls = {(look.recorded.get("group"), look.recorded.get("seq")) for look in looks if look.recorded}
    stacks = [look.frames for look in looks if look.frames]
    if len(calls) > 1 or any(frames != stacks[0] for frames in stacks):
        return RUNNING
    if not stacks:  # nothing but the kernel's counts is known
        return STILL if _is_idle(first, last, seconds) else RUNNING
    return STILL if _is_idle(first, last, seconds) and not bytes_moved(looks) else IN_PLACE


def _is_idle(first: Look, last: Look, seconds: float) -> bool:
    """Whether a rank and its children have used next to no CPU, copied nothing, and its main thread has hardly run."""
    wakes = last.switches - first.switches
    copies = last.io_bytes - first.io_bytes > _MOVING_BYTES
    return last.cpu_s - first.cpu_s < _STILL_CPU * seconds and not copies and wakes <= 1 + seconds / _WAKES_EVERY_S


def bytes_moved(looks: Sequence[Look]) -> bool:
    """Return whether bytes have moved on the sockets of a rank."""
    counts = {look.socket_bytes for look in looks if look.socket_bytes >= 0}
    return len(counts) > 1


def waits_for_gpu(frames: Sequence[Frame]) -> bool:
    """Return whether a rank with a GPU that stays in this place waits for what it has given to the GPU.

    Args:
        frames: Its stack, outermost first.
    """
    if not frames:
        return False
    inner = frames[-1]
    if not inner.user:
        return inner.function in _GPU_FUNCTIONS and "/torch/cuda/" in inner.file
    return bool(_GPU_WAIT.search(inner.code))
