"""Infer faults from several lines together, and change the tiers of candidates. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from typing import Any

from paceline.diagnose.explain import arrivals, collectives, pairs, survived
from paceline.diagnose.explain.arrivals import listed
from paceline.diagnose.explain.candidates import Candidate, changed, quoted
from paceline.diagnose.explain.pairs import LOST_PEER
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.libraries import texts_of
from paceline.signatures.lines import Line, shorten
from paceline.signatures.signature import fill
from paceline.signatures.tier import Tier

# Faults of numbers: a loss scale that falls, NaN and Inf on some ranks

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
        count=len(scales),
        advice="falling-loss-scale",
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


def non_finite_gradient(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a fault of some ranks from a table of values by rank with NaN or Inf for a minority."""
    values = {match.groups["rank"]: match for match in scanned.of("rank-value")}
    ranks = [rank for rank, match in values.items() if _is_non_finite(match)]
    if not ranks or len(ranks) * 2 > len(values):
        return None  # NaN on most ranks came with the parameters, which all have in common
    line = values[ranks[0]].line
    return Candidate(
        "non-finite-on-one-rank",
        Tier.CAUSE,
        line.number,
        f"the gradient is NaN or Inf on rank {listed([int(rank) for rank in ranks])} alone",
        where=f"rank {ranks[0]}",
        evidence=quoted([line]),
        advice="non-finite-gradient",
    )


def stopped_on_nan(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a fault of some ranks that stopped on NaN while the others wait for them."""
    lines = {match.line.rank: match.line for match in scanned.of("stopping-on-nan")}
    others_wait = any(candidate.name in LOST_PEER for candidate in candidates)
    # A line without a label may be of any rank.
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
        advice="stopped-on-nan",
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
        severity="warning",
        count=len(bad),
        advice="loss-not-finite",
    )


def _is_non_finite(match: Match) -> bool:
    return match.groups["value"].lower().strip("-+") in _NON_FINITE


# The process that holds the GPU memory that ran out

_HOLDER = re.compile(r"\bProcess (?P<pid>\d+) has (?P<held>\d+(?:\.\d+)? [KMGT]?i?B) memory in use")
_OURS = re.compile(r"this process has \d+(?:\.\d+)? [KMGT]?i?B memory in use")
_TOTAL = re.compile(r"total capaci?ty of (?P<size>\d+(?:\.\d+)? [KMGT]?i?B)")
_ALLOCATED = re.compile(
    r"allocated memory (?P<size>\d+(?:\.\d+)? [KMGT]?i?B) is allocated by PyTorch"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MUCH = 0.25  # of the GPU: if others hold less, the program itself needs too much


def name_holder(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name the other process that holds much of the GPU that ran out of memory."""
    for match in scanned.of("gpu-holder"):
        holders = _others(match.line.text)
        if holders:
            return changed(candidates, partial(_named, holders=holders), name="cuda-oom")
    return list(candidates)


def _others(text: str) -> list[tuple[str, str]]:
    """Return the process id and size of other holders, the largest first.

    The result is empty if they hold little or may be the program itself.
    """
    total = _TOTAL.search(text)
    if total is None:
        return []
    listed = [(match["pid"], match["held"]) for match in _HOLDER.finditer(text)]
    holders = sorted(listed, key=_size, reverse=True)
    # In a container a process does not know its id on the host: one of these is the program.
    if not _OURS.search(text):
        allocated = _ALLOCATED.search(text)
        # It holds at least what torch says it has allocated; the smallest that does is taken.
        least = _bytes(allocated["size"]) if allocated else 0.0
        own = next((holder for holder in reversed(holders) if _size(holder) >= least), None)
        holders = [holder for holder in holders if own is not None and holder is not own]
    return holders if sum(map(_size, holders)) >= _MUCH * _bytes(total["size"]) else []


def _size(holder: tuple[str, str]) -> float:
    return _bytes(holder[1])


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit.rstrip("iB")]


def _named(candidate: Candidate, holders: Sequence[tuple[str, str]]) -> Candidate:
    (pid, size), *others = holders
    and_others = f", and {len(others)} more hold memory" if others else ""
    return replace(
        candidate,
        what=(
            f"another process holds much of it: process {pid} holds {size}{and_others};"
            f" {candidate.what}"
        ),
        fix=(
            f"nvidia-smi and ps -fp {pid} on that node: end it if it is left over; if it is another"
            " rank, give each rank its own GPU (torch.cuda.set_device(local_rank))"
        ),
    )


