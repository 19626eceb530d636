"""Infer from the lines of several ranks which rank a collective waits for, and why. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from paceline.diagnose.explain.candidates import Candidate, quoted
from paceline.diagnose.explain.scan import Scanned
from paceline.signatures.lines import Line
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
_DONE = re.compile(r"(?:Abort|Destroy) COMPLETE")
_STOPPED = re.compile(r"^\^C|\^C$|^Traceback|KeyboardInterrupt|SIGINT|SIGTERM|CANCELLED AT")


def watchdogs(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Compare the timeouts of several ranks: which ranks are behind, and do their calls differ?"""
    last = {
        match.groups["rank"]: (int(match.groups["enqueued"]), int(match.groups["completed"]))
        for match in scanned.of("last-work")
    }
    calls: dict[str, tuple[str, str, str]] = {}
    for match in scanned.of("watchdog"):
        if {"rank", "seq", "op"} <= match.groups.keys():
            calls.setdefault(
                match.groups["rank"],
                (match.groups["seq"], match.groups["op"], match.groups.get("numel", "")),
            )
    current = [
        _with_suspect(each, last, calls) if each.name == "collective-timeout" else each
        for each in candidates
    ]
    by_seq: dict[str, dict[tuple[str, str], list[str]]] = {}
    for rank, (seq, op, numel) in calls.items():
        by_seq.setdefault(seq, {}).setdefault((op, numel), []).append(rank)
    for seq, kinds in by_seq.items():
        if len(kinds) > 1:
            current.append(_mismatch(scanned, seq, kinds))
            break
    return current


def _with_suspect(
    candidate: Candidate, last: dict[str, tuple[int, int]], calls: dict[str, tuple[str, str, str]]
) -> Candidate:
    behind = (
        {rank: enqueued for rank, (enqueued, _) in last.items()}
        if len(last) > 1
        else {rank: int(seq) for rank, (seq, _, _) in calls.items()}
    )
    if len(behind) < 2 or len(set(behind.values())) < 2:
        return candidate
    least = min(behind.values())
    ranks = sorted((rank for rank, value in behind.items() if value == least), key=int)
    if len(ranks) * 2 > len(behind):
        return candidate
    whom = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:6])}"
    what = f"{candidate.what}; {whom} {is_or_are(ranks)} behind"
    what += f" (collective {least}, others {max(behind.values())})"
    return replace(candidate, what=what, where=whom)


def _mismatch(scanned: Scanned, seq: str, kinds: dict[tuple[str, str], list[str]]) -> Candidate:
    parts = [
        f"rank {', '.join(sorted(ranks, key=int)[:4])}: {op} of {numel or '?'}"
        for (op, numel), ranks in kinds.items()
    ]
    lines = [match.line for match in scanned.of("watchdog") if match.groups.get("seq") == seq]
    return Candidate(
        "collective-mismatch",
        Tier.WAIT_EXPLAINED,
        lines[0].number,
        f"collective {seq} is not the same on all ranks: {'; '.join(parts[:4])}",
        evidence=tuple(line.body.strip()[:290] for line in lines[:3]),
        why="each rank waits for a collective that the others never start",
        fix=(
            "every rank must make the same calls in the same order: no collective, log or save"
            " inside a block for one rank"
        ),
    )


