"""Collect the answers of ranks to a job: until all have come, or a while after one has failed."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from paceline.launch.monitor import stacks
from paceline.launch.monitor.position import Frame, Position, shown_path
from paceline.testing.channel import Channel
from paceline.testing.job import (
    AS_PLANNED,
    DIED_ON_PURPOSE,
    ENDED,
    HANGS_ON_PURPOSE,
    STUCK,
    Outcome,
)

# How long other ranks may continue after one has failed: gloo notices within milliseconds.
GRACE_S = 5.0
# How long a rank may have ended before its last message is read.
_LAST_MESSAGE_S = 0.2


class Answers:
    """The answers to one job."""

    def __init__(
        self,
        channels: Mapping[int, Channel],  # of each rank
        pids: Mapping[int, int],  # of each rank
        *,
        control: Channel,  # of the server, which says which rank has ended
        folder: Path,  # of the ranks' files
    ) -> None:
        self._channels, self._pids = channels, pids
        self._control, self._folder = control, folder
        self.outcomes: dict[int, Outcome] = {}
        self._statuses: dict[int, int] = {}

    def collect(self, deadline_s: float) -> None:
        """Wait until all ranks have ended their part, or the deadline; look at those that do not.

        Raises EOFError if the server has ended.
        """
        __tracebackhide__ = True
        while self._missing():
            left_s = self._deadline(deadline_s) - time.monotonic()
            if left_s <= 0:
                break
            self._receive(left_s)
        self.look()

    def look(self) -> None:
        """Note for each rank that has not answered where it is."""
        pids = {rank: self._pids[rank] for rank in self._missing()}
        for rank, frames in _positions(pids, self._folder).items() if pids else ():
            self.outcomes[rank] = _stuck(rank, frames)

    def _missing(self) -> list[int]:
        return [rank for rank in self._channels if rank not in self.outcomes]

    def _deadline(self, deadline_s: float) -> float:
        failed = [
            outcome.time_s for outcome in self.outcomes.values() if outcome.kind not in AS_PLANNED
        ]
        return min([deadline_s, *(time_s + GRACE_S for time_s in failed)])

    def _receive(self, wait_s: float) -> None:
        """Read what is there; a rank's own last message counts more than its end."""
        __tracebackhide__ = True
        sources = {self._channels[rank].fileno(): rank for rank in self._missing()}
        control = self._control.fileno()
        ready, _, _ = select.select([*sources, control], [], [], wait_s)
        for handle in ready:
            if handle != control:
                self._read(sources[handle])
        if control in ready:
            _, pid, status = self._control.receive()
            ranks = [rank for rank, its_pid in self._pids.items() if its_pid == pid]
            for rank in ranks:
                self._note_end(rank, status)

    def _read(self, rank: int) -> None:
        try:
            message = self._channels[rank].receive()
        except EOFError:
            select.select([self._control], [], [], _LAST_MESSAGE_S)  # the server says how it ended
            return
        kind = message if isinstance(message, str) else ""
        now = Outcome(kind, time.monotonic())
        self.outcomes[rank] = now if kind else message

    def _note_end(self, rank: int, status: int) -> None:
        if select.select([self._channels[rank]], [], [], 0)[0]:
            self._read(rank)
        if rank in self.outcomes:
            return
        crash = stacks.read_crash(_stacks_file(self._folder, rank))
        place = Position(rank, frames=crash).place
        text = _listed(crash)
        self.outcomes[rank] = Outcome(
            ENDED, time.monotonic(), headline=_end(status), text=text, place=place
        )


def _positions(pids: Mapping[int, int], folder: Path) -> dict[int, tuple[Frame, ...]]:
    """Return the stack of each rank, outermost frame first, from the test's own first frame on."""
    files = {rank: _stacks_file(folder, rank) for rank in pids}
    return {rank: look.frames for rank, look in stacks.look(pids, files).items()}


def _stacks_file(folder: Path, rank: int) -> Path:
    """Return the file that faulthandler writes to in a rank."""
    return folder / f"rank-{rank}.stacks"


def _stuck(rank: int, frames: tuple[Frame, ...]) -> Outcome:
    position = Position(rank, frames=frames)
    return Outcome(STUCK, time.monotonic(), headline=position.doing, text=_listed(frames))


def _listed(frames: tuple[Frame, ...]) -> str:
    """Return a stack as lines, the innermost call last."""
    lines = []
    for frame in frames:
        path = frame.file.rpartition("/site-packages/")[2]
        lines.append(f"  {shown_path(path)}:{frame.line} {frame.function}")
        if frame.user and frame.code:
            lines.append(f"    {frame.code}")
    return "\n".join(lines)


def _end(status: int) -> str:
    """Return how a process ended, in words."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.WEXITSTATUS(status)}"


def is_unusable(outcomes: Mapping[int, Outcome]) -> bool:
    """Return whether ranks have to be forked again: one failed, is gone or does not answer."""
    needs_new = (DIED_ON_PURPOSE, HANGS_ON_PURPOSE)
    return any(
        outcome.kind in needs_new or outcome.kind not in AS_PLANNED for outcome in outcomes.values()
    )
