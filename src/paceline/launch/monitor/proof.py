"""Prove that ranks can never continue, from the collectives in which they wait. Pure.

A proof ends a run, so it rests only on what a rank itself has recorded, never on how long it waits:

- Two ranks are in the same collective of a group (its sequence number), and have called different
  operations, or one operation with different sizes. The other rank may have left that collective
  already.
- A rank is in a collective that a second rank has not called, and the second is in a collective
  that waits, directly or through others, for the first: a cycle. Different sequence numbers alone
  prove nothing: the root of a broadcast continues while its bytes travel.
- The same circle with ranks in ``send`` or ``recv``, whose other end is known: each waits for a
  rank of the circle that does not do its counterpart, and no bytes are on their way.
- The same circle with a rank in ``new_group``, for which it needs all ranks of the new group: torch
  numbers these calls, and another rank has not made that one.
- A rank is in a collective of a group, and the process of another member has ended, or has
  destroyed the group.

Which work a ``work.wait()`` of the script waits for is not visible, so such a rank is part of the
first and the last proof only.

A rank counts as blocked only if two looks find it in the same place, the kernel shows that its main
thread has not run in between, and no bytes have moved on its sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Operations in which every rank sends as many elements as the others.
_SAME_SIZE = ("all_reduce", "broadcast", "reduce")
# Bytes of an element of the types that are reduced.
_ITEMSIZES = {
    **dict.fromkeys(("Double", "Long"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
}
# Kinds of operations, whose names differ between torch's functions (``_all_gather_base``); the
# first match counts.
_KINDS = (
    "allgather",
    "reducescatter",
    "allreduce",
    "alltoall",
    "broadcast",
    "barrier",
    "gather",
    "scatter",
    "reduce",
)


@dataclass(frozen=True)
class Call:
    """One collective that a rank has called."""

    group: str  # its process group
    seq: int  # its number in that group
    name: str  # ``"all_reduce"``
    elements: int = 0  # how many elements the rank sends
    record: int = -1  # number of the record; the same number means the same call
    dtype: str = ""  # of these elements, as torch's Flight Recorder calls it; empty if unknown

    @property
    def words(self) -> str:
        """``all_reduce #12 of 3 elements``."""
        sized = self.elements or self.name in _SAME_SIZE
        return f"{self.name} #{self.seq} of {self.content}" if sized else f"{self.name} #{self.seq}"

    @property
    def size(self) -> str:
        """``3 elements``."""
        return f"{self.elements} element{'s' if self.elements != 1 else ''}"

    @property
    def content(self) -> str:
        """``3 elements (Float)``."""
        return f"{self.size} ({self.dtype})" if self.dtype else self.size

    def fits(self, other: Call) -> bool:
        """Return whether two ranks may make these two calls with the same sequence number."""
        if self.name != other.name:
            return _kind(self.name) == _kind(other.name)
        itemsizes = {_ITEMSIZES.get(call.dtype, 0) for call in (self, other)} - {0}
        as_large = self.elements == other.elements and len(itemsizes) < 2
        return self.name not in _SAME_SIZE or as_large


def _kind(name: str) -> str:
    plain = name.replace("_", "")
    return next((kind for kind in _KINDS if kind in plain), plain)


@dataclass(frozen=True)
class Stand:
    """The collectives that one rank has called and waits in."""

    rank: int  # global rank
    blocked: bool = False  # it waits in a collective, and has made no progress between two looks
    ended: bool = False  # its process has ended successfully
    pending: tuple[Call, ...] = ()  # collectives that it has called and that have not returned
    # the last collectives that it has called, including the pending ones
    recent: tuple[Call, ...] = ()
    # ``recent`` covers all process groups on which the rank has ever called a collective
    whole: bool = False
    # global ranks of each process group
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
    destroyed: tuple[str, ...] = ()  # groups that it has destroyed, and cannot call any more
    in_work: bool = False  # it waits in ``work.wait()`` of the script, and not in a call of torch
    peer: int = -1  # the rank that it sends to or receives from, in a call that waits; -1 for none
    sends: bool = False  # it sends to ``peer``
    queued: bool = False  # bytes are on their way on its sockets
    groups: int = -1  # how many groups it has named so far; -1 if unknown
    creates: int = -1  # the number of the group that it waits to create; -1 if it does not
    needs: tuple[int, ...] = ()  # the ranks that must create it too

    def has_not_called(self, call: Call) -> bool:
        """Return whether it is certain that the rank has not called a collective yet."""
        numbers = [other.seq for other in self.recent if other.group == call.group]
        return max(numbers) < call.seq if numbers else self.whole

    def same_place(self, call: Call) -> Call | None:
        """Return the rank's only call with the same group and number; None if not known."""
        calls = [
            other for other in self.recent if (other.group, other.seq) == (call.group, call.seq)
        ]
        return calls[0] if len(calls) == 1 else None


@dataclass(frozen=True)
class HangProof:
    """Ranks that can never continue."""

    ranks: frozenset[int]  # the stuck ranks, and ranks that have ended and that they wait for
    # the calls that do not match, by rank; empty if the proof is another one
    calls: Mapping[int, Call] = field(default_factory=dict)
    destroyed: frozenset[int] = frozenset()  # ranks that have destroyed the group of the others


