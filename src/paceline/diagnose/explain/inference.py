"""Infer faults from several lines together, and change the tiers of candidates. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.diagnose.explain.arrivals import (
    devices,
    double_launch,
    endpoint,
    interrupted,
    listed,
    members,
    surplus,
)
from paceline.diagnose.explain.candidates import Candidate, quoted
from paceline.diagnose.explain.collectives import branches, hang, slow_rank, uneven, watchdogs
from paceline.diagnose.explain.memory import held_by_others
from paceline.diagnose.explain.pairs import consequences
from paceline.diagnose.explain.scan import Scanned
from paceline.diagnose.explain.survived import survived
from paceline.signatures.tier import Tier

_ALONE = (
    "look at that rank's own output: torchrun --log-dir logs --redirects 3; a sys.exit(n) or"
    " os._exit(n) ends so too"
)

Rule = Callable[[Scanned, Sequence[Candidate]], list[Candidate]]

_MIN_SCALE = 1e-3  # loss scale: below it, fp16 gradients vanish
# The success of the whole run, not of a download.
_OVER = re.compile(r"train|exit|\bjob\b|\brun\b|\bfit\b", re.IGNORECASE)
_ENDED_OUTSIDE = ("stop", "step-cancelled", "exit--15", "stopped")
_NEVER = 1 << 62
_WARNINGS = (Tier.HINTED, Tier.RETRIED, Tier.WARNED)  # training may have continued after these


def infer(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Apply all rules in order; return the changed candidates and the inferred ones."""
    current = list(candidates)
    for rule in _RULES:
        current = rule(scanned, current)
    return current


