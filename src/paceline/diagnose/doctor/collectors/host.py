"""Collect the kind of machine, the limits of this process, and the settings of libraries."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from pathlib import Path

from paceline import env
from paceline.diagnose.doctor.facts import Disk, Host, ProcessLimits
from paceline.errors import UsageError
from paceline.machine import files, ulimits
from paceline.machine.cpus import usable_cpus
from paceline.machine.processes import parse_status
from paceline.rundir.files import run_folders
from paceline.text.wording import fold
from paceline.world import read_mpi_task

_NODES = Path("/sys/devices/system/node")
_CGROUP = Path("/sys/fs/cgroup")
_CAP_IPC_LOCK = 14
_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as such a number


def gather_limits() -> ProcessLimits:
    """Return the limits of this process."""
    cpus, reason = usable_cpus()
    shm = _space("/dev/shm")
    return ProcessLimits(
        cpus=cpus,
        cpus_reason=reason,
        affinity=_affinity(),
        total_cpus=os.cpu_count() or 0,
        numa_cpus=_numa(),
        memory_bytes=_memory(),
        memory_limit_bytes=memory_limit(),
        shm_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        memlock_bytes=ulimits.soft("memlock"),
        lock_any=may_lock_any(
            files.text(Path("/proc/self/status")), files.text(Path("/proc/self/uid_map"))
        ),
        open_files=ulimits.soft("nofile"),
        open_files_hard=ulimits.hard("nofile"),
        stack_bytes=ulimits.soft("stack"),
    )


def _affinity() -> str:
    """Return the CPUs that this process may use in the kernel's notation: ``0-15,32-47``."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    return fold(os.sched_getaffinity(0)).replace(" ", "")


def may_lock_any(status: str, uid_map: str) -> bool:
    """Return whether the kernel lets this process lock memory beyond its limit. Pure.

    This needs the capability CAP_IPC_LOCK in the initial user namespace. Root in a rootless
    container has the capability, but without effect. Takes the texts of ``/proc/self``.
    """
    held = parse_status(status).get("CapEff", "0")
    return bool(int(held, 16) >> _CAP_IPC_LOCK & 1) and uid_map.split() == ["0", "0", "4294967295"]


def _numa() -> dict[str, str]:
    nodes = [name for name in files.names(_NODES) if name.startswith("node") and name[4:].isdigit()]
    return {name[4:]: cpus for name in nodes if (cpus := files.text(_NODES / name / "cpulist"))}


def _memory() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def memory_limit(root: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the lowest memory limit of this process's cgroup and its parents; None without one."""
    places = [root, root / "memory"]
    for line in files.text(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "memory"):
            place = root / "memory" if controllers else root
            for part in Path(path).parts[1:]:
                place = place / part
                places.append(place)
    limits = [
        files.number(place / name)
        for place in places
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    set_limits = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
    return min(set_limits, default=None)


def gather_disks() -> tuple[Disk, ...]:
    """Return the file systems of the run folders and of temporary files."""
    folders = [*map(str, run_folders()[:1] or [Path()]), tempfile.gettempdir()]
    disks: dict[int, Disk | None] = {}  # by device
    for folder in folders:
        with contextlib.suppress(OSError):
            disks.setdefault(os.stat(folder).st_dev, _space(os.path.abspath(folder)))
    return tuple(disk for disk in disks.values() if disk is not None)


def _space(path: str) -> Disk | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    if not status.f_blocks or status.f_flag & os.ST_RDONLY:
        return None  # the size is not available, or the file system is read-only
    return Disk(
        path,
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        free_files=status.f_favail if status.f_files else None,
    )


def gather_settings() -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of NCCL, torch, gloo and libfabric by name, and their source files."""
    from paceline.diagnose import variables

    return variables.gather_settings()


_ROOT = Path("/")


def gather_host(root: Path = _ROOT) -> Host:
    """Return the facts about the host."""
    cpuinfo = files.text(root / "proc/cpuinfo")[:20_000]
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo, re.M)
    machine = os.uname().machine if hasattr(os, "uname") else ""
    step = env.read(env.STEP_ID) is not None
    return Host(
        name=socket.gethostname(),
        cpu_vendor=vendor[1] if vendor else machine,
        virtual=bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M)) if cpuinfo else None,
        container=_container(root),
        wsl="microsoft" in files.text(root / "proc/version").lower(),
        slurm_job=step or env.read(env.JOB_ID) is not None,
        slurm_step=step,
        slurm_tasks=_tasks() if step else None,
        mpi_tasks=_mpi_tasks(),
    )


def _container(root: Path) -> str:
    if (root / ".singularity.d").is_dir():
        return "apptainer"
    if (root / "run/secrets/kubernetes.io").is_dir() or env.snapshot().get(
        "KUBERNETES_SERVICE_HOST"
    ):
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    members = files.text(root / "proc/1/cgroup")
    words = {
        "kubepods": "kubernetes",
        "docker": "docker",
        "libpod": "podman",
        "containerd": "container",
    }
    return next((kind for word, kind in words.items() if word in members), "")


def _mpi_tasks() -> int:
    """Return the number of tasks of mpirun on this node; 0 outside one, or if it is not usable."""
    try:
        task = read_mpi_task(env.snapshot())
    except UsageError:
        return 0
    return task.local_size if task else 0


def _tasks() -> int | None:
    """Return the number of tasks on this node.

    ``SLURM_STEP_TASKS_PER_NODE`` is ``4(x2)`` or ``4,2``, for the nodes in order.
    """
    text = env.read(env.STEP_TASKS_PER_NODE) or ""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return None
        counts += [int(match[1])] * min(int(match[2] or 1), 100_000)
    node = env.read(env.NODEID) or "0"
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None
