"""Infer which workers joined the start of a run, and which are missing or too many. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from paceline.diagnose.explain.candidates import Candidate, changed, quoted
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Raised

_JOINING = (
    "init_process_group",
    "_store_based_barrier",
    "next_rendezvous",
    "_tcp_rendezvous_handler",
    "_env_rendezvous_handler",
)


def wrong_number_of_tasks(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a wrong number of tasks if ranks joined twice or are missing.

    Lightning logs each rank that joins, with the total.
    """
    members = scanned.of("member")
    if not members or scanned.of("all-registered"):
        return None
    total = max(int(match.groups["total"]) for match in members)
    joined = Counter(int(match.groups["rank"]) for match in members)
    if len(joined) >= total:
        return None
    likeliest = max((candidate.tier for candidate in candidates), default=Tier.REMARK)
    twice = sorted(rank for rank, times in joined.items() if times > 1)
    if twice and likeliest < Tier.EXCEPTION:
        absent = [rank for rank in range(total) if rank not in joined]
        what = (
            f"ranks {listed(twice)} of {total} came {max(joined.values())} times, ranks"
            f" {listed(absent)} never"
        )
        return _wrong_number_of_tasks(members, what, Tier.COARSE)
    if likeliest < Tier.HINTED:
        what = f"only {len(joined)} of {total} ranks came: {listed(sorted(joined))}"
        return _wrong_number_of_tasks(members, what, Tier.WAIT_EXPLAINED)
    return None


def _wrong_number_of_tasks(members: Sequence[Match], what: str, tier: Tier) -> Candidate:
    lines = [match.line for match in members]
    return Candidate(
        "slurm-ntasks-mismatch",
        tier,
        lines[0].number,
        what,
        evidence=quoted(lines, 4),
        advice="wrong-number-of-tasks",
    )


def listed(ranks: Sequence[int]) -> str:
    """Return the first ranks and the number of the others, as text."""
    first = ", ".join(map(str, ranks[:6]))
    return f"{first} and {len(ranks) - 6} more" if len(ranks) > 6 else first


def local_rank_without_device(
    scanned: Scanned, candidates: Sequence[Candidate]
) -> Candidate | None:
    """Infer that a task sees fewer devices than its local rank needs."""
    if not any(candidate.name == "invalid-device-ordinal" for candidate in candidates):
        return None
    return next(filter(None, map(_without_device, scanned.of("local-rank-devices"))), None)


def _without_device(match: Match) -> Candidate | None:
    """Return the candidate for a line with a local rank and its devices, if they do not fit."""
    entries = match.groups.get("devices", "").split(",")
    num_devices = sum(bool(entry.strip()) for entry in entries)
    local_rank = int(match.groups["local"])
    if not num_devices or local_rank < num_devices:
        return None
    return Candidate(
        "gpus-per-task-with-local-rank",
        Tier.ORIGIN,
        match.line.number,
        f"local rank {local_rank} sees {num_devices} GPU{'s' if num_devices > 1 else ''} only and"
        f" picks number {local_rank}",
        evidence=quoted([match.line]),
        advice="without-device",
    )


