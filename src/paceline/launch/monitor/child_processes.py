"""Collect the child processes of a rank, such as DataLoader workers, and describe them.

``collect(pid)`` returns one ``ChildProcess`` for each child of a rank, also for one that has ended
and that the rank has not waited for (state Z, with the signal that killed it). ``look(pid)``
returns one process. ``ChildProcess`` and ``describe_all`` describe them, for reports of hangs and
of workers that died. No process gets a signal, and none is traced.

All of it comes from ``/proc/PID``: ``stat``, ``comm``, ``wchan``, ``syscall``. Where a file cannot
be read (another user's process, a container without the right to trace), that fact is missing and
nothing else is. Outside of Linux there is nothing to see.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.machine import processes

# The name that torch.utils.data._utils.worker gives a worker at the start of its loop.
WORKER_NAME = "pt_data_worker"
_FUTEX_CALLS = {"x86_64": "202", "aarch64": "98", "ppc64le": "221", "s390x": "238"}
_MOST_LINES = 4
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Function in which the kernel waits, and words for it; the first match decides.
_WAITS = (
    ("futex", "waits for a lock"),
    ("pipe", "waits for a pipe"),
    ("poll", "waits for a pipe or socket"),
    ("select", "waits for a pipe or socket"),
    ("epoll", "waits for a pipe or socket"),
    ("sk_wait", "waits for a socket"),
    ("inet_csk", "waits for a socket"),
    ("unix_stream", "waits for a socket"),
    ("nanosleep", "sleeps"),
    ("do_wait", "waits for a child process"),
    ("flock", "waits for a file lock"),
    ("fcntl", "waits for a file lock"),
    ("nfs", "waits for NFS"),
    ("rpc_", "waits for NFS"),
    ("io_schedule", "waits for a disk"),
    ("folio", "waits for a disk"),
    ("freeze", "waits for a file system that is frozen"),
)
_STATES = {
    "R": "computes",
    "D": "waits for a disk or a file system, and cannot be killed meanwhile (state D)",
    "T": "is stopped (state T)",
    "t": "is stopped by a debugger (state t)",
    "S": "sleeps",
    "I": "sleeps",
}


@dataclass(frozen=True)
class ChildProcess:
    """One process as ``/proc`` shows it at one moment."""

    pid: int  # its process id
    parent: int = 0  # process id of its parent
    name: str = ""  # its name, as ``ps -o comm`` shows it
    state: str = ""  # its state in the kernel: R, S, D, T, t, Z or I
    threads: int = 1  # number of its threads
    # its command line, words separated by blanks; a fork has its parent's until it executes a
    # program
    command: str = ""
    # the kernel function in which it waits, empty if it does not wait or the function cannot be
    # read
    wait: str = ""
    syscall: str = ""  # number of its current system call, as text; empty if it cannot be read
    cpu_s: float = 0.0  # CPU seconds of the process, without its children
    age_s: float = 0.0  # seconds since it was started
    # context switches of its main thread: the same number in two looks proves that it has not run
    # in between, not even for a microsecond. -1 if it is not known.
    switches: int = -1
    ended_by: int = 0  # number of the signal that ended it, 0 if none did or it lives
    exit_code: int = 0  # its exit status if it has ended

    @property
    def is_named_worker(self) -> bool:
        """Whether it is a DataLoader worker that has reached torch's worker loop.

        The loop names the process first.
        """
        return self.name == WORKER_NAME

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie: it has ended, and its parent has not waited for it."""
        return self.state in ("Z", "X")

    @property
    def in_futex(self) -> bool:
        """Whether it waits in a futex, as locks do."""
        if self.state != "S":
            return False
        return "futex" in self.wait or self.syscall == _FUTEX_CALLS.get(platform.machine(), "-")

    def describe(self, before: ChildProcess | None = None) -> str:
        """Return one line with what the process is and does, without a full stop."""
        return f"{self.title} {self.doing(before)}"

    @property
    def title(self) -> str:
        """The process in words: ``DataLoader worker 4242``, ``child process 4242 (python)``."""
        if self.is_named_worker:
            return f"DataLoader worker {self.pid}"
        return (
            f"child process {self.pid} ({self.name})" if self.name else f"child process {self.pid}"
        )

    def doing(self, before: ChildProcess | None = None) -> str:
        """Return its activity: ``waits for a lock (futex_do_wait), 33 s old, 0.0 s of CPU``."""
        if self.has_ended:
            return self._end()
        if before is None:
            used = f"{self.cpu_s:.1f} s of CPU"
        else:
            used = (
                f"{max(0.0, self.cpu_s - before.cpu_s):.1f} s of CPU in"
                f" {self.age_s - before.age_s:.0f} s"
            )
            wakes = self.switches - before.switches
            if wakes > 1 + self.age_s - before.age_s:  # where it waits now says nothing then
                return f"has run {wakes} times, {self.age_s:.0f} s old, {used}"
        return f"{self._activity()}, {self.age_s:.0f} s old, {used}"

    def _end(self) -> str:
        if not self.ended_by:
            return f"has ended with exit code {self.exit_code}"
        return f"was killed by {signal_name(self.ended_by)}"

    def _activity(self) -> str:
        if self.state == "S" or (self.state == "D" and self.wait):
            words = next((words for part, words in _WAITS if part in self.wait), "")
            place = f" ({self.wait})" if self.wait else ""
            if words:
                unkillable = ", and cannot be killed meanwhile" if self.state == "D" else ""
                return f"{words}{place}{unkillable}"
            if self.in_futex:
                return "waits for a lock (futex)"
        return _STATES.get(self.state, f"is in state {self.state}")


