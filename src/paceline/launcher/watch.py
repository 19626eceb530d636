"""The watch of a node: when a rank makes no progress, where do all ranks of the run stand?

A hand around ``locate``. The rank's pulse says how long ago it made progress; only if that is too long are stacks
and collectives looked at, on all nodes at once, and the head says for all what they amount to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from paceline import pulse
from paceline.errors import Finding
from paceline.launcher import locate, observations
from paceline.launcher.board import Board
from paceline.launcher.position import Position
from paceline.launcher.ranks import RankGroup
from paceline.launcher.stacks import Look

_EVERY_S = 0.5
# How long the head waits for the other nodes' positions, and they for its verdict.
_POSITIONS_S = 4.0
_VERDICT_S = 7.0
# A rank that stands still uses less of a CPU than this.
_STILL_CPU = 0.05
# Without --hang-timeout, a rank that works has so long, whoever waits for it: it may evaluate or export.
_MOVING_S = 600.0
_MOVING_BYTES = 1 << 18  # read and written between two looks: more than an answer to the launcher takes
# torch's longest default of a collective's timeout; a script that sets a longer one means to wait.
_USUAL_TIMEOUT_S = 1800.0


class Watch:
    """Looks after the ranks of one attempt.

    Args:
        group: The ranks of this node.
        board: The other nodes, None if there are none.
        asked_s: ``--hang-timeout``, None if it was not given.
        give_up: Returns whether the launcher was told to end: then nobody waits for other nodes any more.
        ask_nccl: Returns what NCCL itself has to say about a hang, None where ranks do not talk through NCCL.
    """

    def __init__(
        self,
        group: RankGroup,
        board: Board | None,
        *,
        asked_s: float | None,
        give_up: Callable[[], bool],
        ask_nccl: Callable[[], list[str]] | None = None,
    ) -> None:
        self._group, self._board, self._asked_s, self._ask_nccl = group, board, asked_s, ask_nccl
        self._give_up = give_up
        self._started_ns = time.monotonic_ns()
        self._moved_ns: dict[int, int] = {}  # when a look last saw a rank in another collective than before
        self._next_s = self._again_s = 0.0
        self._round = 0
        self._before: dict[int, tuple[float, Look]] = {}
        self._told_ns = 0  # of a hang that was only reported: silent until there is progress again

    def tick(self) -> Finding | None:
        """Return what the run hangs in, if it does; costs next to nothing as long as all ranks make progress."""
        now = time.monotonic()
        if now < self._next_s:
            return None
        self._next_s = now + _EVERY_S
        if not self._someone_is_late(share=0.5):
            self._before = {}
        elif not self._before:
            self._account()  # to compare with, when it really is late
        late = now >= self._again_s and self._someone_is_late()
        if self._board is None:
            return self._told(self._judge([self._account()])) if late else None
        asked = self._board.remote.look
        if asked <= self._round and not late:
            return None
        self._round = max(asked, self._round + 1 if late else 0)
        return self._told(self._look_together(self._board))

    def _look_together(self, board: Board) -> Finding | None:
        """Tell the head where this node's ranks are, and hear what it makes of all."""
        kind, verdict = f"stand/{self._round}", f"verdict/{self._round}"
        board.call_look(self._round)
        board.post(kind, self._account())
        if board.node == 0:
            told = board.collect(kind, until_s=_POSITIONS_S, give_up=self._give_up)
            finding = self._judge(told.values()) if len(told) == board.num_nodes else None
            board.post(verdict, finding and finding.to_json())
            return finding
        found = board.await_head(verdict, until_s=_VERDICT_S, give_up=self._give_up)
        return Finding.from_json(found) if found else None

    def _told(self, finding: Finding | None) -> Finding | None:
        if finding is not None:
            self._told_ns = time.monotonic_ns()
        shortest = min(self._limit_s(local) for local in self._group.attempt.ranks)
        self._again_s = time.monotonic() + min(15.0, max(1.0, shortest / 4))
        return finding

    def _someone_is_late(self, *, share: float = 1.0) -> bool:
        """Whether a living rank has made no progress for too long, and nobody has been told of it yet.

        Args:
            share: Of the time that is too long.
        """
        beats = [self._beat_ns(local) for local in self._group.attempt.ranks]
        if self._told_ns and max(beats) <= self._told_ns:
            return False
        return any(self._idle_s(local) > share * self._limit_s(local) for local in self._group.attempt.living)

    def _beat_ns(self, local: int) -> int:
        return max(self._group.counted(local).beat_ns, self._started_ns, self._moved_ns.get(local, 0))

    def _idle_s(self, local: int) -> float:
        return max(0, time.monotonic_ns() - self._beat_ns(local)) / 1e9

    def _limit_s(self, local: int) -> float:
        beat = self._group.counted(local)
        return locate.limit_s(self._asked_s, steps=beat.steps, step_s=beat.step_s)

    def _account(self) -> dict[str, Any]:
        """Return where this node's ranks stand and what they have counted, as plain data."""
        looks = self._group.look()
        now = time.monotonic()
        for local, look in looks.items():
            if local in self._before and _called_more(self._before[local][1], look):
                self._moved_ns[local] = time.monotonic_ns()
        positions = [self._position(local, looks.get(local), now) for local in self._group.attempt.ranks]
        self._before = {local: (now, look) for local, look in looks.items()}
        return {"positions": [each.to_json() for each in positions], "pulses": self._group.figures()}

    def _position(self, local: int, look: Look | None, now: float) -> Position:
        beat = self._group.counted(local)
        idle_s, limit_s = self._idle_s(local), self._limit_s(local)
        longest_s = limit_s if self._asked_s is not None else max(_MOVING_S, limit_s)
        position = self._group.position(local, look)
        if self._asked_s is None and position.timeout_s > _USUAL_TIMEOUT_S:
            limit_s = longest_s = position.timeout_s
        # Without --hang-timeout a script that has never counted anything may be a server that waits for requests.
        counts = self._asked_s is not None or beat.beat_ns > 0
        return replace(
            position,
            idle_s=idle_s,
            # NCCL keeps a CPU busy while it waits
            late=idle_s > (longest_s if not position.waits and self._works(local, look, now) else limit_s),
            # Where nobody waits for anybody, only ranks that have been still for long are taken to hang.
            late_alone=idle_s > longest_s and beat.phase == pulse.RUNNING and counts,
            still=self._is_still(local, look, now),
        )

    def _works(self, local: int, look: Look | None, now: float) -> bool:
        """Its stack has moved since the look before, or it or its children have used CPU or disk; or there was none."""
        if look is None or local not in self._before:
            return True
        copies = look.io_bytes - self._before[local][1].io_bytes > _MOVING_BYTES
        return copies or not self._is_still(local, look, now)

    def _is_still(self, local: int, look: Look | None, now: float) -> bool:
        if look is None or local not in self._before:
            return False
        then, before = self._before[local]
        return look.frames == before.frames and look.cpu_s - before.cpu_s < _STILL_CPU * (now - then)

    def _judge(self, accounts: Iterable[dict[str, Any]]) -> Finding | None:
        told = list(accounts)
        positions = [Position.from_json(each) for account in told for each in account["positions"]]
        if not locate.hangs(positions):
            return None
        uneven = observations.uneven([each for account in told for each in account["pulses"]])
        finding = locate.judge(positions, uneven=uneven)
        if finding is None or self._ask_nccl is None:
            return finding
        return replace(finding, evidence=(*finding.evidence[:3], *self._ask_nccl()))


def _called_more(before: Look, now: Look) -> bool:
    """Whether a rank has begun another collective between two looks: that is progress in any script."""
    old, new = ((look.recorded.get("seq"), look.recorded.get("group")) for look in (before, now))
    return None not in old and old != new
