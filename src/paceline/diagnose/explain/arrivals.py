"""Infer which workers joined the start of a run, and which are missing or too many. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from paceline.diagnose.explain.candidates import Candidate, quoted
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.tier import Tier

_JOINING = (
    "init_process_group",
    "_store_based_barrier",
    "next_rendezvous",
    "_tcp_rendezvous_handler",
    "_env_rendezvous_handler",
)


def members(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a wrong number of tasks if ranks joined twice or are missing.

    Lightning logs each rank that joins, with the total.
    """
    members = scanned.of("member")
    if not members or scanned.of("all-registered"):
        return list(candidates)
    total = max(int(match.groups["total"]) for match in members)
    seen = Counter(int(match.groups["rank"]) for match in members)
    twice = sorted(rank for rank, times in seen.items() if times > 1)
    lines = [match.line for match in members]
    if twice and len(seen) < total and not any(each.tier >= Tier.EXCEPTION for each in candidates):
        what = f"ranks {listed(twice)} of {total} came {max(seen.values())} times, "
        what += f"ranks {listed(_absent(seen, total))} never"
        tier = Tier.COARSE
    elif len(seen) < total and not any(each.tier >= Tier.HINTED for each in candidates):
        what = f"only {len(seen)} of {total} ranks came: {listed(sorted(seen))}"
        tier = Tier.WAIT_EXPLAINED
    else:
        return list(candidates)
    return [
        *candidates,
        Candidate(
            "slurm-ntasks-mismatch",
            tier,
            lines[0].number,
            what,
            evidence=quoted(lines, 4),
            why=(
                "the number of tasks that the scheduler starts does not fit the nodes and devices"
                " that the program counts"
            ),
            fix="#SBATCH --nodes=N --ntasks-per-node=GPUS_PER_NODE, and srun python script.py",
        ),
    ]


def _absent(seen: Counter[int], total: int) -> list[int]:
    return [rank for rank in range(total) if rank not in seen]


def listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:6]))
    return f"{shown} and {len(ranks) - 6} more" if len(ranks) > 6 else shown


def devices(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add the fault of a local rank that exceeds the number of its visible devices."""
    for match in scanned.of("local-rank-devices"):
        devices = [each for each in match.groups.get("devices", "").split(",") if each.strip()]
        local = int(match.groups["local"])
        if (
            devices
            and local >= len(devices)
            and any(each.name == "invalid-device-ordinal" for each in candidates)
        ):
            found = Candidate(
                "gpus-per-task-with-local-rank",
                Tier.ORIGIN,
                match.line.number,
                f"local rank {local} sees {len(devices)} GPU{'s' if len(devices) > 1 else ''} only"
                f" and picks number {local}",
                evidence=quoted([match.line]),
                fix=(
                    "--gres=gpu:N or --gpu-bind=none instead of --gpus-per-task=1, so that each"
                    " task sees all GPUs of its node"
                ),
            )
            return [*candidates, found]
    return list(candidates)


def double_launch(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a double launch.

    Its signs are more workers than the world size, or a program that spawns ranks in several Slurm
    tasks.
    """
    surplus = [
        match
        for match in scanned.of("store-barrier")
        if int(match.groups["joined"]) > int(match.groups["total"])
    ]
    srun = [match for match in scanned.of("srun-command") if _tasks(match.groups["options"]) > 1]
    spawned_by_tasks = bool(srun) and _spawned(scanned)
    files = scanned.of("init-file")
    if surplus and files and not spawned_by_tasks:
        return [*candidates, _left_over_file(files[0], surplus[0])]
    several_in_slurm = bool(surplus) and bool(srun or scanned.counts["slurm"])
    if not spawned_by_tasks and not several_in_slurm:
        return list(candidates)
    return [*candidates, _double_launch(srun, surplus)]


def _spawned(scanned: Scanned) -> bool:
    """Return whether the program started its ranks with torch.multiprocessing.spawn."""
    if any(
        "spawn" in frame.file
        for raised in scanned.tracebacks.raised
        for frame in raised.frames[-8:]
    ):
        return True
    return any("spawn.py" in line.text for tail in scanned.tails.values() for line in tail)


def _left_over_file(file: Match, surplus: Match) -> Candidate:
    groups = surplus.groups
    return Candidate(
        "stale-init-file",
        Tier.HINTED,
        surplus.line.number,
        f"{groups['joined']} workers joined a world of {groups['total']}: the file that they meet"
        " in is left over (likely)",
        evidence=quoted([file.line, surplus.line]),
        why="ranks count themselves in that file, also those of an earlier run",
        fix="delete the file before each start, or use init_method='env://' with a launcher",
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
        fix=(
            "srun --ntasks-per-node=1 before a launcher or mp.spawn; or srun with a task per GPU"
            " and no launcher"
        ),
    )


def _tasks(options: str) -> int:
    found = re.search(r"(?:-n *|--ntasks(?:-per-node)?[= ])(\d+)", options)
    return int(found[1]) if found else 1


def endpoint(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop torchrun's warning about an ignored master address if an endpoint was set.

    Some versions of torchrun print the warning in that case too.
    """
    given = any(
        not match.groups["endpoint"].lower().startswith("none")
        for match in scanned.of("rdzv-endpoint")
    )
    bare = [match for match in scanned.of("torchrun-command") if "endpoint" not in match.line.text]
    moved = []
    for each in candidates:
        if each.name != "c10d-without-rdzv-endpoint":
            moved.append(each)
        elif bare and not given:
            moved.append(
                replace(
                    each, tier=Tier.WAIT_EXPLAINED, evidence=quoted([bare[0].line]) + each.evidence
                )
            )
        elif not given:
            moved.append(each)
    return moved


def surplus(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Replace the fix of a rendezvous timeout if more workers joined than there are ranks.

    Then no rank is missing.
    """
    return [
        (
            replace(
                each,
                fix=(
                    "start each rank once: one launcher a node, a store (port, file) of its own for"
                    " each run"
                ),
            )
            if each.name == "rendezvous-timeout"
            and any(
                int(match.groups["joined"]) > int(match.groups["total"])
                for match in scanned.of("store-barrier")
            )
            else each
        )
        for each in candidates
    ]


def interrupted(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a rendezvous timeout if Ctrl-C interrupted the wait for other ranks."""
    for raised in scanned.tracebacks.raised:
        if raised.type == "KeyboardInterrupt" and any(
            frame.function in _JOINING for frame in raised.frames
        ):
            found = Candidate(
                "rendezvous-timeout",
                Tier.INTERRUPTED,
                raised.line.number,
                "the run was interrupted while it waited for other ranks to join (likely they never"
                " started)",
                where=raised.user_frame.place if raised.user_frame else "",
                evidence=quoted([raised.line]),
                fix=(
                    "start the same command on every node; the number of processes must equal the"
                    " world size"
                ),
            )
            return [*candidates, found]
    return list(candidates)
