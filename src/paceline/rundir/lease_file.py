"""The file of a lease: the owner that it names, and how the file is read and changed.

Processes on several machines write it, perhaps on a network file system. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline import env
from paceline.deadlines import LEASE_LIVING, scaled
from paceline.rundir import owned
from paceline.rundir.files import RunDir, read_json

_SIZE = 1024  # constant, so that incrementing the counter needs no space on a full disk
_ENDED_STATES = "ZX"  # zombie, dead


@dataclass(frozen=True)
class Owner:
    """The run that a folder belongs to while it lives."""

    token: str  # random id of the run
    host: str = ""  # name of its machine, for messages
    # boot id of its machine and its process namespace, in which process ids are valid; empty if
    # unknown
    machine: str = ""
    pid: int = 0  # its process; 0 for a job that has reserved the folder for a later process
    # when that process started, in ticks since the boot, because process ids are used again
    started: int = 0
    job: str = ""  # its Slurm job; empty outside of Slurm
    element: str = ""  # its array element, for messages
    restarts: int = 0  # how often Slurm had queued the job again
    count: int = 0  # incremented by every heartbeat

    @property
    def words(self) -> str:
        """The owner in words, for messages."""
        element = f" ({self.element})" if self.element else ""
        job = f"job {self.job}{element}" if self.job else ""
        process = f"process {self.pid} on {self.host}" if self.pid else ""
        return ", ".join(filter(None, (job, process))) or "a run that cannot be read"


def this_process(token: str = "", *, element: str = "") -> Owner:
    """Return this process as the owner of a folder.

    The token is that of its run, a new one if empty; the array element is for messages.
    """
    return replace(
        this_job(element=element),
        token=token or secrets.token_hex(8),
        machine=_machine(),
        pid=os.getpid(),
        started=_start_of(os.getpid()) or 0,
    )


def this_job(*, element: str = "") -> Owner:
    """Return this Slurm job as the owner of a folder, before the process that uses it has
    started.
    """
    restarts = env.read(env.JOB_RESTARTS) or "0"
    return Owner(
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        job=env.slurm_job(),
        element=element,
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


def is_alive(owner: Owner) -> bool | None:
    """Return whether the owner's process exists; None if it is not visible from here."""
    if not owner.pid or not owner.machine or owner.machine != _machine():
        return None
    started = _start_of(owner.pid)
    return started is not None and started == owner.started


def read(folder: Path) -> Owner | None:
    """Return the owner of a folder, None if there is none; an owner without a token if the lease is
    not readable.

    Raises OSError if the folder cannot be read.
    """
    try:
        values = read_json(RunDir(folder).lease)
        fields = {key: value for key, value in values.items() if key in Owner.__dataclass_fields__}
        return Owner(**fields)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, AttributeError):
        return Owner("")  # truncated by a full disk, or of another version


def create(folder: Path, owner: Owner) -> bool:
    """Create a lease; return False if another process was faster.

    Raises OSError if the file cannot be written.
    """
    try:
        _write(folder, owner, flags=os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    return True


def write(folder: Path, owner: Owner) -> None:
    """Write the lease of a folder, in place of any other.

    Raises OSError if the file cannot be written.
    """
    _write(folder, owner, flags=os.O_CREAT)


def remove(folder: Path, owner: Owner) -> None:
    """Remove the lease of a folder if it is this owner's.

    Raises OSError if the file cannot be read or removed.
    """
    current = read(folder)
    if current is not None and current.token == owner.token:
        owned.delete(RunDir(folder).lease)


def replace_owner(folder: Path, previous: Owner, mine: Owner) -> bool:
    """Overwrite the lease of an owner that is gone; return whether it was still that owner's.

    A lock file that is created exclusively admits one newcomer at a time, on network file systems
    too. Raises OSError if the lease or the lock cannot be written.
    """
    lock = RunDir(folder).lease.with_suffix(".next")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        _remove_stale_lock(lock)
        return False
    try:
        current = read(folder)
        if current is not None and _state(current) != _state(previous):
            return False
        write(folder, mine)
        return True
    finally:
        owned.delete(lock)


def _state(owner: Owner) -> tuple[str, int]:
    return owner.token, owner.count


def _remove_stale_lock(lock: Path) -> None:
    """Remove the lock of a newcomer that was killed; others exist for milliseconds only."""
    with contextlib.suppress(FileNotFoundError):
        inode = lock.stat().st_ino
        time.sleep(scaled(LEASE_LIVING) / 2)
        if lock.stat().st_ino == inode:
            owned.delete(lock)


def _write(folder: Path, owner: Owner, *, flags: int) -> None:
    # In place and not with a rename, so that an NFS client that has the file open sees the change
    # when it reopens it.
    handle = owned.open_to_write(RunDir(folder).lease, flags)
    try:
        os.pwrite(handle, json.dumps(asdict(owner)).ljust(_SIZE - 1).encode() + b"\n", 0)
    finally:
        os.close(handle)


def _machine() -> str:
    """Return the scope in which process ids are valid: the boot id of the machine, and the process
    namespace.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None if it does not exist or has
    ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain blanks
    state, start_ticks = fields[0], fields[19]
    return None if state in _ENDED_STATES else int(start_ticks)
