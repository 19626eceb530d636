"""Hang detection of a node: collect the positions of all ranks when one makes no progress.

A rank's heartbeat shows when it last made progress. If that is too long ago, the launchers of all
nodes read the stacks and collectives of their ranks at the same time, and the head decides for all.
A run is ended only on a proof or when the user's limit has passed; anything else is a notice. This
module collects and acts: ``hang`` decides whether the run hangs and which rank is the cause,
``proof`` whether it can never continue, and ``waiting`` writes the notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline import counters, deadlines
from paceline.errors import Finding, Notice
from paceline.launch.channel.control_channel import ControlChannel
from paceline.launch.monitor import hang, observations, proof, stacks, waiting
from paceline.launch.monitor.attempt import WatchedRanks
from paceline.launch.monitor.position import STOPPED, Position
from paceline.launch.monitor.proof import Stand
from paceline.launch.monitor.stacks import Look
from paceline.text.plain_data import read_as

_EVERY_S = 0.5
# How long the head waits for the other nodes' positions, and they for its verdict.
_POSITIONS_S = 4.0
_VERDICT_S = 7.0
# The limit where no rank waits for another and the user set none: see docs/guides/hangs.md.
_ALONE_S = 600.0
# The first look without signals comes after a long time without progress, the second soon after,
# further ones at increasing intervals.
_QUIET_STEPS = 2  # usual steps
_QUIET_AGAIN_S, _QUIET_LAST_S = 2.0, 60.0
_LEAST_APART_S = 0.5  # between two looks that are compared, also in tests


@dataclass(frozen=True)
class WatchVerdict:
    """What the head concludes from the positions of all ranks."""

    finding: Finding | None = None  # why the run must end, None if it continues
    picture: waiting.Picture | None = None  # the notice if it continues, None if there is none
    # the cause of the failure if torch's timeout ends this wait; None if unknown
    cause: Finding | None = None


class Watch:
    """Watch the ranks of one attempt for hangs."""

    def __init__(
        self,
        group: WatchedRanks,  # the ranks of this node
        channel: ControlChannel | None,  # channel to the other nodes, None if there are none
        *,
        requested_s: float | None,  # ``--hang-timeout``, None if it was not given
        # returns whether the launcher must end and no longer waits for other nodes
        give_up: Callable[[], bool],
        inform: Callable[[Notice], None],  # prints a notice
        # returns NCCL's own report of a hang, None where ranks do not use NCCL
        ask_nccl: Callable[[], list[str]] | None = None,
        unreached: Finding | None = None,  # that data of other nodes does not arrive, by the start
    ) -> None:
        self._unreached = unreached
        self._group, self._channel = group, channel
        self._requested_s, self._ask_nccl = requested_s, ask_nccl
        self._give_up, self._inform = give_up, inform
        self._started_ns = time.monotonic_ns()
        self._moved_ns: dict[int, int] = {}  # by local rank: when a look last saw a new collective
        self._times_moved = 0  # how often that happened since the last heartbeat
        self._next_s = self._again_s = 0.0
        self._quiet_s, self._quiet_again_s = 0.0, _QUIET_AGAIN_S
        self._round = 0
        self._looks: list[tuple[float, dict[int, Look]]] = []  # with their times, oldest first
        self._reported_ns = 0  # time of the last report; silent until there is progress again
        self._notice_key, self._notice_s = "", 0.0  # of the last notice
        self._said: set[str] = set()  # notices that are printed once an attempt
        # the cause that a notice has named, as long as no rank has made progress since; else None
        self.cause: Finding | None = None

    def tick(self) -> Finding | None:
        """Return why the run must end, None if it continues.

        A call costs almost nothing while all ranks make progress.
        """
        now = time.monotonic()
        if now < self._next_s:
            return None
        self._next_s = now + _EVERY_S
        self._note_heartbeats()
        late = now >= self._again_s and self._someone_is_late()
        calls = self._calls_for_a_look(now, late=late)
        if self._channel is None:
            if not calls:
                return None
            return self._report(self._judge([self._account(quiet=not late)]), late=late)
        requested_round = self._channel.remote.look
        if requested_round <= self._round and not calls:
            return None
        self._round = max(requested_round, self._round + 1 if calls else 0)
        return self._report(self._look_together(self._channel, quiet=not late), late=late)

    def standing(self) -> dict[int, Position]:
        """Return where this node's ranks are, by local rank; empty if one has made progress."""
        self._note_heartbeats()
        living = self._group.attempt.living
        if any(self._idle_s(local) <= self._quiet_limit_s(local) for local in living):
            return {}
        known = self._looks[-1][1] if self._looks else {}
        looks, earlier = self._look(quiet=True)
        looks = known | looks  # a signal to all processes may have ended a rank already
        return {
            local: self._position(local, looks.get(local), earlier)
            for local in self._group.attempt.ranks
        }

    def _calls_for_a_look(self, now: float, *, late: bool) -> bool:
        """Return whether this node wants a look at the ranks of all nodes now."""
        quiet = self._is_quiet()
        if not quiet and not self._someone_is_late(share=0.5):
            self._forget()
        elif not self._looks:
            self._look(quiet=True)  # later looks are compared with this one
            self._quiet_s = now + self._apart_s()
        if late:
            return True
        return quiet and now >= self._quiet_s and self._is_worth_a_look(now)

    def _is_quiet(self) -> bool:
        """Return whether all ranks of this node have made no progress for some seconds.

        False if that was already reported.
        """
        living = self._group.attempt.living
        if not living or self._group.attempt.world_size == 1 or self._was_reported():
            return False
        return all(self._idle_s(local) > self._quiet_limit_s(local) for local in living)

    def _note_heartbeats(self) -> None:
        """Forget what only looks have shown, once a rank counts steps itself again."""
        living = self._group.attempt.living
        if any(self._group.counted(one).beat_ns > self._moved_ns.get(one, 0) for one in living):
            self._times_moved = 0

    def _quiet_limit_s(self, local: int) -> float:
        """Return how long a rank may make no progress before it is looked at, in seconds."""
        # A look costs the rank time: if only looks show that it makes progress, they become less
        # frequent.
        least_s = min(_QUIET_LAST_S, deadlines.NOTHING_MOVES_LOOK * (1 + self._times_moved))
        return max(deadlines.scaled(least_s), _QUIET_STEPS * self._group.counted(local).step_s)

    def _apart_s(self) -> float:
        """Return the least time between two looks that are compared."""
        return max(_LEAST_APART_S, deadlines.scaled(_QUIET_AGAIN_S))

    def _is_worth_a_look(self, now: float) -> bool:
        """Look at this node's ranks without signals; return whether they may be part of a proof."""
        self._quiet_again_s = min(_QUIET_LAST_S, self._quiet_again_s * 1.5)
        self._quiet_s = now + max(self._apart_s(), deadlines.scaled(self._quiet_again_s))
        if self._channel is None:
            return True
        looks, earlier = self._look(quiet=True)
        stands = (
            self._stand(local, looks.get(local), earlier) for local in self._group.attempt.ranks
        )
        return any(stand.blocked for stand in stands) or any(
            look.state == STOPPED for look in looks.values()
        )

    def _forget(self) -> None:
        """Discard earlier looks: ranks make progress again."""
        self._looks.clear()
        self._quiet_again_s = _QUIET_AGAIN_S
        if self.cause is not None or self._notice_key:
            self.cause, self._notice_key, self._notice_s = None, "", 0.0

    def _look_together(self, channel: ControlChannel, *, quiet: bool) -> WatchVerdict:
        """Send the positions of this node's ranks to the head, and return its verdict."""
        kind, key = f"stand/{self._round}", f"verdict/{self._round}"
        channel.call_look(self._round)
        channel.post(kind, self._account(quiet=quiet))
        if channel.node == 0:
            accounts = channel.collect(kind, until_s=_POSITIONS_S, give_up=self._give_up)
            verdict = (
                self._judge(accounts.values())
                if len(accounts) == channel.num_nodes
                else WatchVerdict()
            )
            channel.post(key, asdict(verdict))
            return verdict
        content = channel.await_head(key, until_s=_VERDICT_S, give_up=self._give_up)
        return read_as(WatchVerdict, content) if content else WatchVerdict()

    def _report(self, verdict: WatchVerdict, *, late: bool) -> Finding | None:
        """Print the notice of a verdict if it is new; return why the run must end, if it must."""
        now = time.monotonic()
        if late:
            shortest = min(self._limit_s(local) for local in self._group.attempt.ranks)
            self._again_s = now + min(15.0, max(1.0, shortest / 4))
        if verdict.finding is not None:
            self._reported_ns = time.monotonic_ns()
            return verdict.finding
        if verdict.cause is not None:
            self.cause = verdict.cause
        picture = verdict.picture
        old_keys = {self._notice_key, *self._said}
        if picture is not None and picture.key not in old_keys and now >= self._notice_s:
            # limits how often a picture that changes all the time is printed
            self._notice_s = now + max(self._idle_s(local) for local in self._group.attempt.ranks)
            self._notice_key = picture.key
            self._said |= {picture.key} if picture.once else set()
            self._inform(picture.notice)
        return None

    def _was_reported(self) -> bool:
        beats = [self._beat_ns(local) for local in self._group.attempt.ranks]
        return bool(self._reported_ns) and max(beats) <= self._reported_ns

    def _someone_is_late(self, *, share: float = 1.0) -> bool:
        """Return whether a living rank has made no progress for too long.

        False if that was already reported.
        """
        if self._was_reported():
            return False
        return any(
            self._idle_s(local) > share * self._limit_s(local)
            for local in self._group.attempt.living
        )

    def _beat_ns(self, local: int) -> int:
        return max(
            self._group.counted(local).beat_ns, self._started_ns, self._moved_ns.get(local, 0)
        )

    def _idle_s(self, local: int) -> float:
        return max(0, time.monotonic_ns() - self._beat_ns(local)) / 1e9

    def _limit_s(self, local: int) -> float:
        return hang.limit_s(self._requested_s, step_s=self._group.counted(local).step_s)

    def _look(self, *, quiet: bool) -> tuple[dict[int, Look], tuple[float, dict[int, Look]]]:
        """Look at this node's ranks; return the look, and the earlier one to compare it with.

        The earlier look comes with its time.
        """
        looks = self._group.look(quiet=quiet)
        now = time.monotonic()
        for local, look in looks.items():
            if self._looks and _called_more(self._looks[-1][1].get(local), look):
                self._moved_ns[local] = time.monotonic_ns()
                self._times_moved += 1
        enough = [
            place for place, (when, _) in enumerate(self._looks) if when <= now - self._apart_s()
        ]
        del self._looks[: max(enough, default=0)]
        earlier = self._looks[0] if enough else (now, {})
        self._looks.append((now, looks))
        return looks, earlier

    def _account(self, *, quiet: bool) -> dict[str, Any]:
        """Return positions and counters of this node's ranks, as plain data."""
        looks, earlier = self._look(quiet=quiet)
        ranks = self._group.attempt.ranks
        return {
            "positions": [
                asdict(self._position(local, looks.get(local), earlier)) for local in ranks
            ],
            "stands": [asdict(self._stand(local, looks.get(local), earlier)) for local in ranks],
            "counters": self._group.figures(),
        }

    def _position(
        self, local: int, look: Look | None, earlier: tuple[float, dict[int, Look]]
    ) -> Position:
        beat = self._group.counted(local)
        idle_s, limit_s = self._idle_s(local), self._limit_s(local)
        alone_s = limit_s
        if self._requested_s is None:
            alone_s = max(deadlines.scaled(_ALONE_S), limit_s)
        # Without --hang-timeout: a script that has counted nothing yet may be a server that waits
        # for requests.
        counts = self._requested_s is not None or beat.beat_ns > 0
        seconds, before = time.monotonic() - earlier[0], earlier[1].get(local)
        pair = [each for each in (before, look) if each is not None]
        position = self._group.position(local, look)
        if look is not None and look.printed_ns < self._moved_ns.get(local, 0):
            position = replace(position, printed="")
        return replace(
            position,
            idle_s=idle_s,
            late=idle_s > limit_s,
            # Where no rank waits for another, only ranks that have been idle for long count as
            # hanging.
            late_alone=idle_s > alone_s and beat.phase == counters.RUNNING and counts,
            still=len(pair) == 2 and stacks.is_still(pair, seconds),
            active=len(pair) == 2 and stacks.is_active(pair, seconds),
            moving=stacks.bytes_moved(pair),
        )

    def _stand(
        self, local: int, look: Look | None, earlier: tuple[float, dict[int, Look]]
    ) -> Stand:
        """Return what a rank waits in, as far as it is certain enough for a proof."""
        attempt = self._group.attempt
        rank = attempt.ranks[local]
        ended = attempt.ended.get(local)
        if look is None or not look.answer:
            return Stand(rank, ended=ended is not None and not ended.code)
        return stacks.stand_of(rank, earlier[1].get(local), look)

    def _judge(self, accounts: Iterable[dict[str, Any]]) -> WatchVerdict:
        listed = list(accounts)
        positions = [
            read_as(Position, values) for account in listed for values in account["positions"]
        ]
        uneven = observations.uneven(
            [values for account in listed for values in account["counters"]]
        )
        proven = proof.find(
            read_as(Stand, values) for account in listed for values in account["stands"]
        )
        if proven is not None:
            return WatchVerdict(
                self._with_nccl(hang.judge_proven(positions, proven, uneven=uneven))
            )
        if not hang.hangs(positions):
            picture = waiting.stopped(positions) or waiting.outlived(positions)
            return WatchVerdict(picture=picture or waiting.after_exception(positions))
        cause = hang.judge(positions, uneven=uneven)
        if self._requested_s is not None:
            return WatchVerdict(self._with_nccl(cause))
        picture = waiting.stopped(positions) or waiting.picture(
            positions, unreached=self._unreached
        )
        return WatchVerdict(picture=picture, cause=cause if picture is not None else None)

    def _with_nccl(self, finding: Finding | None) -> Finding | None:
        if finding is None or self._ask_nccl is None:
            return finding
        return replace(finding, evidence=(*finding.evidence[:3], *self._ask_nccl()))


def _called_more(before: Look | None, now: Look) -> bool:
    """Return whether a rank has begun a new collective between two looks, which is progress."""
    if before is None:
        return False
    old, new = ((look.recorded.get("seq"), look.recorded.get("group")) for look in (before, now))
    return None not in old and old != new