Rule = Callable[[Scanned, Sequence[Candidate]], list[Candidate]]
Inference = Callable[[Scanned, Sequence[Candidate]], Candidate | None]


def infer(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Apply all rules in order; return the changed candidates and the inferred ones."""
    current = list(candidates)
    for rule in RULES:
        current = rule(scanned, current)
    return [_advised(candidate) for candidate in current]


def _advised(candidate: Candidate) -> Candidate:
    """Return a candidate with the texts of ``inferred.toml``, if it is an inferred one."""
    if not candidate.advice:
        return candidate
    texts = texts_of("inferred")[candidate.advice]
    return replace(
        candidate,
        what=texts.get("what", candidate.what),
        why=texts.get("why", candidate.why),
        fix=texts.get("fix", candidate.fix),
    )


def _adding(inference: Inference) -> Rule:
    """Return the rule that adds the inferred fault, if there is one."""

    @wraps(inference)
    def rule(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
        candidate = inference(scanned, candidates)
        return [*candidates] if candidate is None else [*candidates, candidate]

    return rule


# Candidates by what the rest of the text shows


_SIGKILL = -9
_TABLE_TIME = "%Y-%m-%d_%H:%M:%S"  # in torchrun's table of failures
_GRACE_S = 25  # of the 30 s; a table counts whole seconds, and a busy launcher looks late


def drop_prefix_mismatch(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop a mismatch of prefixes if keys on both sides start with ``module.``."""
    kinds = {
        match.groups["kind"].lower()
        for match in scanned.of("state-key")
        if match.groups["key"].startswith("module.")
    }
    # With the prefix on both sides the model is wrapped in both, and other keys are at fault.
    if not {"missing", "unexpected"} <= kinds:
        return list(candidates)
    return [candidate for candidate in candidates if candidate.key != "prefix"]


def batch_without_samples(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a batch that is too small if a replica other than the first lacks an argument."""
    # DataParallel splits a batch; a replica that gets no part of it is called without arguments.
    replicas = [match for match in scanned.of("replica") if int(match.groups["replica"]) > 0]
    missing_arguments = scanned.of("missing-argument")
    if not replicas or not missing_arguments:
        return None
    first = replicas[0]
    return Candidate(
        "batch-smaller-than-gpus",
        Tier.CAUSE,
        first.line.number,
        f"replica {first.groups['replica']} got nothing: the batch has fewer samples than GPUs",
        evidence=quoted([first.line, missing_arguments[0].line]),
        advice="batch-without-samples",
    )


def place_first_failure(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Take the rank and the host of the first failure from the last block of torchrun's table."""
    ranks, hosts, codes = (scanned.of(key) for key in ("table-rank", "table-host", "table-exit"))
    if not ranks:
        return list(candidates)
    host = f" on {hosts[-1].groups['host']}" if hosts else ""
    place = f"rank {ranks[-1].groups['rank']}{host}"
    failure = codes[-1] if codes else None
    return [_placed(candidate, place, failure) for candidate in candidates]


def _placed(candidate: Candidate, place: str, failure: Match | None) -> Candidate:
    """Return a candidate with the place of the first failure, if it is about that failure."""
    code = int(failure.groups["code"]) if failure is not None else 0
    if code and candidate.key.startswith("exit--") and candidate.key != f"exit-{code}":
        return candidate  # a signal ended another rank
    if not candidate.where and candidate.key.startswith(("exit-", "summary")):
        return replace(candidate, where=place)
    is_victim = candidate.name == "peer-rank-died" and candidate.tier >= Tier.VICTIM
    if failure is None or code <= 0 or not is_victim:
        return candidate
    return replace(
        candidate,
        what=f"{place} ended first, with exit code {code}; its own words are not in this text",
        where=place,
        advice="ended-first",
        evidence=quoted([failure.line]) + candidate.evidence,
    )


def lower_kills_of_launcher(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower SIGKILLs of torchrun, which ends so what has not ended 30 s after the first failure."""
    codes = [int(match.groups["code"]) for match in scanned.of("table-exit")]
    ends = [match.groups["time"] for match in scanned.of("table-time")]
    # Of several tables it is open which node failed first.
    if len(scanned.of("root-cause")) != 1 or not codes or codes[-1] == _SIGKILL:
        return list(candidates)
    late = [end for end, code in zip(ends, codes, strict=False) if code == _SIGKILL]
    if not (_are_late(late, ends[-1]) if late else scanned.of("forced")):
        return list(candidates)
    what = "torchrun killed a rank that had not ended 30 s after the first failure (SIGKILL)"
    lowered = partial(replace, tier=Tier.RANKS_ENDED, what=what)
    return changed(candidates, lowered, key="exit--9")


def _are_late(ends: Sequence[str], first: str) -> bool:
    """Return whether all these ranks ended torchrun's 30 s after the first failure."""
    try:
        times = [datetime.strptime(end, _TABLE_TIME) for end in ends]
        waited = min(times) - datetime.strptime(first, _TABLE_TIME)
    except ValueError:  # a damaged line
        return False
    return waited.total_seconds() >= _GRACE_S


def heed_context(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Replace or drop candidates as ``context.toml`` says of other lines, or of their absence."""
    in_context = (_in_context(candidate, scanned) for candidate in candidates)
    return [candidate for candidate in in_context if candidate is not None]


def _in_context(candidate: Candidate, scanned: Scanned) -> Candidate | None:
    for row in texts_of("context")["row"]:
        is_absent = not any(scanned.counts[key] for key in row.get("absent", ()))
        if {candidate.name, candidate.key}.isdisjoint(row["of"]) or not is_absent:
            continue
        notes: list[Match | None] = [*scanned.of(row["note"])] if "note" in row else [None]
        for match in reversed(notes):
            groups = {name: re.escape(text) for name, text in match.groups.items()} if match else {}
            said = re.search(fill((row.get("said", ""),), groups), candidate.what)
            distance = candidate.number - match.line.number if match else 0
            if said and ("reach" not in row or 0 <= distance <= row["reach"]):
                is_dropped = row.get("drop", False)
                return None if is_dropped else _with_texts(candidate, row, match, said.groupdict())
    return candidate


def _with_texts(
    candidate: Candidate, row: Mapping[str, Any], match: Match | None, said: Mapping[str, str]
) -> Candidate:
    quotes = quoted([match.line]) if match else ()
    known = {"quote": "".join(quotes), "place": candidate.where, "first": candidate.fix}
    groups = {name: text for name, text in known.items() if text}
    groups.update(match.groups if match else {}, **said)
    texts: dict[str, Any] = {
        name: fill(tuple(row.get(name, ())), groups) for name in ("what", "why", "fix")
    }
    return replace(
        candidate,
        **{name: text for name, text in texts.items() if text},
        name=row.get("name", candidate.name),
        tier=Tier[row.get("tier", candidate.tier.name)],
        evidence=tuple(dict.fromkeys(quotes + candidate.evidence)),
    )


# Each rule sees the candidates as the rules above it leave them.
RULES: tuple[Rule, ...] = (
    # Faults that only several lines show
    collectives.name_ranks_behind,
    _adding(arrivals.wrong_number_of_tasks),
    _adding(arrivals.local_rank_without_device),
    _adding(arrivals.double_launch),
    _adding(falling_loss_scale),
    _adding(non_finite_gradient),
    _adding(stopped_on_nan),
    _adding(loss_not_finite),
    _adding(collectives.different_collectives),
    _adding(collectives.slow_rank),
    _adding(collectives.uneven_inputs),
    _adding(collectives.rank_dependent_graph),
    _adding(batch_without_samples),
    # Names, words and places that depend on the rest of the text
    name_holder,
    arrivals.weigh_missing_endpoint,
    arrivals.advise_one_start,
    arrivals.blame_init_file,
    drop_prefix_mismatch,
    place_first_failure,
    lower_kills_of_launcher,
    heed_context,
    pairs.blame_launcher,
    pairs.name_single_rank,
    # What the run survived, and what follows from another fault
    survived.lower_survived,
    survived.drop_ended_after_success,
    pairs.lower_consequences,
    pairs.lower_after_stop,
    survived.drop_overcome,
    survived.drop_recovered,
    # Faults of a text without a likelier one
    _adding(arrivals.interrupted_rendezvous),
    _adding(collectives.hang_at_start),
)
