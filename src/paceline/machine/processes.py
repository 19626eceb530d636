"""Read the processes of this machine from the kernel: commands, and ``/proc/PID/status``."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.text.secret_texts import hidden

_LONGEST = 80


def is_alive(host: str, pid: int, before_s: float) -> bool | None:
    """Return whether a process is alive; None if its host is another one.

    ``before_s`` is when it was alive, in seconds since the epoch. A process that was created later
    has the same id by chance.
    """
    import psutil

    if host != socket.gethostname():
        return None
    try:
        return psutil.Process(pid).create_time() <= before_s + 1
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


def describe(pid: int) -> str:
    """Describe a process as ``pid 4242 (python old_train.py)``, as far as it is visible."""
    import psutil

    try:
        words = psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return f"pid {pid}"
    return f"pid {pid} ({command_line(words)})" if words else f"pid {pid}"  # it has ended


def command_line(words: Sequence[str]) -> str:
    """Shorten a command to one line without folders and secrets."""
    names = [os.path.basename(word) if place < 2 else word for place, word in enumerate(words)]
    line = " ".join(" ".join(hidden(names)).split())  # daemons that rename themselves leave blanks
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def status(pid: int) -> dict[str, str]:
    """Return the fields of the main thread's ``/proc/PID/status``; empty without such a process."""
    try:
        return parse_status(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except OSError:
        return {}


def open_files(pid: int) -> dict[str, str]:
    """Return what a process has open, such as ``socket:[12]``, by descriptor; empty if hidden."""
    targets = {}
    with contextlib.suppress(OSError):
        for handle in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                targets[handle] = os.readlink(f"/proc/{pid}/fd/{handle}")
    return targets


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process; False if the system does not show it."""
    return status(pid).get("State", "")[:1] == "T"


def own_bytes(pid: int) -> int:
    """Return the memory that a process has allocated, without files that it maps; 0 if unknown."""
    words = status(pid).get("RssAnon", "").split()  # "1024 kB", on Linux
    return int(words[0]) << 10 if words else 0


def cpu_wait_s(pid: int) -> float:
    """Return how long a process's main thread was ready and got no CPU; 0 if that is unknown."""
    try:  # time on a CPU, time waiting for one, and how often: kernel, Documentation/scheduler
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def available_bytes() -> int:
    """Return the memory that processes of this machine can still get."""
    import psutil

    return int(psutil.virtual_memory().available)


def parse_status(text: str) -> dict[str, str]:
    """Parse the fields of a ``/proc/PID/status``."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def switches(fields: Mapping[str, str]) -> int:
    """Return the number of context switches of a main thread; -1 if unknown."""
    counts = [fields.get(f"{kind}_ctxt_switches", "") for kind in ("voluntary", "nonvoluntary")]
    return sum(map(int, counts)) if all(counts) else -1