def find(
    stands: Iterable[Stand],  # all ranks of the run
) -> HangProof | None:
    """Return a proof that ranks can never continue, None if there is none."""
    by_rank = {stand.rank: stand for stand in stands}
    return _mismatch(by_rank) or _cycle(by_rank) or _ended(by_rank)


def _waiting(by_rank: Mapping[int, Stand]) -> Iterable[tuple[Stand, Call]]:
    return ((stand, call) for stand in by_rank.values() if stand.blocked for call in stand.pending)


def _others(by_rank: Mapping[int, Stand], stand: Stand, call: Call) -> list[Stand]:
    """Return the other members of a call's group, those that are known and agree on its members."""
    members = stand.members.get(call.group, ())
    others = [by_rank[rank] for rank in members if rank != stand.rank and rank in by_rank]
    return [
        other
        for other in others
        if other.ended
        or call.group in other.destroyed
        or list(other.members.get(call.group, ())) == list(members)
    ]


def _mismatch(by_rank: Mapping[int, Stand]) -> HangProof | None:
    """Find blocked ranks whose calls with one sequence number do not match."""
    for stand, call in _waiting(by_rank):
        others = [other for other in _others(by_rank, stand, call) if other.blocked]
        calls = {stand.rank: call} if stand.same_place(call) else {}
        calls |= {
            other.rank: same for other in others if (same := other.same_place(call)) is not None
        }
        if any(not call.fits(other_call) for other_call in calls.values()):
            return HangProof(frozenset(calls), calls)
    return None


def _cycle(by_rank: Mapping[int, Stand]) -> HangProof | None:
    """Find blocked ranks that wait for each other's calls; None if there are none."""
    stuck = {stand.rank for stand in by_rank.values() if stand.blocked and not stand.in_work}
    while True:
        waiting = {rank for rank in stuck if _waits_for_one_of(stuck, by_rank[rank], by_rank)}
        if waiting == stuck:
            return HangProof(frozenset(stuck)) if stuck else None
        stuck = waiting


def _waits_for_one_of(stuck: Collection[int], stand: Stand, by_rank: Mapping[int, Stand]) -> bool:
    """Return whether a blocked rank waits for what a rank of ``stuck`` has not done."""
    if stand.creates >= 0:
        others = [by_rank[rank] for rank in stand.needs if rank in stuck]
        return any(0 <= other.groups <= stand.creates for other in others)
    if stand.peer < 0:
        return any(_lacks(stuck, call, stand, by_rank) for call in stand.pending)
    if stand.peer not in stuck or stand.queued:
        return False
    other = by_rank[stand.peer]
    is_counterpart = other.peer == stand.rank and other.sends != stand.sends
    return not is_counterpart and not other.queued


def _lacks(stuck: Collection[int], call: Call, stand: Stand, by_rank: Mapping[int, Stand]) -> bool:
    """Return whether a rank of ``stuck`` has not called a collective; it may not have its group."""
    members = list(stand.members.get(call.group, ()))
    others = [by_rank[rank] for rank in members if rank in stuck and rank != stand.rank]
    return any(
        list(other.members.get(call.group, members)) == members and other.has_not_called(call)
        for other in others
    )


def _ended(by_rank: Mapping[int, Stand]) -> HangProof | None:
    """Find blocked ranks in a group with a member that has ended, or has destroyed it."""
    ranks, destroyed = set[int](), set[int]()
    for stand, call in _waiting(by_rank):
        others = _others(by_rank, stand, call)
        left = {other.rank for other in others if _has_left(other, call)}
        gone = left | {other.rank for other in others if other.ended}
        if gone:
            ranks |= {stand.rank, *gone}
            destroyed |= left
    return HangProof(frozenset(ranks), destroyed=frozenset(destroyed)) if ranks else None


def _has_left(other: Stand, call: Call) -> bool:
    """Return whether a rank has destroyed the group of a collective without having called it."""
    return call.group in other.destroyed and other.has_not_called(call)


def odd_pair(calls: Mapping[int, Call]) -> tuple[int, int]:
    """Return a rank whose call fits the fewest others, and the first rank that it does not fit."""
    ranks = sorted(
        calls, key=lambda rank: (sum(calls[rank].fits(other) for other in calls.values()), rank)
    )
    first = ranks[0]
    return first, next(rank for rank in ranks if not calls[first].fits(calls[rank]))


def difference(calls: Mapping[int, Call]) -> str:
    """Return in words how calls with one number differ; empty if they fit each other."""
    if all(call.fits(other) for call in calls.values() for other in calls.values()):
        return ""
    first, other = odd_pair(calls)
    call, other_call = calls[first], calls[other]
    if call.name != other_call.name:
        return (
            f"ranks call different collectives: rank {first} {call.words}, rank {other}"
            f" {other_call.words}"
        )
    kind = "type" if call.elements == other_call.elements else "size"
    mine, theirs = (one.content if kind == "type" else one.size for one in (call, other_call))
    return (
        f"{call.name} #{call.seq} differs in {kind}: {mine} on rank {first}, {theirs} on rank"
        f" {other}"
    )
