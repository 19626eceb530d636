"""Count the CPUs that this process may use: affinity and cgroup quota. Standard library only.

Nothing is bound to CPUs here: ``launch.in_rank.rank_entry`` does that on request
(``--numa-binding``).
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline import env
from paceline.world import World


def usable_cpus() -> tuple[int, str]:
    """Return the number of usable CPUs and the reason: the smaller of affinity and cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        count, reason = len(os.sched_getaffinity(0)), "CPU affinity"
    else:
        count, reason = os.cpu_count() or 1, "CPUs of the machine"
    quota = cgroup_cpus()
    if quota is not None and quota < count:
        return max(1, int(quota)), f"cgroup quota of {quota:g} CPUs"
    return count, reason


def of_ranks(world: World, *, granted: str) -> int:
    """Return the number of CPUs that the ranks of this node may use together.

    ``granted`` is Slurm's number of CPUs per task; empty if Slurm does not set it.
    """
    usable, _ = usable_cpus()
    if world.launcher == "mpi" and env.read(env.OMPI_BOUND) is not None:
        # each rank is bound to CPUs of its own, or with others to a package
        return min(os.cpu_count() or usable, usable * world.local_world_size)
    if world.launcher != "slurm" or not granted.isdigit():
        return usable
    # each rank is a task with its own CPUs
    return min(usable, int(granted)) * world.local_world_size


def cgroup_cpus(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Return the lowest CPU quota of this process's cgroup and its parents; None without one."""
    folders = [root, *_cgroup_folders(root, membership)]
    quotas = [
        quota for folder in folders for quota in (_quota_v2(folder), _quota_v1(folder)) if quota
    ]
    return min(quotas, default=None)


def _cgroup_folders(root: Path, membership: Path) -> list[Path]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = root / "cpu" if controllers else root
        # in a container the path is the host's, and this one is the container's
        folders.append(place)
        for part in Path(path).parts[1:]:
            place = place / part
            folders.append(place)
    return folders


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
