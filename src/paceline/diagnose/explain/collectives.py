"""Infer from the lines of several ranks which rank a collective waits for, and why. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, takewhile

from paceline.diagnose.explain.candidates import Candidate, changed, quoted
from paceline.diagnose.explain.scan import Scanned
from paceline.signatures.lines import Line, parse
from paceline.signatures.tier import Tier
from paceline.text.wording import is_or_are

_INIT = re.compile(
    r"Channel \d|Trees \[|Ring \d|Connected (?:all )?|Setting affinity|NET/|Bootstrap|NCCL version"
    r"|threadThresholds|P2P Chunk"
    r"|via (?:P2P|SHM|NET|direct)|comm 0x\w+ rank|Using"
    r" (?:network|non-device)|nranks|ncclCommInit|coll channels"
    r"|cudaDriverVersion"
    r"|DMA-BUF|MNNVL|NVLS|Plugin|plugin|init\.cc|PXN|Proxy|proxy|TUNER|commId|Init"
    r" START|busId|isAllDirectP2p"
    r"|topology|GPU Direct|Latency"
)
_PROGRESS = re.compile(r"\bloss\b|\bstep\b|\bepoch\b|it/s|s/it|\biter", re.IGNORECASE)
_FAILED_COLLECTIVE = ("collective-timeout", "collective-mismatch", "peer-rank-died")
_BUSY_REACH = 12  # lines before a timeout in which a rank reports what it does
_MAX_QUOTE = 290  # characters of a quoted line
_DONE = re.compile(r"(?:Abort|Destroy) COMPLETE")
_CONNECTED = re.compile(r"(?:Abort|Destroy|Init) COMPLETE|Connected all")
# The last line of a launcher, and what may follow it although no rank has begun to train.
_REGISTERED = re.compile("All distributed processes registered")
_LAST_LINE = re.compile(f"{_REGISTERED.pattern}|Initializing TorchBackend|Setting OMP_NUM_THREADS")
_STILL_STARTING = re.compile(
    r"^\W*$|LOCAL_RANK|NCCL|OMP_NUM_|DeepSpeed|[Dd]istributed|Warning|warnings\.warn"
)
_STOPPED = re.compile(
    r"^\^C|\^C$|^Traceback|KeyboardInterrupt|SIGINT|SIGTERM|CANCELLED AT"
    r"|walltime|RUNLIMIT|LSF run time|DeadlineExceeded"
)


def name_ranks_behind(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add to a timeout which ranks are behind, if several ranks logged their progress."""
    positions = _positions(scanned)
    if len(set(positions.values())) < 2:
        return list(candidates)
    least = min(positions.values())
    ranks = sorted((rank for rank, position in positions.items() if position == least), key=int)
    if len(ranks) * 2 > len(positions):
        return list(candidates)
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:6])}"
    behind = (
        f"{who} {is_or_are(ranks)} behind (collective {least}, others {max(positions.values())})"
    )
    return changed(
        candidates,
        lambda candidate: replace(candidate, what=f"{candidate.what}; {behind}", where=who),
        name="collective-timeout",
    )


def _positions(scanned: Scanned) -> dict[str, int]:
    """Return the number of the last collective that each rank enqueued, as far as it is logged."""
    enqueued = {
        match.groups["rank"]: int(match.groups["enqueued"]) for match in scanned.of("last-work")
    }
    if len(enqueued) > 1:
        return enqueued
    return {rank: int(call.number) for rank, call in _calls(scanned).items()}


@dataclass(frozen=True)
class _Call:
    """A collective that a rank waited for: its number, operation and number of elements."""

    number: str
    operation: str
    numel: str


def _calls(scanned: Scanned) -> dict[str, _Call]:
    """Return the first collective that timed out on each rank."""
    calls: dict[str, _Call] = {}
    for match in scanned.of("watchdog"):
        groups = match.groups
        if {"rank", "seq", "op"} <= groups.keys():
            call = _Call(groups["seq"], groups["op"], groups.get("numel", ""))
            calls.setdefault(groups["rank"], call)
    return calls


