"""The watch of a node: when a rank makes no progress, where do all ranks of the run stand?

The rank's heartbeat says how long ago it made progress. Only if that is too long are stacks and collectives looked at,
on all nodes at once, and the head says for all what they amount to. A run is ended only on a proof (``proof``) or when
the user's limit has passed; anything else is a notice (``waiting``). This module collects and acts, the other two
decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from paceline import deadlines, pulse
from paceline.errors import Finding, Notice
from paceline.launch.channel.board import Board
from paceline.launch.monitor import locate, observations, proof, stacks, waiting
from paceline.launch.monitor.attempt import WatchedRanks
from paceline.launch.monitor.position import STOPPED, Position
from paceline.launch.monitor.proof import Call, Stand
from paceline.launch.monitor.stacks import Look

_EVERY_S = 0.5
# How long the head waits for the other nodes' positions, and they for its verdict.
_POSITIONS_S = 4.0
_VERDICT_S = 7.0
# A rank that stands still uses less of a CPU than this.
_STILL_CPU = 0.05
# Where nobody waits for anybody, and where the user set a limit for ranks that work: see docs/guides/hangs.md.
_ALONE_S = 600.0
_MOVING_BYTES = 1 << 18  # read and written between two looks: more than an answer to the launcher takes
# A first look without signals comes when nothing has moved for long, the second soon after, further ones ever later.
_QUIET_STEPS = 2  # usual steps
_QUIET_AGAIN_S, _QUIET_LAST_S = 2.0, 60.0
_LEAST_APART_S = 0.5  # of two looks that are compared, also in tests


@dataclass(frozen=True)
class Verdict:
    """What the head makes of all positions.

    Attributes:
        finding: What the run is to be ended for, None if it is not.
        picture: What is said otherwise, None if nothing is.
        cause: What the run will have ended by, if torch ends this wait; None if that cannot be told.
    """

    finding: Finding | None = None
    picture: waiting.Picture | None = None
    cause: Finding | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "finding": self.finding and self.finding.to_json(),
            "picture": self.picture and [self.picture.key, self.picture.notice.to_json()],
            "cause": self.cause and self.cause.to_json(),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Verdict:
        """Return the verdict with the values that ``to_json`` returned."""
        finding, cause = (values[name] and Finding.from_json(values[name]) for name in ("finding", "cause"))
        picture = values["picture"]
        return cls(finding, picture and waiting.Picture(picture[0], Notice.from_json(picture[1])), cause)


class Watch:
    """Looks after the ranks of one attempt.

    Args:
        group: The ranks of this node.
        board: The other nodes, None if there are none.
        asked_s: ``--hang-timeout``, None if it was not given.
        give_up: Returns whether the launcher was told to end: then nobody waits for other nodes any more.
        inform: Prints a notice.
        ask_nccl: Returns what NCCL itself has to say about a hang, None where ranks do not talk through NCCL.

    Attributes:
        cause: What a notice has named and what has not gone on since; None if there is nothing.
    """

    def __init__(
        self,
        group: WatchedRanks,
        board: Board | None,
        *,
        asked_s: float | None,
        give_up: Callable[[], bool],
        inform: Callable[[Notice], None],
        ask_nccl: Callable[[], list[str]] | None = None,
    ) -> None:
        self._group, self._board, self._asked_s, self._ask_nccl = group, board, asked_s, ask_nccl
        self._give_up, self._inform = give_up, inform
        self._started_ns = time.monotonic_ns()
        self._moved_ns: dict[int, int] = {}  # when a look last saw a rank in another collective than before
        self._times_moved = 0  # how often that was so since the last heartbeat
        self._next_s = self._again_s = 0.0
        self._quiet_s, self._quiet_again_s = 0.0, _QUIET_AGAIN_S
        self._round = 0
        self._looks: list[tuple[float, dict[int, Look]]] = []  # with their times; the last has some to compare with
        self._told_ns = 0  # of a hang that was only reported: silent until there is progress again
        self._said_key, self._said_s = "", 0.0  # of the last notice
        self.cause: Finding | None = None

    def tick(self) -> Finding | None:
        """Return what the run is to be ended for, if so; costs next to nothing as long as all ranks make progress."""
        now = time.monotonic()
        if now < self._next_s:
            return None
        self._next_s = now + _EVERY_S
        late = now >= self._again_s and self._someone_is_late()
        quiet = self._is_quiet()
        if not quiet and not self._someone_is_late(share=0.5):
            self._forget()
        elif not self._looks:
            self._look(quiet=True)  # to compare with
            self._quiet_s = now + self._apart_s()
        calls = late or (quiet and now >= self._quiet_s and self._is_worth_a_look(now))
        if self._board is None:
            return self._tell(self._judge([self._account(quiet=not late)]), late=late) if calls else None
        asked = self._board.remote.look
        if asked <= self._round and not calls:
            return None
        self._round = max(asked, self._round + 1 if calls else 0)
        return self._tell(self._look_together(self._board, quiet=not late), late=late)

    def _is_quiet(self) -> bool:
        """Whether no living rank of this node has made progress for some seconds, and no finding says so yet."""
        living = self._group.attempt.living
        if not living or self._group.attempt.world_size == 1 or self._was_told():
            return False
        return all(self._idle_s(local) > self._quiet_limit_s(local) for local in living)

    def _quiet_limit_s(self, local: int) -> float:
        beat = self._group.counted(local)
        if beat.beat_ns > self._moved_ns.get(local, 0):
            self._times_moved = 0
        # A script that shows progress only to looks is looked at ever less often: a look takes the rank some time.
        least_s = min(_QUIET_LAST_S, deadlines.NOTHING_MOVES_LOOK * (1 + self._times_moved))
        return max(deadlines.scaled(least_s), _QUIET_STEPS * beat.step_s)

    def _apart_s(self) -> float:
        """Return how far two looks are apart that are compared."""
        return max(_LEAST_APART_S, deadlines.scaled(_QUIET_AGAIN_S))

    def _is_worth_a_look(self, now: float) -> bool:
        """Look at this node's ranks without signals; True if what they are in may be a proof, with other nodes'."""
        self._quiet_again_s = min(_QUIET_LAST_S, self._quiet_again_s * 1.5)
        self._quiet_s = now + max(self._apart_s(), deadlines.scaled(self._quiet_again_s))
        if self._board is None:
            return True
        looks, earlier = self._look(quiet=True)
        stands = (self._stand(local, looks.get(local), earlier) for local in self._group.attempt.ranks)
        return any(stand.blocked for stand in stands) or any(look.state == STOPPED for look in looks.values())

    def _forget(self) -> None:
        """Ranks make progress: what was seen before says nothing any more."""
        self._looks.clear()
        self._quiet_again_s = _QUIET_AGAIN_S
        if self.cause is not None or self._said_key:
            self.cause, self._said_key, self._said_s = None, "", 0.0

    def _look_together(self, board: Board, *, quiet: bool) -> Verdict:
        """Report to the head where this node's ranks are, and return what it makes of all."""
        kind, key = f"stand/{self._round}", f"verdict/{self._round}"
        board.call_look(self._round)
        board.post(kind, self._account(quiet=quiet))
        if board.node == 0:
            accounts = board.collect(kind, until_s=_POSITIONS_S, give_up=self._give_up)
            verdict = self._judge(accounts.values()) if len(accounts) == board.num_nodes else Verdict()
            board.post(key, verdict.to_json())
            return verdict
        content = board.await_head(key, until_s=_VERDICT_S, give_up=self._give_up)
        return Verdict.from_json(content) if content else Verdict()

    def _tell(self, verdict: Verdict, *, late: bool) -> Finding | None:
        """Print a notice if it is news; return what the run is to be ended for."""
        now = time.monotonic()
        if late:
            shortest = min(self._limit_s(local) for local in self._group.attempt.ranks)
            self._again_s = now + min(15.0, max(1.0, shortest / 4))
        if verdict.finding is not None:
            self._told_ns = time.monotonic_ns()
            return verdict.finding
        if verdict.cause is not None:
            self.cause = verdict.cause
        picture = verdict.picture
        if picture is not None and picture.key != self._said_key and now >= self._said_s:
            # a picture that changes all the time is not printed all the time
            self._said_s = now + max(self._idle_s(local) for local in self._group.attempt.ranks)
            self._said_key = picture.key
            self._inform(picture.notice)
        return None

    def _was_told(self) -> bool:
        beats = [self._beat_ns(local) for local in self._group.attempt.ranks]
        return bool(self._told_ns) and max(beats) <= self._told_ns

    def _someone_is_late(self, *, share: float = 1.0) -> bool:
        """Whether a living rank has made no progress for too long, and nobody has been told of it yet.

        Args:
            share: Of the time that is too long.
        """
        if self._was_told():
            return False
        return any(self._idle_s(local) > share * self._limit_s(local) for local in self._group.attempt.living)

    def _beat_ns(self, local: int) -> int:
        return max(self._group.counted(local).beat_ns, self._started_ns, self._moved_ns.get(local, 0))

    def _idle_s(self, local: int) -> float:
        return max(0, time.monotonic_ns() - self._beat_ns(local)) / 1e9

    def _limit_s(self, local: int) -> float:
        return locate.limit_s(self._asked_s, step_s=self._group.counted(local).step_s)

    def _look(self, *, quiet: bool) -> tuple[dict[int, Look], tuple[float, dict[int, Look]]]:
        """Look at this node's ranks; return that, and the time and content of the look to compare it with."""
        looks = self._group.look(quiet=quiet)
        now = time.monotonic()
        for local, look in looks.items():
            if self._looks and _called_more(self._looks[-1][1].get(local), look):
                self._moved_ns[local] = time.monotonic_ns()
                self._times_moved += 1
        enough = [place for place, (when, _) in enumerate(self._looks) if when <= now - self._apart_s()]
        del self._looks[: max(enough, default=0)]
        earlier = self._looks[0] if enough else (now, {})
        self._looks.append((now, looks))
        return looks, earlier

    def _account(self, *, quiet: bool) -> dict[str, Any]:
        """Return where this node's ranks stand and what they have counted, as plain data."""
        looks, earlier = self._look(quiet=quiet)
        ranks = self._group.attempt.ranks
        return {
            "positions": [self._position(local, looks.get(local), earlier).to_json() for local in ranks],
            "stands": [self._stand(local, looks.get(local), earlier).to_json() for local in ranks],
            "pulses": self._group.figures(),
        }

    def _position(self, local: int, look: Look | None, earlier: tuple[float, dict[int, Look]]) -> Position:
        beat = self._group.counted(local)
        idle_s, limit_s = self._idle_s(local), self._limit_s(local)
        alone_s = limit_s if self._asked_s is not None else max(deadlines.scaled(_ALONE_S), limit_s)
        # Without --hang-timeout a script that has never counted anything may be a server that waits for requests.
        counts = self._asked_s is not None or beat.beat_ns > 0
        then, before = earlier[0], earlier[1].get(local)
        return replace(
            self._group.position(local, look),
            idle_s=idle_s,
            late=idle_s > limit_s,
            # Where nobody waits for anybody, only ranks that have been still for long are taken to hang.
            late_alone=idle_s > alone_s and beat.phase == pulse.RUNNING and counts,
            still=_is_still(before, look, time.monotonic() - then),
            moving=before is not None and look is not None and _bytes_moved(before, look),
        )

    def _stand(self, local: int, look: Look | None, earlier: tuple[float, dict[int, Look]]) -> Stand:
        """Return what a rank waits in, as far as a proof may rest on it."""
        attempt = self._group.attempt
        rank = attempt.ranks[local]
        ended = attempt.ended.get(local)
        if look is None or not look.answer:
            return Stand(rank, ended=ended is not None and not ended.code)
        answer = look.answer
        before = earlier[1].get(local)
        return Stand(
            rank,
            blocked=before is not None and stacks.is_blocked(before, look),
            pending=tuple(Call(*values) for values in answer["pending"]),
            recent=tuple(Call(*values) for values in answer["recent"]),
            whole=answer["whole"],
            members=answer["members"],
        )

    def _judge(self, accounts: Iterable[dict[str, Any]]) -> Verdict:
        listed = list(accounts)
        positions = [Position.from_json(values) for account in listed for values in account["positions"]]
        uneven = observations.uneven([values for account in listed for values in account["pulses"]])
        found = proof.find(Stand.from_json(values) for account in listed for values in account["stands"])
        if found is not None:
            return Verdict(self._with_nccl(locate.judge_proven(positions, found, uneven=uneven)))
        if not locate.hangs(positions):
            return Verdict(picture=waiting.stopped(positions))
        cause = locate.judge(positions, uneven=uneven)
        if self._asked_s is not None:
            return Verdict(self._with_nccl(cause))
        picture = waiting.stopped(positions) or waiting.picture(positions)
        return Verdict(picture=picture, cause=cause if picture is not None else None)

    def _with_nccl(self, finding: Finding | None) -> Finding | None:
        if finding is None or self._ask_nccl is None:
            return finding
        return replace(finding, evidence=(*finding.evidence[:3], *self._ask_nccl()))


def _is_still(before: Look | None, now: Look | None, seconds: float) -> bool:
    """Return whether a rank and its children have used next to no CPU between two looks, and its stack is the same."""
    if before is None or now is None:
        return False
    copies = now.io_bytes - before.io_bytes > _MOVING_BYTES
    return before.frames == now.frames and now.cpu_s - before.cpu_s < _STILL_CPU * seconds and not copies


def _bytes_moved(before: Look, now: Look) -> bool:
    return before.socket_bytes >= 0 and now.socket_bytes >= 0 and before.socket_bytes != now.socket_bytes


def _called_more(before: Look | None, now: Look) -> bool:
    """Whether a rank has begun another collective between two looks: that is progress in any script."""
    if before is None:
        return False
    old, new = ((look.recorded.get("seq"), look.recorded.get("group")) for look in (before, now))
    return None not in old and old != new
