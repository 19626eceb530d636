"""Evidence about how ranks ended: their files, the kernel's counts of kills, ``/dev/shm``.

A hand: it reads and returns plain values. What is not there (no ``/proc``, no cgroup) reads as nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

from paceline.launcher.outcome import Failure, Frame

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def read_failure(path: Path) -> Failure | None:
    """Return the exception that a rank's worker entry recorded, None if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    ours = content.get("paceline")
    if ours is None:
        return _from_torch(content)
    return Failure(
        type=ours["type"],
        message=ours["message"],
        time_ns=ours["time_ns"],
        traceback=ours["traceback"],
        frames=tuple(Frame(**frame) for frame in ours["frames"]),
    )


def _from_torch(content: dict[str, object]) -> Failure | None:
    """Read what torch's ``@record`` writes, for ranks that run without our entry."""
    message = content.get("message")
    if not isinstance(message, dict):
        return None
    kind, _, text = str(message.get("message", "")).partition(": ")
    extra = message.get("extraInfo", {})
    seconds = int(extra.get("timestamp", 0))
    return Failure(type=kind, message=text, time_ns=seconds * 10**9, traceback=str(extra.get("py_callstack", "")))


def read_tail(path: Path, *, lines: int = 12, limit_bytes: int = 8192) -> tuple[str, ...]:
    """Return the last lines of a log that say something; C++ stack frames do not."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ()
    said = (line.rstrip()[:300] for line in text.splitlines() if line.strip())
    return tuple(line for line in said if not line.startswith(("frame #", "<omitting python frames>")))[-lines:]


def read_stack(path: Path) -> tuple[str, ...]:
    """Return ``file:line in function`` of the thread that crashed, innermost first, from faulthandler's dump."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    current = re.split(r"\n\n", text[text.find("Current thread") :] if "Current thread" in text else "")[0]
    frames = re.findall(r'File "(.+?)", line (\d+) in (\S+)', current)
    # everything above our own entry is the launcher that the rank was forked from
    theirs = itertools.takewhile(lambda frame: not frame[0].startswith(_PACKAGE), frames)
    return tuple(f"{file}:{line} in {function}" for file, line, function in theirs)


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory: this cgroup's count, else the host's.

    Only the difference of two readings means something. The cgroup's count includes its processes that
    the host's own killer took.
    """
    count = _cgroup_oom_kills()
    return count if count is not None else _host_oom_kills() or 0


def _cgroup_oom_kills() -> int | None:
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        events = Path("/sys/fs/cgroup", line[3:].lstrip("/"), "memory.events").read_text()
    except (OSError, StopIteration):
        return None
    match = re.search(r"^oom_kill (\d+)", events, re.M)
    return int(match[1]) if match else None


def _host_oom_kills() -> int | None:
    try:
        match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return None
    return int(match[1]) if match else None


def shm_pressure(path: str = "/dev/shm", *, threshold: float = 0.9) -> str:
    """Return how full ``/dev/shm`` is, ``"98 % of 64 MB"``; empty if it is not near full or not there."""
    try:
        stats = os.statvfs(path)
    except OSError:
        return ""
    total = stats.f_blocks * stats.f_frsize
    used = 1 - stats.f_bavail / stats.f_blocks if stats.f_blocks else 0.0
    return f"{used:.0%} of {total / 2**20:.0f} MB" if used >= threshold else ""
