"""Decide what a test that failed on ranks says: the first failure whole, others in a line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.launch.monitor.proof import Call, difference
from paceline.signatures import rank_errors
from paceline.testing.job import AS_PLANNED, ENDED, FAILED, STUCK, RankOutcome
from paceline.text.wording import duration, is_or_are, named, shorten

_MOST_LINE = 200


def failures(outcomes: Mapping[int, RankOutcome]) -> dict[int, RankOutcome]:
    """Return the outcomes that fail the test, the likely cause first."""
    failed = {rank: outcome for rank, outcome in outcomes.items() if outcome.kind not in AS_PLANNED}
    return dict(sorted(failed.items(), key=lambda entry: _order(*entry)))


def _order(rank: int, outcome: RankOutcome) -> tuple[int, float, int]:
    """Return the key by which causes come before what follows from them.

    A rank that lost its connection or was left waiting is a victim if any other rank failed for
    another reason; the time decides among equals.
    """
    if outcome.kind == STUCK:
        return 2, 0.0, rank  # waited as long as all others that are stuck
    return int(is_consequence(outcome)), outcome.time_s, rank


def is_consequence(outcome: RankOutcome) -> bool:
    """Return whether a rank failed because another one had gone or did not come."""
    error = rank_errors.read(outcome.headline)
    return outcome.kind == FAILED and (error.has_lost_peer or bool(error.wait))


def headline(outcomes: Mapping[int, RankOutcome]) -> str:
    """Return a failure in one line, for the summary of the test run."""
    rank, first = next(iter(failures(outcomes).items()))
    differing = _difference(outcomes)
    if differing and is_consequence(first):
        return shorten(differing, _MOST_LINE)
    return shorten(f"{named([rank])}: {_in_one_line(first)}", _MOST_LINE)


def render(outcomes: Mapping[int, RankOutcome], *, limit_s: float) -> str:
    """Return the failure of a test on several ranks, which had ``limit_s``, as text."""
    failed = failures(outcomes)
    if all(outcome.kind == STUCK for outcome in failed.values()):
        return "\n".join(_hang(outcomes, limit_s))
    lines = list(_cause(failed, len(outcomes)))
    differing = _difference(outcomes)
    is_cause = differing and is_consequence(next(iter(failed.values())))
    return "\n".join([f"{differing}\n", *lines] if is_cause else lines)


def _difference(outcomes: Mapping[int, RankOutcome]) -> str:
    """Return how calls with one number differ between ranks; empty if none do."""
    calls: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, outcome in sorted(outcomes.items()):
        for call in outcome.calls:
            calls.setdefault((call.group, call.seq), {})[rank] = call
    return next(filter(None, map(difference, calls.values())), "")


def _hang(outcomes: Mapping[int, RankOutcome], limit_s: float) -> Iterator[str]:
    stuck = [rank for rank, outcome in outcomes.items() if outcome.kind == STUCK]
    doing = f"{named(stuck)} of {len(outcomes)} {is_or_are(stuck)} not done"
    yield f"{doing} after {duration(limit_s)}:"
    yield from states(outcomes)


def states(outcomes: Mapping[int, RankOutcome]) -> Iterator[str]:
    """Return where each rank is, in a line, and the stacks of those that have not answered."""
    for rank, outcome in sorted(outcomes.items()):
        yield f"  rank {rank}: {_in_one_line(outcome)}"
    stuck = [rank for rank, outcome in outcomes.items() if outcome.kind == STUCK]
    for rank in stuck:
        yield f"\nstack of rank {rank}, innermost call last:"
        yield outcomes[rank].text or "  not visible"


def _cause(failed: Mapping[int, RankOutcome], num_ranks: int) -> Iterator[str]:
    """Return the first failure, and after it a line for each of the others."""
    first_rank, first = next(iter(failed.items()))
    alike = [rank for rank, outcome in failed.items() if outcome.text == first.text]
    same = sorted(alike) if first.kind == FAILED else [first_rank]
    if first.kind == FAILED:
        yield f"{named(same)} of {num_ranks} failed:\n"
    else:
        yield f"{named(same)} of {num_ranks}: {_in_one_line(first)}"
    if first.text:
        yield first.text
    others = {rank: outcome for rank, outcome in failed.items() if rank not in same}
    if others and first.kind == FAILED:
        yield ""
    for rank, outcome in others.items():
        yield f"rank {rank}: {_afterwards(outcome)}"


def _afterwards(outcome: RankOutcome) -> str:
    """Return what became of a rank after another one had failed."""
    if outcome.kind != FAILED or not rank_errors.read(outcome.headline).has_lost_peer:
        return _in_one_line(outcome)
    within = f", in {outcome.calls[-1].words}" if outcome.calls else ""
    return f"lost its connection to a rank that had ended{within}{_at(outcome)}"


def _in_one_line(outcome: RankOutcome) -> str:
    if outcome.kind == STUCK:
        return f"not done: {outcome.headline or 'not visible'}"
    if outcome.kind == ENDED:
        return f"its process has ended, {outcome.headline}{_at(outcome)}"
    if outcome.kind == FAILED:
        return shorten(outcome.headline, _MOST_LINE) + _at(outcome)
    return outcome.kind


def _at(outcome: RankOutcome) -> str:
    return f" ({outcome.place})" if outcome.place else ""
