"""Asks the ranks of this node where they stand: Python stacks by a signal, collectives from their witness.

A hand: about a tenth of a second for all ranks of a node, whatever they are doing.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.launcher import guards, position, witness
from paceline.launcher.position import Frame
from paceline.launcher.worker import is_users

# How long a rank has to answer. The stack takes a few milliseconds; the witness may have to wait for the lock.
_ANSWER_S = 0.5
# A dump is whole when it has not grown for so long.
_QUIET_S = 0.02
# Of a rank that waits for its loader, so many workers are looked at.
_WORKERS = 4
_WORKERS_S = 1.0  # for those of all ranks together


@dataclass(frozen=True)
class Look:
    """What one rank has answered.

    Attributes:
        frames: Its main thread's stack, outermost first, from the script on; empty if it is not visible.
        recorded: What its witness said, empty if it did not.
        worker: Place of the user's code in a DataLoader worker, as text; empty if there is none to see.
        guard: The ``if`` around its place that chooses ranks; empty if there is none.
        cpu_s: CPU time that it and its children have used so far.
        io_bytes: Bytes that they have read and written so far.
    """

    frames: tuple[Frame, ...] = ()
    recorded: dict[str, Any] = field(default_factory=dict)
    worker: str = ""
    guard: str = ""
    cpu_s: float = 0.0
    io_bytes: int = 0


def look(pids: Mapping[int, int], files: Mapping[int, Path]) -> dict[int, Look]:
    """Return where ranks stand.

    Args:
        pids: Process of each rank, by local rank; all of them living.
        files: Where faulthandler writes in each rank.
    """
    deadline = time.monotonic() + _ANSWER_S  # for all together
    starts = {local: _size(files[local]) for local in pids}
    asked = {local for local, pid in pids.items() if _ask(pid)}
    recorded = _ask_witnesses(pids)
    found = {}
    for local, pid in pids.items():
        frames = _frames(_dump(files[local], starts[local], deadline)) if local in asked else ()
        worker = (
            _worker_place(pid, files[local], deadline + _WORKERS_S)
            if position.classify(frames)[0] == position.DATA
            else ""
        )
        cpu_s, io_bytes = _work(pid)
        found[local] = Look(frames, recorded.get(local, {}), worker, _guard(frames), cpu_s, io_bytes)
    return found


def at(frames: tuple[Frame, ...]) -> Look:
    """Return what is known of a rank of which only a stack is left: of its exception, or its crash."""
    return Look(frames, guard=_guard(frames))


def read_crash(file: Path) -> tuple[Frame, ...]:
    """Return where a rank was when it crashed in native code, from what faulthandler has left."""
    return _frames(_text(file, 0))


def _ask(pid: int) -> bool:
    """Send the signal, unless the process would die of it: not every program runs in our entry."""
    if not witness.SIGNAL or not _catches(pid, witness.SIGNAL):
        return False
    with contextlib.suppress(OSError):
        os.kill(pid, witness.SIGNAL)
        return True
    return False


def _catches(pid: int, signum: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def _dump(file: Path, start: int, deadline: float) -> str:
    """Return what a rank has written since, once it has stopped to write."""
    size, since = _size(file), time.monotonic()
    while time.monotonic() < deadline and (size == start or time.monotonic() - since < _QUIET_S):
        time.sleep(0.005)
        now = _size(file)
        if now != size:
            size, since = now, time.monotonic()
    return _text(file, start)


def _text(file: Path, start: int) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _frames(dump: str) -> tuple[Frame, ...]:
    """Return the frames of the script: what is above it is the launcher that the rank was forked from."""
    frames = [
        Frame(file, line, function, code=linecache.getline(file, line).strip(), user=is_users(file))
        for file, line, function in position.parse(dump)
    ]
    first = next((place for place, frame in enumerate(frames) if frame.user), 0)
    return tuple(frames[first:])


def _guard(frames: tuple[Frame, ...]) -> str:
    """Return the innermost guard around any of the user's frames."""
    for frame in reversed(frames):
        if frame.user:
            found = guards.guard_of("".join(linecache.getlines(frame.file)), frame.line)
            if found is not None:
                line, text = found
                return f"{text} ({position.shown_path(frame.file)}:{line})"
    return ""


def _worker_place(pid: int, file: Path, deadline: float) -> str:
    """Return where the first worker stands that is in the user's code: ``data.py:40``."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children()[:_WORKERS]:
            start = _size(file)  # workers are forked, and share the rank's file
            if _ask(child.pid):
                stack = _frames(_dump(file, start, deadline))
                # a forked worker's stack begins with that of the rank that forked it
                inside = [n for n, frame in enumerate(stack) if frame.function == "_worker_loop"]
                place = position.Position(rank=0, frames=stack[inside[-1] :] if inside else ()).place
                if place:
                    return place
    return ""


def _work(pid: int) -> tuple[float, int]:
    """Return the CPU seconds and the bytes of a process and those below it."""
    import psutil

    cpu_s, io_bytes = 0.0, 0
    with contextlib.suppress(psutil.Error):
        for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            cpu_s += sum(each.cpu_times()[:4])  # its own, and those of its children that have ended
            if hasattr(each, "io_counters"):
                counts = each.io_counters()
                io_bytes += getattr(counts, "read_chars", 0) + getattr(counts, "write_chars", 0)
    return cpu_s, io_bytes


def _ask_witnesses(pids: Mapping[int, int]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as asker:
        asker.settimeout(0.05)
        names: dict[str, int] = {}
        for local, pid in pids.items():
            with contextlib.suppress(OSError):
                if not names:
                    asker.bind("")  # the kernel chooses an abstract name to answer to
                asker.sendto(b"where", witness.address(pid))
                names[witness.address(pid)] = local
        deadline = time.monotonic() + _ANSWER_S
        while len(found) < len(names) and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError, ValueError):
                answer, sender = asker.recvfrom(1 << 16)
                found[names[sender if isinstance(sender, str) else sender.decode()]] = json.loads(answer)
    return found