def _loss_scale(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a fault of fp16 if the loss scale falls step by step."""
    notes = scanned.of("loss-scale")
    scales = [
        (float(match.groups["scale"]), match.line)
        for match in notes
        if _number(match.groups["scale"])
    ]
    least = min((scale for scale, _ in scales), default=1e9)
    falling = least <= _MIN_SCALE or (
        least <= 1 and (scales[0][0] >= 16 * least or bool(scanned.of("nan")))
    )
    if len(scales) < 3 or not falling:
        return list(candidates)
    found = Candidate(
        "fp16-nan",
        Tier.COARSE,
        scales[0][1].number,
        f"the loss scale has fallen to {scales[-1][0]:.4g} and every step is skipped: gradients are"
        " NaN or Inf",
        evidence=quoted(
            [scales[0][1], scales[-1][1], *(match.line for match in scanned.of("nan"))]
        ),
        why="under fp16 a step with NaN or Inf is skipped, so nothing is learnt any more",
        fix=(
            "use bf16, or torch.autograd.set_detect_anomaly(True) to find the NaN; check inputs and"
            " labels, lower the rate"
        ),
        count=len(scales),
    )
    return [*candidates, found]


def _diverged(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Attribute a loss that is NaN to fp16 only if the text mentions fp16."""
    if scanned.of("fp16"):
        return list(candidates)
    return [
        replace(candidate, name="user-exception") if candidate.key == "diverged" else candidate
        for candidate in candidates
    ]


def _one_nan(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a fault of one rank if a table of values by rank has NaN or Inf for a minority."""
    values = {match.groups["rank"]: match for match in scanned.of("rank-value")}
    bad = [
        rank
        for rank, match in values.items()
        if match.groups["value"].lower().strip("-+") in ("nan", "inf")
    ]
    if not bad or len(bad) * 2 > len(values):
        return list(candidates)
    found = Candidate(
        "non-finite-on-one-rank",
        Tier.CAUSE,
        values[bad[0]].line.number,
        f"the gradient is NaN or Inf on rank {listed([int(rank) for rank in bad])} alone",
        where=f"rank {bad[0]}",
        evidence=quoted([values[bad[0]].line]),
        fix=(
            "keep that rank's batch and look at it: torch.isfinite on inputs, labels and loss; if"
            " it stays with the GPU, test the GPU"
        ),
    )
    return [*candidates, found]


def _stopped_on_nan(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a fault of some ranks if they stopped on NaN and the others wait for them."""
    notes = {match.line.rank: match.line for match in scanned.of("stopping-on-nan")}
    others = any(each.name in ("collective-timeout", "peer-rank-died") for each in candidates)
    if not others or "" in notes or not notes or len(notes) * 2 > len(scanned.ranks):
        return list(candidates)
    ranks = sorted(map(int, notes))
    found = Candidate(
        "non-finite-on-one-rank",
        Tier.CAUSE,
        next(iter(notes.values())).number,
        f"rank {listed(ranks)} stopped on a loss that is NaN or Inf, and the others wait for it",
        where=f"rank {ranks[0]}",
        evidence=quoted(notes.values()),
        fix=(
            "stop on all ranks together (all_reduce the flag); torch.isfinite on that rank's inputs"
            " and labels"
        ),
    )
    return [*candidates, found]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _prefixes(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop a mismatch of prefixes if keys on both sides start with ``module.``."""
    kinds = {
        match.groups["kind"].lower()
        for match in scanned.of("state-key")
        if match.groups["key"].startswith("module.")
    }
    both = {"missing", "unexpected"} <= kinds
    return [each for each in candidates if not (both and each.key == "prefix")]


def _replicas(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a batch that is too small if a replica other than the first lacks an argument."""
    notes = [match for match in scanned.of("replica") if int(match.groups["replica"]) > 0]
    lacking = scanned.of("missing-argument")
    if not notes or not lacking:
        return list(candidates)
    found = Candidate(
        "batch-smaller-than-gpus",
        Tier.CAUSE,
        notes[0].line.number,
        f"replica {notes[0].groups['replica']} got nothing: the batch has fewer samples than GPUs",
        evidence=quoted([notes[0].line, lacking[0].line]),
        fix="DataLoader(..., drop_last=True) and a batch of at least one sample for each GPU",
    )
    return [*candidates, found]


def _table(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Take the rank and the host of the first failure from the last block of torchrun's table."""
    ranks, hosts, codes = (scanned.of(key) for key in ("table-rank", "table-host", "table-exit"))
    if not ranks:
        return list(candidates)
    place = f"rank {ranks[-1].groups['rank']}" + (
        f" on {hosts[-1].groups['host']}" if hosts else ""
    )
    code = int(codes[-1].groups["code"]) if codes else 0
    current = []
    for each in candidates:
        if not each.where and each.key.startswith(("exit-", "summary")):
            current.append(replace(each, where=place))
        elif each.name == "peer-rank-died" and code > 0 and each.tier >= Tier.VICTIM:
            what = f"{place} ended first, with exit code {code}; its own words are not in this text"
            shown = quoted([codes[-1].line]) + each.evidence
            current.append(replace(each, what=what, where=place, fix=_ALONE, evidence=shown))
        else:
            current.append(each)
    return current


def _answered(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Replace a file missing in the cache by the refusal of a server, which explains it."""
    answers = scanned.of("server-answered")
    if not answers:
        return list(candidates)
    refusal = quoted([answers[0].line])

    def refused(candidate: Candidate) -> Candidate:
        return replace(
            candidate,
            name="user-exception",
            # The exception that names the refusal ranks first, if the text has it.
            tier=Tier.DOUBTFUL_EXCEPTION,
            what=f"a server refuses a file, which is not in the local cache either: {refusal[0]}",
            evidence=refusal + candidate.evidence,
            why="the server was reached, so this node has access to it",
            fix=(
                "open the address in a browser with the same account: the name, the permission and"
                " the token (huggingface-cli login) must be right"
            ),
        )

    return [
        refused(candidate) if candidate.key == "not-in-cache" else candidate
        for candidate in candidates
    ]


def _in_place(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Attribute a tensor changed in place to DDP only if the run is distributed."""
    if scanned.counts["distributed"] or scanned.ranks:
        return list(candidates)

    def without_ddp(candidate: Candidate) -> Candidate:
        return replace(
            candidate,
            name="user-exception",
            what=candidate.what.partition("; under DDP")[0],
            fix=(
                "torch.autograd.set_detect_anomaly(True) shows the forward operation whose result"
                " was changed"
            ),
        )

    return [
        without_ddp(candidate) if candidate.name == "ddp-inplace-buffer" else candidate
        for candidate in candidates
    ]


def _stops(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower what follows an external stop of the job, and raise what precedes it."""
    stop = min(
        (each for each in candidates if each.key == "stop"),
        key=lambda each: each.number,
        default=None,
    )
    if stop is None:
        return list(candidates)
    return [_after(each, stop) for each in candidates]


def _cleared_away(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop faults that an external stop caused after training had finished."""
    ends = [match.line.number for match in scanned.of("success") if _OVER.search(match.line.body)]
    if not ends or any(match.line.number > ends[-1] for match in scanned.of("progress")):
        return list(candidates)

    def is_harmless(candidate: Candidate) -> bool:
        was_ended_outside = candidate.key in _ENDED_OUTSIDE and candidate.tier < Tier.EXCEPTION
        return was_ended_outside and candidate.number >= ends[-1]

    return [candidate for candidate in candidates if not is_harmless(candidate)]


def _submitted(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop a refusal if sbatch accepted the job."""
    if not scanned.of("submitted"):
        return list(candidates)
    return [candidate for candidate in candidates if candidate.key != "refused-in-other-words"]


def _after(each: Candidate, stop: Candidate) -> Candidate:
    if each.key == "stop":
        return each
    if each.number >= stop.number and each.tier <= Tier.EXCEPTION:
        return replace(each, tier=min(each.tier, Tier.VICTIM))
    if each.number < stop.number and Tier.TIMEOUT <= each.tier < Tier.EXCEPTION:
        return replace(each, tier=Tier.OUTSIDE)
    return each


def _endings(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Attribute SIGTERM of some ranks to the launcher if another rank failed first."""
    failed = [
        match
        for match in scanned.of("exit") + scanned.of("table-exit")
        if int(match.groups["code"]) > 0
    ]
    aborted = (
        scanned.counts["exit--6"]
        or scanned.counts["exit--9"]
        or scanned.counts["exit--11"]
        or scanned.counts["exit--7"]
    )
    return [
        (
            replace(each, name="peer-rank-died", tier=Tier.RANKS_ENDED)
            if each.key == "exit--15" and (failed or aborted)
            else each
        )
        for each in candidates
    ]


def _alone(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Rename an exception of one rank if the other ranks only lost their peer."""
    victims = any(each.name in ("peer-rank-died", "collective-timeout") for each in candidates)
    return [
        (
            replace(each, name="script-error-on-one-rank")
            if each.key == "alone" and each.name == "user-exception" and victims
            else each
        )
        for each in candidates
    ]


def _left_over(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Attribute failed connections to a leftover init file.

    Ranks that use such a file and cannot connect have usually read addresses of an earlier run.
    """
    files = scanned.of("init-file")
    if not files:
        return list(candidates)
    return [
        (
            replace(
                each,
                name="stale-init-file",
                what=(
                    "ranks that met in a file could not connect to each other: the file is from an"
                    " earlier run (likely)"
                ),
                evidence=quoted([files[0].line]) + each.evidence,
                why=(
                    "ranks read each other's addresses from that file, also those of an earlier run"
                ),
                fix=(
                    "delete the file before each start, or use init_method='env://' with a launcher"
                ),
            )
            if each.key == "full-mesh"
            else each
        )
        for each in candidates
    ]


def _recovered(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop all candidates if the ranks restarted and trained until the end of the text."""
    restarts = scanned.of("restart")
    progress = scanned.of("progress")
    if not restarts or not progress or progress[-1].line.number <= restarts[-1].line.number:
        return list(candidates)
    again, going = restarts[0].line.number, progress[-1].line.number
    ends = [
        each.last if each.last < _NEVER else each.number
        for each in candidates
        if each.tier is not Tier.REMARK
    ]
    if any(end > going for end in ends) or any(
        again < each.number and each.tier >= Tier.WORKER_CRASH for each in candidates
    ):
        return list(candidates)
    return []


def _other_python(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Rename a missing torch if torch's own launcher runs: there are two Python environments."""
    elastic = any(
        "torch.distributed.elastic" in line.text for tail in scanned.tails.values() for line in tail
    )
    return [
        replace(each, name="wrong-python-env") if elastic and each.name == "torch-missing" else each
        for each in candidates
    ]


def _overcome(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop warnings after which training continued."""
    progress = scanned.of("progress")
    going = progress[-1].line.number if progress else -1
    return [
        each
        for each in candidates
        if going <= each.last or not (each.tier in _WARNINGS or each.name == "peer-rank-died")
    ]


_RULES: tuple[Rule, ...] = (
    held_by_others,
    members,
    devices,
    double_launch,
    endpoint,
    surplus,
    _loss_scale,
    _diverged,
    _one_nan,
    _stopped_on_nan,
    _left_over,
    watchdogs,
    slow_rank,
    uneven,
    _prefixes,
    branches,
    _replicas,
    _in_place,
    _table,
    _answered,
    _endings,
    _alone,
    survived,
    _cleared_away,
    _submitted,
    consequences,
    _other_python,
    _stops,
    _overcome,
    _recovered,
    interrupted,
    hang,
)
