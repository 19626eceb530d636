"""Collect the kind of machine: host name, virtual machine or container, and Slurm's step."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from paceline import env
from paceline.diagnose.doctor.facts import Host
from paceline.errors import UsageError
from paceline.machine import files
from paceline.world import read_mpi_task

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