def double_launch(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer that all ranks were started twice, or that a file of an earlier run makes it look so.

    The signs are more workers than the world size, or a program that spawns ranks in several Slurm
    tasks.
    """
    surplus = _surplus(scanned)
    srun = [match for match in scanned.of("srun-command") if _tasks(match.groups["options"]) > 1]
    spawned_by_tasks = bool(srun) and _spawned(scanned)
    files = scanned.of("init-file")
    if surplus and files and not spawned_by_tasks:
        return _leftover_file(files[0], surplus[0])
    several_in_slurm = bool(surplus) and bool(srun or scanned.counts["slurm"])
    if spawned_by_tasks or several_in_slurm:
        return _double_launch(srun, surplus)
    return None


def _surplus(scanned: Scanned) -> list[Match]:
    """Return the lines that show more workers than the world size."""
    return [
        match
        for match in scanned.of("store-barrier")
        if int(match.groups["joined"]) > int(match.groups["total"])
    ]


def _spawned(scanned: Scanned) -> bool:
    """Return whether the program started its ranks with torch.multiprocessing.spawn."""
    if any(
        "spawn" in frame.file
        for raised in scanned.tracebacks.raised
        for frame in raised.frames[-8:]
    ):
        return True
    return any("spawn.py" in line.text for tail in scanned.tails.values() for line in tail)


def _leftover_file(file: Match, surplus: Match) -> Candidate:
    groups = surplus.groups
    return Candidate(
        "stale-init-file",
        Tier.HINTED,
        surplus.line.number,
        f"{groups['joined']} workers joined a world of {groups['total']}: the file that they meet"
        " in is left over (likely)",
        evidence=quoted([file.line, surplus.line]),
        advice="leftover-file",
    )


def _double_launch(srun: Sequence[Match], surplus: Sequence[Match]) -> Candidate:
    lines = [match.line for match in (*srun, *surplus)]
    what = "srun starts several tasks and each of them starts all ranks of the node again"
    if surplus:
        groups = surplus[0].groups
        what = f"{groups['joined']} workers joined a world of {groups['total']}: {what}"
    return Candidate(
        "double-launch",
        Tier.HINTED,
        lines[0].number,
        what,
        evidence=quoted(lines),
        advice="double-launch",
    )


def _tasks(options: str) -> int:
    match = re.search(r"(?:-n *|--ntasks(?:-per-node)?[= ])(\d+)", options)
    return int(match[1]) if match else 1


def weigh_missing_endpoint(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop torchrun's warning about an ignored master address if an endpoint was set.

    Some versions of torchrun print the warning in that case too. If the command is in the text and
    has no endpoint, the warning explains why ranks wait.
    """
    endpoints = [match.groups["endpoint"].lower() for match in scanned.of("rdzv-endpoint")]
    name = "c10d-without-rdzv-endpoint"
    if any(not endpoint.startswith("none") for endpoint in endpoints):
        return [candidate for candidate in candidates if candidate.name != name]
    commands = [match.line for match in scanned.of("torchrun-command")]
    without_endpoint = [line for line in commands if "endpoint" not in line.text]
    if not without_endpoint:
        return list(candidates)
    command = quoted(without_endpoint[:1])
    return changed(
        candidates,
        lambda candidate: replace(
            candidate, tier=Tier.WAIT_EXPLAINED, evidence=command + candidate.evidence
        ),
        name=name,
    )


def advise_one_start(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Replace the fix of a rendezvous timeout if more workers joined than there are ranks.

    Then no rank is missing.
    """
    if not _surplus(scanned):
        return list(candidates)
    return changed(candidates, partial(replace, advice="one-start"), name="rendezvous-timeout")


def blame_init_file(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Attribute failed connections to a leftover init file.

    Ranks that use such a file and cannot connect have usually read addresses of an earlier run.
    """
    files = scanned.of("init-file")
    if not files:
        return list(candidates)
    return changed(candidates, partial(_misled, file=files[0]), key="full-mesh")


def _misled(candidate: Candidate, file: Match) -> Candidate:
    evidence = quoted([file.line]) + candidate.evidence
    return replace(candidate, name="stale-init-file", evidence=evidence, advice="misled")


def interrupted_rendezvous(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a rendezvous timeout if Ctrl-C interrupted the wait for other ranks."""
    return next(map(_interrupted, filter(_is_interrupted, scanned.tracebacks.raised)), None)


def _is_interrupted(raised: Raised) -> bool:
    joining = any(frame.function in _JOINING for frame in raised.frames)
    return raised.type == "KeyboardInterrupt" and joining


def _interrupted(raised: Raised) -> Candidate:
    return Candidate(
        "rendezvous-timeout",
        Tier.INTERRUPTED,
        raised.line.number,
        "",
        where=raised.user_frame.place if raised.user_frame else "",
        evidence=quoted([raised.line]),
        advice="interrupted",
    )