def slow_rank(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a slow rank if one rank prepared data or saved before the timeout."""
    timeout = next(
        (
            each
            for each in candidates
            if each.name == "collective-timeout" and each.tier >= Tier.TIMEOUT
        ),
        None,
    )
    if timeout is None or any(each.name == "collective-mismatch" for each in candidates):
        return list(candidates)
    blocks = scanned.of("first-block")
    busy = [match for match in scanned.of("busy") if match.line.number < timeout.number][-1:]
    near = [match for match in busy if timeout.number - match.line.number <= 12]
    if not blocks and not near:
        return list(candidates)
    lines = [match.line for match in (*blocks[:1], *near)]
    reason = (
        f"the others wait in {blocks[0].groups['block']}"
        if blocks
        else f"the last that was said before it is: {near[0].groups['what'].strip()}"
    )
    found = replace(
        timeout,
        name="collective-timeout-slow-rank0",
        tier=Tier.WAIT_EXPLAINED,
        what=(
            f"{timeout.what}; likely one rank (rank 0, mostly) was busy preparing or saving for too"
            f" long: {reason}"
        ),
        evidence=(*quoted(lines, 2), *timeout.evidence[:1]),
        fix=(
            "prepare the data before the start, or give it time:"
            " init_process_group(timeout=timedelta(hours=2)), HF: ddp_timeout=7200"
        ),
        count=1,
        key="",
    )
    return [*candidates, found]


def branches(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a rank-dependent graph if ranks lack gradients of disjoint sets of parameters."""
    lacking: dict[str, set[str]] = {}
    lines: dict[str, Line] = {}
    for match in scanned.of("unused-parameters"):
        if {"rank", "names"} <= match.groups.keys():
            lacking.setdefault(
                match.groups["rank"], set(re.split(r"[ ,]+", match.groups["names"].strip(" .")))
            )
            lines.setdefault(match.groups["rank"], match.line)
    ranks = list(lacking)
    if len(ranks) < 2 or any(
        lacking[one] & lacking[other] for one in ranks for other in ranks if one < other
    ):
        return list(candidates)
    found = Candidate(
        "rank-dependent-graph",
        Tier.ORIGIN,
        lines[ranks[0]].number,
        f"ranks {', '.join(ranks[:4])} lack the gradients of different parameters: they run"
        " different parts of the model",
        evidence=tuple(lines[rank].body.strip()[:290] for rank in ranks[:2]),
        fix=(
            "let every rank run every part (times zero where it is not wanted), or"
            " find_unused_parameters=True if it is meant"
        ),
    )
    return [*candidates, found]


def hang(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a hang at the start if the text ends while NCCL sets up its connections."""
    if any(each.tier > Tier.STOPPED for each in candidates):
        return list(candidates)
    last = [raw.decode("utf-8", "replace") for raw in scanned.last if raw.strip()]
    last = last[
        : next((place for place, text in enumerate(last) if _STOPPED.search(text)), len(last))
    ]
    info = [text for text in last[-12:] if "NCCL INFO" in text]
    if not _ends_in_setup(last, info):
        return list(candidates)
    evidence = tuple(text.strip()[:290] for text in info[-2:])
    if sum("via P2P" in text for text in last) >= 2:
        return [*candidates, _hang_of_peers(scanned.num_lines, evidence)]
    return [*candidates, _hang_at_start(scanned.num_lines, evidence)]


def _ends_in_setup(last: Sequence[str], info: Sequence[str]) -> bool:
    """Return whether most of the last lines show NCCL setting up its connections.

    Args:
        last: The last lines of the text.
        info: NCCL's lines among the last twelve of them.
    """
    if len(info) < 3 or len(info) * 2 < len(last[-12:]) or _went_on(last):
        return False
    num_setup = sum(_INIT.search(text) is not None for text in info)
    return num_setup * 2 >= len(info) and not any(_DONE.search(text) for text in last[-6:])


def _hang_of_peers(number: int, evidence: tuple[str, ...]) -> Candidate:
    return Candidate(
        "p2p-hang",
        Tier.UNCLEAR,
        number,
        "the text ends while NCCL sets up peer-to-peer channels between GPUs: if it hangs here,"
        " peer-to-peer transfer is broken (likely)",
        evidence=evidence,
        why=(
            "a log that was only cut off here looks the same; in a hang the first collective never"
            " ends"
        ),
        fix=(
            "NCCL_P2P_DISABLE=1 as a test; if it helps: ACS off in the BIOS, IOMMU in pass-through"
            " mode"
        ),
        severity="warning",
    )


def _hang_at_start(number: int, evidence: tuple[str, ...]) -> Candidate:
    return Candidate(
        "nccl-hang-at-init",
        Tier.UNCLEAR,
        number,
        "the text ends while NCCL sets up its connections: likely a hang",
        evidence=evidence,
        why="nothing fails and nothing goes on; the first collective never ends",
        fix=(
            "which rank is missing in these lines? then NCCL_SOCKET_IFNAME and NCCL_P2P_DISABLE=1"
            " as tests"
        ),
    )


def _went_on(last: Sequence[str]) -> bool:
    """Return whether training progress follows the last line of the setup."""
    after = 0
    for text in reversed(last):
        if "NCCL INFO" in text:
            break
        after += 1
    return after > 0 and any(_PROGRESS.search(text) for text in last[-after:])


def uneven(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add uneven inputs if ranks logged different numbers of batches and a collective failed."""
    counts = {match.groups["rank"]: match for match in scanned.of("batches")}
    numbers = {int(match.groups["count"]) for match in counts.values()}
    lost = any(
        each.name in ("collective-timeout", "collective-mismatch", "peer-rank-died")
        for each in candidates
    )
    if len(counts) < 2 or len(numbers) < 2 or not lost:
        return list(candidates)
    shown = sorted(counts.items(), key=lambda item: int(item[1].groups["count"]))
    least, most = shown[0], shown[-1]
    found = Candidate(
        "uneven-inputs",
        Tier.WAIT_EXPLAINED,
        most[1].line.number,
        f"rank {least[0]} has {least[1].groups['count']} batches, rank {most[0]} has"
        f" {most[1].groups['count']}",
        where=f"rank {least[0]}",
        evidence=tuple(match.line.body.strip()[:290] for _, match in (least, most)),
        why="the rank with fewer leaves the loop and the others wait for it",
        fix="DistributedSampler(..., drop_last=True), or the same number of steps on every rank",
    )
    return [*candidates, found]
