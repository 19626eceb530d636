"""Find what a child process of a rank, such as a DataLoader worker, is doing, without a signal.

A stack signal killed a worker that was deadlocked in its fork, so a process gets none unless it has
proven that it can handle one. py-spy reads the memory of a process without stopping it, if it is
installed and has the rights. Otherwise the kernel's files in ``/proc`` show the system call and
the file. This module collects and decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.launch.monitor.position import Frame

# System call numbers of x86-64. On other machines no system call is shown.
_CALLS = {
    0: "read",
    17: "pread",
    45: "recvfrom",
    257: "openat",
    73: "flock",
    72: "fcntl",
    74: "fsync",
    61: "wait4",
}
_ON_FILES = ("read", "pread", "flock", "fcntl", "fsync", "recvfrom")
_PY_SPY_S = 3.0
MISSING = "py-spy is not installed"


def stack(
    pid: int, read_frame: Callable[[str, int, str], Frame], *, limit_s: float = _PY_SPY_S
) -> tuple[Frame, ...]:
    """Return the main thread's stack, outermost first; empty without py-spy or its rights."""
    dumped, _ = threads(pid, limit_s=limit_s)
    return tuple(read_frame(*frame) for frame in main_thread(pid, dumped))


def threads(
    pid: int,
    *,
    limit_s: float = _PY_SPY_S,  # how long py-spy may take, in seconds
) -> tuple[list[dict[str, Any]], str]:
    """Return a process's Python threads as py-spy prints them, and the reason if there are none."""
    program = find_py_spy()
    if not program:
        return [], MISSING
    if limit_s <= 0:
        return [], "no time was left to run py-spy"
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else [], _first_line(done.stderr)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [], f"py-spy: {error}"


def _first_line(err: str) -> str:
    return next((f"py-spy: {line.strip()}" for line in err.splitlines() if line.strip()), "")


def main_thread(
    pid: int,  # the process; the main thread has the same number in the kernel
    dumped: Sequence[dict[str, Any]],  # the threads that ``threads`` returned
) -> list[tuple[str, int, str]]:
    """Return ``(file, line, function)`` of the main thread's frames, outermost first."""
    main = [thread for thread in dumped if thread.get("os_thread_id") == pid]
    named = [thread for thread in dumped if thread.get("thread_name") == "MainThread"]
    thread: dict[str, Any] = next(iter([*main, *named, *dumped]), {"frames": []})
    return frames_of(thread)


def frames_of(thread: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return ``(file, line, function)`` of a thread's frames, outermost first.

    From Python 3.11 on, py-spy prints qualified names (``Samples.__getitem__``). Only the part
    after the last dot is used.
    """
    return [
        (frame["filename"], int(frame["line"] or 0), frame["name"].rpartition(".")[2])
        for frame in reversed(thread["frames"])
    ]


def find_py_spy() -> str:
    """Return the path of py-spy, beside this Python or in ``PATH``; empty if not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def in_kernel(pid: int) -> str:
    """Return the system call that a process waits in, ``read of /data/x.bin``; empty if unknown."""
    if os.uname().machine != "x86_64":
        return ""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return ""
    call = _CALLS.get(int(words[0])) if words and words[0].isdigit() else None
    if call is None:
        return ""
    target = ""
    if call in _ON_FILES:
        with contextlib.suppress(OSError, IndexError, ValueError):
            target = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")
    return f"{call} of {target}" if target.startswith("/") else call


def describe(pids: Sequence[int]) -> str:
    """Return the system call of the first process that is not idle; empty if none is visible."""
    for pid in pids:
        call = in_kernel(pid)
        if call:
            return f"worker {pid} in {call}"
    return ""
