"""Whether ranks that stand still can ever continue, from what each of them waits in. Pure.

What is proven here ends a run, so everything rests on what a rank itself has recorded, never on how long it waits:

- Two ranks are in the same collective of a group (its sequence number), and have called different operations, or one
  operation with different sizes. The other rank may have left that collective already.
- A rank is in a collective that another rank has not called, and that one is in a collective which, in the end, waits
  for the first: a cycle. A sequence number that differs proves nothing: the root of a broadcast continues
  while its bytes travel.
- A rank is in a collective of a group of which a member's process has ended.

A rank counts as blocked only if it was seen twice in the same place, with the kernel's word that its main thread has
not run in between, and if no bytes have moved on its sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# Operations in which every rank sends as many elements as the others.
_SAME_SIZE = ("all_reduce", "broadcast", "reduce")
# Operations under all the names that torch's functions give them (``_all_gather_base``); the first that fits counts.
_KINDS = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "barrier", "gather", "scatter", "reduce")


@dataclass(frozen=True)
class Call:
    """One collective that a rank has called.

    Attributes:
        group: Its process group.
        seq: Its number in that group.
        name: ``"all_reduce"``.
        elements: How many elements the rank sends.
        record: Number of the record; the same number means the same call.
    """

    group: str
    seq: int
    name: str
    elements: int = 0
    record: int = -1

    @property
    def words(self) -> str:
        """``all_reduce #12 of 3 elements``."""
        sized = self.elements or self.name in _SAME_SIZE
        return f"{self.name} #{self.seq} of {self.size}" if sized else f"{self.name} #{self.seq}"

    @property
    def size(self) -> str:
        """``3 elements``."""
        return f"{self.elements} element{'s' if self.elements != 1 else ''}"

    def fits(self, other: Call) -> bool:
        """Return whether two ranks may make these two calls under one number."""
        if self.name != other.name:
            return _kind(self.name) == _kind(other.name)
        return self.name not in _SAME_SIZE or self.elements == other.elements


def _kind(name: str) -> str:
    plain = name.replace("_", "")
    return next((kind for kind in _KINDS if kind in plain), plain)


@dataclass(frozen=True)
class Stand:
    """What one rank waits in.

    Attributes:
        rank: Global rank.
        blocked: It waits in a collective, and nothing of it has moved between two looks.
        ended: Its process has ended well.
        pending: Collectives that it has called and that have not come back.
        recent: The last ones that it has called, those among them.
        whole: ``recent`` leaves out no process group that it has ever called a collective of.
        members: Global ranks of each process group.
    """

    rank: int
    blocked: bool = False
    ended: bool = False
    pending: tuple[Call, ...] = ()
    recent: tuple[Call, ...] = ()
    whole: bool = False
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def has_not_called(self, call: Call) -> bool:
        """Return whether it is sure that the rank has not come as far as a collective."""
        numbers = [other.seq for other in self.recent if other.group == call.group]
        return max(numbers) < call.seq if numbers else self.whole

    def same_place(self, call: Call) -> Call | None:
        """Return what the rank has called under a number of a group; None if that is not known or was more than one."""
        calls = [other for other in self.recent if (other.group, other.seq) == (call.group, call.seq)]
        return calls[0] if len(calls) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return the stand as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Stand:
        """Return the stand with the values that ``to_json`` returned."""
        calls = {name: tuple(Call(**call) for call in values[name]) for name in ("pending", "recent")}
        return cls(**{**values, **calls})


@dataclass(frozen=True)
class Proof:
    """Ranks that can never continue.

    Attributes:
        ranks: They, and the ranks that have ended and that they wait for.
        calls: Calls of two ranks that do not fit, by rank; empty if it is not that.
    """

    ranks: frozenset[int]
    calls: Mapping[int, Call] = field(default_factory=dict)


def find(stands: Iterable[Stand]) -> Proof | None:
    """Return which ranks can never continue, None if nothing is proven.

    Args:
        stands: All ranks of the run.
    """
    by_rank = {stand.rank: stand for stand in stands}
    return _mismatch(by_rank) or _cycle(by_rank) or _ended(by_rank)


def _waiting(by_rank: Mapping[int, Stand]) -> Iterable[tuple[Stand, Call]]:
    return ((stand, call) for stand in by_rank.values() if stand.blocked for call in stand.pending)


def _others(by_rank: Mapping[int, Stand], stand: Stand, call: Call) -> list[Stand]:
    """Return the other members of a call's group, as far as they are known and agree who its members are."""
    members = stand.members.get(call.group, ())
    others = [by_rank[rank] for rank in members if rank != stand.rank and rank in by_rank]
    return [other for other in others if other.ended or list(other.members.get(call.group, ())) == list(members)]


def _mismatch(by_rank: Mapping[int, Stand]) -> Proof | None:
    """Find two blocked ranks whose calls under one number do not fit; all ranks that made either are named."""
    for stand, call in _waiting(by_rank):
        others = [other for other in _others(by_rank, stand, call) if other.blocked]
        calls = {stand.rank: call} if stand.same_place(call) else {}
        calls |= {other.rank: same for other in others if (same := other.same_place(call)) is not None}
        if any(not call.fits(other_call) for other_call in calls.values()):
            return Proof(frozenset(calls), calls)
    return None


def _cycle(by_rank: Mapping[int, Stand]) -> Proof | None:
    """Find blocked ranks each of which waits for a call of another of them; None if there are none."""
    stuck = {stand.rank for stand in by_rank.values() if stand.blocked}
    while True:
        held = {
            stand.rank
            for stand, call in _waiting(by_rank)
            if stand.rank in stuck
            and any(other.rank in stuck and other.has_not_called(call) for other in _others(by_rank, stand, call))
        }
        if held == stuck:
            return Proof(frozenset(stuck)) if stuck else None
        stuck = held


def _ended(by_rank: Mapping[int, Stand]) -> Proof | None:
    """Find blocked ranks in a group of which a member has ended."""
    ranks = set[int]()
    for stand, call in _waiting(by_rank):
        gone = {other.rank for other in _others(by_rank, stand, call) if other.ended}
        if gone:
            ranks |= {stand.rank, *gone}
    return Proof(frozenset(ranks)) if ranks else None
