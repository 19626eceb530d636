"""One start of this node's ranks: their processes and exits, and what those who watch them need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline import counters
from paceline.launch.in_rank.rank_files import RankFiles
from paceline.launch.monitor.position import Position
from paceline.launch.monitor.stacks import Look


@dataclass(frozen=True)
class Ended:
    """How a rank's process ended."""

    local_rank: int  # rank on this node
    pid: int  # its process
    code: int  # exit code; negative for a signal, as in ``subprocess``
    time_ns: int  # when its parent reaped it, wall clock


@dataclass
class Attempt:
    """One start of this node's ranks."""

    number: int  # its number in the run folder: restarts before it, and attempts of earlier starts
    ranks: dict[int, int]  # global rank by local rank
    world_size: int  # ranks on all nodes
    pids: dict[int, int] = field(default_factory=dict)  # process by local rank
    ended: dict[int, Ended] = field(default_factory=dict)  # how processes ended, by local rank
    # local ranks that the launcher ended, with the reason and when, by this node's clock
    stopped: dict[int, tuple[str, int]] = field(default_factory=dict)
    # positions of local ranks when another rank had failed, or when they hung
    looks: dict[int, Look] = field(default_factory=dict)
    # where local ranks were when the run was asked to end; empty if it moved
    standing: dict[int, Position] = field(default_factory=dict)
    oom_before: int = 0  # the kernel's count of out-of-memory kills before the start
    log_paths: dict[int, str] = field(default_factory=dict)  # log file by local rank
    error_paths: dict[int, str] = field(default_factory=dict)  # error file by local rank
    # files that ranks write to memory, by local rank
    files: dict[int, RankFiles] = field(default_factory=dict)

    @property
    def living(self) -> set[int]:
        """Local ranks whose process has not ended."""
        return set(self.ranks) - set(self.ended)


class WatchedRanks(Protocol):
    """The ranks of this node, for the code that watches them."""

    attempt: Attempt

    def counted(self, local: int) -> counters.Counters:
        """Return the counters of a rank; zeros without the probe."""

    def figures(self) -> list[dict[str, Any]]:
        """Return the counters of each rank of this node; zeros without the probe."""

    def look(self, *, quiet: bool = False) -> dict[int, Look]:
        """Return the positions of the living ranks; send no signal if ``quiet``."""

    def position(self, local: int, look: Look | None) -> Position:
        """Return where a rank is, as far as the look at it shows."""
