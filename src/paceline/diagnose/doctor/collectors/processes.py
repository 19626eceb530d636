"""Collect processes: holders of GPUs, leftovers of earlier runs, and running loader workers."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import env
from paceline.diagnose.doctor.facts import Leftover, LoaderGroup
from paceline.machine.processes import command_line

# Any of these variables, in addition to a rank, marks a process of a run.
_MARKS = (env.RUN_TOKEN, env.RUN_DIR, env.RUN_ID, env.WORLD_SIZE)
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_LAUNCHERS = (
    "torchrun",
    "torch.distributed",
    "paceline",
    "accelerate",
    "deepspeed",
    "mpirun",
    "slurmstepd",
    "python",
)
_PATIENCE_S = 3.0


@dataclass(frozen=True)
class Process:
    """The visible properties of a process."""

    alive: bool = False  # whether this process can see it at all
    command: str = ""  # the command line, shortened
    user: str = ""  # the user name of the owner


def describe(pid: int) -> Process:
    """Return the visible properties of a process."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return Process(True, _command(process), _quietly(process.username, ""))
    except psutil.Error:
        return Process()


def gather_processes() -> tuple[tuple[Leftover, ...], tuple[LoaderGroup, ...]]:
    """Return this user's processes left over from earlier runs, and the running loader workers."""
    import psutil

    orphans, workers = [], defaultdict(list)
    deadline = time.monotonic() + _PATIENCE_S
    for process in psutil.process_iter(["pid", "ppid", "name", "uids"]):
        if process.info["uids"] is None or process.info["uids"].real != os.getuid():
            continue
        if process.info["name"] == "pt_data_worker":
            workers[process.info["ppid"]].append(process.info["pid"])
        if _has_lost_its_parent(process):
            orphans.append(process)
        if time.monotonic() > deadline:
            break
    leftovers = filter(None, map(_leftover, orphans))
    return tuple(leftovers), tuple(_groups(workers))


def _has_lost_its_parent(process: Any) -> bool:
    """Return whether a process was adopted by init or by the user's session.

    Neither of them starts ranks.
    """
    import psutil

    parent = process.info["ppid"]
    if parent == 0 or process.info["pid"] == os.getpid():
        return False
    try:
        above = psutil.Process(parent)
        words = above.cmdline()
        # In a container, pid 1 may be the launcher itself, or a rank.
        if parent == 1:
            return not starts_ranks(words) and not _quietly(above.environ, {}).get(env.RANK)
        return above.name() == "systemd" and "--user" in words
    except psutil.Error:
        return False


def starts_ranks(words: Sequence[str]) -> bool:
    """Return whether the command of a container's first process starts ranks directly. Pure."""
    script = any(not word.startswith("-") for word in words[1:])
    shell = bool(words) and os.path.basename(words[0]) in _SHELLS
    return (shell and script) or any(word in " ".join(words[:3]) for word in _LAUNCHERS)


def _leftover(process: Any) -> Leftover | None:
    import psutil

    try:
        with process.oneshot():
            environ = process.environ()
            warm = process.name() == "paceline-warm"
            if not warm and not (
                environ.get(env.RANK) and any(environ.get(mark) for mark in _MARKS)
            ):
                return None
            return Leftover(
                pid=process.pid,
                command=_command(process),
                rank=environ.get(env.RANK, ""),
                run=environ.get(env.RUN_DIR) or environ.get(env.RUN_ID) or "",
                age_s=max(0, int(time.time() - process.create_time())),
                memory_bytes=process.memory_info().rss,
                ports=_quietly(lambda: _ports(process), ()),
            )
    except psutil.Error:
        return None


def _ports(process: Any) -> tuple[int, ...]:
    import psutil

    connections = (
        process.net_connections("tcp")
        if hasattr(process, "net_connections")
        else process.connections("tcp")
    )
    return tuple(
        sorted({entry.laddr.port for entry in connections if entry.status == psutil.CONN_LISTEN})
    )


def _groups(workers: dict[int, list[int]]) -> Iterable[LoaderGroup]:
    import psutil

    for parent, pids in workers.items():
        try:
            yield LoaderGroup(
                parent,
                _command(psutil.Process(parent)),
                len(pids),
                len(os.sched_getaffinity(pids[0])),
            )
        except (psutil.Error, OSError, AttributeError):
            continue


def _command(process: Any) -> str:
    return command_line(_quietly(process.cmdline, [])) or str(_quietly(process.name, ""))


def _quietly(ask: Any, otherwise: Any) -> Any:
    import psutil

    try:
        return ask()
    except (psutil.Error, OSError, KeyError):
        return otherwise