def different_collectives(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a mismatch if ranks timed out in different operations with the same number."""
    by_number: dict[str, dict[_Call, list[str]]] = {}
    for rank, call in _calls(scanned).items():
        by_number.setdefault(call.number, {}).setdefault(call, []).append(rank)
    for number, ranks in by_number.items():
        if len(ranks) > 1:
            return _mismatch(scanned, number, ranks)
    return None


def _mismatch(scanned: Scanned, number: str, ranks: dict[_Call, list[str]]) -> Candidate:
    parts = [
        f"rank {', '.join(sorted(names, key=int)[:4])}: {call.operation} of {call.numel or '?'}"
        for call, names in ranks.items()
    ]
    lines = [match.line for match in scanned.of("watchdog") if match.groups.get("seq") == number]
    return Candidate(
        "collective-mismatch",
        Tier.WAIT_EXPLAINED,
        lines[0].number,
        f"collective {number} is not the same on all ranks: {'; '.join(parts[:4])}",
        evidence=tuple(line.body.strip()[:_MAX_QUOTE] for line in lines[:3]),
        advice="mismatch",
    )


def slow_rank(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a slow rank if one rank prepared data or saved before the timeout."""
    timeouts = [
        candidate
        for candidate in candidates
        if candidate.name == "collective-timeout" and candidate.tier >= Tier.TIMEOUT
    ]
    # A mismatch shows what ranks called, where a busy rank is only near in the text.
    explained = any(candidate.name == "collective-mismatch" for candidate in candidates)
    if not timeouts or explained:
        return None
    timeout = timeouts[0]
    blocks = scanned.of("first-block")
    busy = [match for match in scanned.of("busy") if match.line.number <= timeout.number][-1:]
    near = [match for match in busy if timeout.number - match.line.number <= _BUSY_REACH]
    if blocks:
        reason = f"the others wait in {blocks[0].groups['block']}"
    elif near:
        reason = f"the last line before it says: {near[0].groups['what'].strip()}"
    else:
        return None
    return _slow_rank(timeout, reason, [match.line for match in (*blocks[:1], *near)])


def _slow_rank(timeout: Candidate, reason: str, lines: Sequence[Line]) -> Candidate:
    alike = f" ({timeout.others} alike)" if timeout.others else ""
    return replace(
        timeout,
        name="collective-timeout-slow-rank0",
        others="",
        tier=Tier.WAIT_EXPLAINED,
        what=(
            f"{timeout.what}{alike}; likely one rank (usually rank 0) was busy preparing or saving"
            f" for too long: {reason}"
        ),
        where=timeout.where if "behind" in timeout.what else "",  # else a rank that waits
        evidence=tuple(dict.fromkeys((*quoted(lines, 2), *timeout.evidence[:1]))),
        count=1,
        key="",
        advice="slow-rank",
    )


def rank_dependent_graph(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a rank-dependent graph if ranks lack gradients of disjoint sets of parameters."""
    unused: dict[str, set[str]] = {}
    lines: dict[str, Line] = {}
    for match in scanned.of("unused-parameters"):
        if {"rank", "names"} <= match.groups.keys():
            names = re.split(r"[ ,]+", match.groups["names"].strip(" ."))
            unused.setdefault(match.groups["rank"], set(names))
            lines.setdefault(match.groups["rank"], match.line)
    ranks = list(unused)
    # Parameters that no rank uses are another fault, and the same on all of them.
    overlap = any(unused[one] & unused[other] for one, other in combinations(ranks, 2))
    if len(ranks) < 2 or overlap:
        return None
    return Candidate(
        "rank-dependent-graph",
        Tier.ORIGIN,
        lines[ranks[0]].number,
        f"ranks {', '.join(ranks[:4])} lack the gradients of different parameters: they run"
        " different parts of the model",
        evidence=tuple(lines[rank].body.strip()[:_MAX_QUOTE] for rank in ranks[:2]),
        advice="rank-dependent-graph",
    )


def hang_at_start(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a hang at the start if the text ends before ranks have connected to each other."""
    causes = [candidate for candidate in candidates if not _ends_waiting(candidate)]
    is_limited = len(causes) < len(candidates)
    if any(candidate.tier > Tier.STOPPED for candidate in causes):
        return None
    if is_limited and scanned.counts["progress"]:
        return None
    last = [raw.decode("utf-8", "replace") for raw in scanned.last if raw.strip()]
    before = list(takewhile(lambda text: not _STOPPED.search(text), last))
    info = [text for text in before[-12:] if "NCCL INFO" in text]
    is_certain, lines = True, info[-2:]
    advice = "hang-of-peers" if sum("via P2P" in text for text in before) >= 2 else "hang-at-start"
    if not _ends_in_setup(before, info, _CONNECTED if is_limited else _DONE):
        is_certain, advice = len(before) < len(last), "hang-before-training"
        lines = _last_of_start(before, is_stopped=is_certain)
    if not lines:
        return None
    # torchrun's line stands alone where --error separates it from what the ranks print.
    if "OMP_NUM_THREADS" in lines[0]:
        advice = "silent-start"
    is_certain = is_certain and advice not in ("hang-of-peers", "silent-start")
    return Candidate(
        "p2p-hang" if advice == "hang-of-peers" else "nccl-hang-at-init",
        Tier.OUTSIDE if is_limited else Tier.UNCLEAR,
        scanned.num_lines,
        "",
        evidence=tuple(text.strip()[:_MAX_QUOTE] for text in lines),
        severity="error" if is_certain else "warning",
        advice=advice,
    )


def _ends_waiting(candidate: Candidate) -> bool:
    """Return whether a scheduler or a person ended a run that may have waited in vain."""
    is_for_time = candidate.name == "slurm-time-limit" or candidate.tier is Tier.INTERRUPTED
    return candidate.key == "stop" and is_for_time


def _last_of_start(last: Sequence[str], *, is_stopped: bool) -> list[str]:
    """Return a launcher's last line if ranks printed nothing after it, nor gloo is their backend.

    DeepSpeed and torchrun may be silent for minutes: theirs count only where the run was stopped.
    """
    if any("gloo" in text for text in last):
        return []
    after = takewhile(lambda text: _STILL_STARTING.search(parse(text).body), reversed(last))
    pattern = _LAST_LINE if is_stopped else _REGISTERED
    return [text for text in after if pattern.search(text)][:1]


def _ends_in_setup(last: Sequence[str], info: Sequence[str], done: re.Pattern[str]) -> bool:
    """Return whether most of the last lines show NCCL setting up its connections."""
    # A log that was cut off elsewhere has lines of the program among the last ones.
    if len(info) < 3 or len(info) * 2 < len(last[-12:]) or _has_progress_after_setup(last):
        return False
    num_setup = sum(_INIT.search(text) is not None for text in info)
    return num_setup * 2 >= len(info) and not any(done.search(text) for text in last[-6:])


def _has_progress_after_setup(last: Sequence[str]) -> bool:
    """Return whether training progress follows the last line of the setup."""
    after_setup = takewhile(lambda text: "NCCL INFO" not in text, reversed(last))
    return any(_PROGRESS.search(text) for text in after_setup)


def uneven_inputs(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer uneven inputs if ranks logged different numbers of batches and a collective failed."""
    if not any(candidate.name in _FAILED_COLLECTIVE for candidate in candidates):
        return None
    counts = {match.groups["rank"]: match for match in scanned.of("batches")}
    ordered = sorted(counts.items(), key=lambda item: int(item[1].groups["count"]))
    if not ordered:
        return None
    (least_rank, least), (most_rank, most) = ordered[0], ordered[-1]
    if int(least.groups["count"]) == int(most.groups["count"]):
        return None
    return Candidate(
        "uneven-inputs",
        Tier.WAIT_EXPLAINED,
        most.line.number,
        f"rank {least_rank} has {least.groups['count']} batches, rank {most_rank} has"
        f" {most.groups['count']}",
        where=f"rank {least_rank}",
        evidence=tuple(match.line.body.strip()[:_MAX_QUOTE] for match in (least, most)),
        advice="uneven-inputs",
    )
