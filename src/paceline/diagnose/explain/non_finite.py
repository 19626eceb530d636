"""Infer faults of numbers: a loss scale that falls, NaN and Inf on some ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.diagnose.explain.arrivals import listed
from paceline.diagnose.explain.candidates import Candidate, changed, quoted
from paceline.diagnose.explain.pairs import LOST_PEER
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.lines import Line, shorten
from paceline.signatures.tier import Tier

_MIN_SCALE = 1e-3  # loss scale: below it, fp16 gradients vanish
_NON_FINITE = ("nan", "inf")
_LEAST_LOSSES = 2  # a single one may be overcome


def falling_loss_scale(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer NaN or Inf under fp16 from a loss scale that falls step by step."""
    scales = _scales(scanned)
    nans = [match.line for match in scanned.of("nan")]
    if len(scales) < 3 or not _is_falling([scale for scale, _ in scales], with_nan=bool(nans)):
        return None
    (_, first_line), (last_scale, last_line) = scales[0], scales[-1]
    return Candidate(
        "fp16-nan",
        Tier.COARSE,
        first_line.number,
        f"the loss scale has fallen to {last_scale:.4g} and every step is skipped: gradients are"
        " NaN or Inf",
        evidence=quoted([first_line, last_line, *nans]),
        why="under fp16 a step with NaN or Inf is skipped, so nothing is learnt any more",
        fix=(
            "use bf16, or torch.autograd.set_detect_anomaly(True) to find the NaN; check inputs and"
            " labels, lower the rate"
        ),
        count=len(scales),
    )


def _scales(scanned: Scanned) -> list[tuple[float, Line]]:
    """Return the loss scales that the text shows, with their lines."""
    scales = []
    for match in scanned.of("loss-scale"):
        try:
            scales.append((float(match.groups["scale"]), match.line))
        except ValueError:
            continue
    return scales


def _is_falling(scales: Sequence[float], *, with_nan: bool) -> bool:
    """Return whether a loss scale has fallen so far that training does not work."""
    least = min(scales)
    if least <= _MIN_SCALE:
        return True
    return least <= 1 and (with_nan or scales[0] >= 16 * least)


def generalize_divergence(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Rename a loss that is NaN to an ordinary fault, unless the text mentions fp16."""
    if scanned.of("fp16"):
        return list(candidates)
    return changed(
        candidates, lambda candidate: replace(candidate, name="user-exception"), key="diverged"
    )


def non_finite_gradient(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a fault of some ranks from a table of values by rank with NaN or Inf for a minority."""
    values = {match.groups["rank"]: match for match in scanned.of("rank-value")}
    ranks = [rank for rank, match in values.items() if _is_non_finite(match)]
    if not ranks or len(ranks) * 2 > len(values):
        return None
    line = values[ranks[0]].line
    return Candidate(
        "non-finite-on-one-rank",
        Tier.CAUSE,
        line.number,
        f"the gradient is NaN or Inf on rank {listed([int(rank) for rank in ranks])} alone",
        where=f"rank {ranks[0]}",
        evidence=quoted([line]),
        fix=(
            "keep that rank's batch and look at it: torch.isfinite on inputs, labels and loss; if"
            " it stays with the GPU, test the GPU"
        ),
    )


def stopped_on_nan(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a fault of some ranks that stopped on NaN while the others wait for them."""
    lines = {match.line.rank: match.line for match in scanned.of("stopping-on-nan")}
    others_wait = any(candidate.name in LOST_PEER for candidate in candidates)
    if not lines or "" in lines or not others_wait or len(lines) * 2 > len(scanned.ranks):
        return None
    ranks = sorted(map(int, lines))
    return Candidate(
        "non-finite-on-one-rank",
        Tier.CAUSE,
        next(iter(lines.values())).number,
        f"rank {listed(ranks)} stopped on a loss that is NaN or Inf, and the others wait for it",
        where=f"rank {ranks[0]}",
        evidence=quoted(lines.values()),
        fix=(
            "stop on all ranks together (all_reduce the flag); torch.isfinite on that rank's inputs"
            " and labels"
        ),
    )


def loss_not_finite(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer that training continued in vain if the last losses in the text are NaN or Inf."""
    losses = scanned.of("printed-loss")
    finite = [place for place, match in enumerate(losses) if not _is_non_finite(match)]
    bad = losses[finite[-1] + 1 :] if finite else losses
    if len(bad) < _LEAST_LOSSES or any(candidate.key == "diverged" for candidate in candidates):
        return None
    return Candidate(
        "loss-not-finite",
        Tier.WARNED,
        bad[0].line.number,
        "the last losses that were printed are NaN or Inf",
        evidence=(shorten(bad[0].line.body), shorten(bad[-1].line.body)),
        why="a model with such a loss learns nothing more, and nothing fails",
        fix=(
            "paceline run --check-finite ... stops at the first; then a lower learning rate,"
            " clipped gradients, or torch.autograd.set_detect_anomaly(True)"
        ),
        severity="warning",
        count=len(bad),
    )


def _is_non_finite(match: Match) -> bool:
    return match.groups["value"].lower().strip("-+") in _NON_FINITE