def describe_all(children: Sequence[ChildProcess]) -> tuple[str, ...]:
    """Return one line for each group of children of one kind that do the same, at most four."""
    groups: dict[tuple[bool, str, str], list[ChildProcess]] = {}
    for child in children:
        activity = child.doing() if child.has_ended else child._activity()
        groups.setdefault((child.is_named_worker, child.name, activity), []).append(child)
    lines = [_describe_group(group) for group in groups.values()]
    more = len(lines) - _MOST_LINES
    return (
        (*lines[:_MOST_LINES], f"and {more} other kinds of child processes")
        if more > 0
        else tuple(lines)
    )


def _describe_group(group: Sequence[ChildProcess]) -> str:
    first = group[0]
    if len(group) == 1:
        return first.describe()
    kind = "DataLoader workers" if first.is_named_worker else f"child processes ({first.name})"
    pids = ", ".join(str(child.pid) for child in group[:4]) + (", ..." if len(group) > 4 else "")
    activity = first.doing() if first.has_ended else first._activity()
    return f"{len(group)} {kind} (pids {pids}), of which each {activity}"


def signal_name(number: int) -> str:
    """Return the name of a signal; its number in words for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def collect(pid: int) -> tuple[ChildProcess, ...]:
    """Return the visible children of a process, in the order of their process ids."""
    looks = (look(child) for child in children_of(pid))
    return tuple(child for child in looks if child is not None)


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of a process, zombies included."""
    threads = _entries(Path(f"/proc/{pid}/task"))
    listed = [_text(Path(f"/proc/{pid}/task/{thread}/children")) for thread in threads]
    if any(text is not None for text in listed):
        return sorted({int(word) for text in listed for word in (text or "").split()})
    return _children_by_parent(pid)


def _children_by_parent(pid: int) -> list[int]:
    """Return the process ids of the children on a kernel without ``children`` files.

    It looks at all processes.
    """
    numbers = (int(entry) for entry in _entries(Path("/proc")) if entry.isdigit())
    fields = ((number, _stat(number)) for number in numbers)
    return sorted(number for number, stat in fields if stat and int(stat[1]) == pid)


def look(pid: int) -> ChildProcess | None:
    """Return a process as it is now; None if it does not exist or is not visible."""
    stat = _stat(pid)
    if stat is None:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    has_status = len(stat) > 49 and stat[0] in "ZX"
    status = int(stat[49]) if has_status else 0  # hidden (0) from other users
    return ChildProcess(
        pid=pid,
        parent=int(stat[1]),
        name=(_text(Path(f"/proc/{pid}/comm")) or "").strip(),
        state=stat[0],
        threads=int(stat[17]),
        command=(_text(Path(f"/proc/{pid}/cmdline")) or "").replace("\0", " ").strip(),
        wait=_wait(pid),
        syscall=((_text(Path(f"/proc/{pid}/syscall")) or "").split() or [""])[0],
        cpu_s=(int(stat[11]) + int(stat[12])) / tick,
        age_s=max(0.0, time.clock_gettime(_SINCE_BOOT) - int(stat[19]) / tick),
        switches=processes.switches(processes.status(pid)),
        ended_by=status & 0x7F,
        exit_code=status >> 8,
    )


def _wait(pid: int) -> str:
    text = (_text(Path(f"/proc/{pid}/wchan")) or "").strip()
    return "" if text == "0" else text


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` after the name.

    The name may contain blanks and brackets.
    """
    text = _text(Path(f"/proc/{pid}/stat"))
    fields = text.rpartition(")")[2].split() if text else []
    return fields if len(fields) > 19 else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _entries(folder: Path) -> Iterable[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
