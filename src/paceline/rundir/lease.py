"""Lease of a run folder: a file whose counter the owner increments, so that a folder has one living
run.

Time stamps of a file server and clocks of other machines are not reliable. A newcomer therefore
watches the counter by its own clock. It takes over the folder when the counter has not changed for
long enough, or at once if the owner's process has ended on this machine. Standard library only.
docs/design/0014-run-folders.md has the reasons.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline import env
from paceline.deadlines import LEASE_EXPIRY, LEASE_HEARTBEAT, LEASE_LIVING, LEASE_SAME_JOB, scaled
from paceline.errors import Finding, UsageError
from paceline.rundir.files import RunDir

_SIZE = 1024  # constant, so that incrementing the counter needs no space on a full disk
_LOOK_S = 0.5  # between two looks of a newcomer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Owner:
    """The run that a folder belongs to while it lives.

    Attributes:
        token: Random id of the run.
        host: Name of its machine, for messages.
        machine: Boot id of its machine and its process namespace, in which process ids are valid;
            empty if unknown.
        pid: Its process; 0 for a job that has reserved the folder for a later process.
        started: When that process started, in ticks since the boot, because process ids are used
            again.
        job: Its Slurm job; empty outside of Slurm.
        element: Its array element, for messages.
        restarts: How often Slurm had queued the job again.
        count: Incremented by every heartbeat.
    """

    token: str
    host: str = ""
    machine: str = ""
    pid: int = 0
    started: int = 0
    job: str = ""
    element: str = ""
    restarts: int = 0
    count: int = 0

    @property
    def words(self) -> str:
        """The owner in words, for messages."""
        element = f" ({self.element})" if self.element else ""
        job = f"job {self.job}{element}" if self.job else ""
        process = f"process {self.pid} on {self.host}" if self.pid else ""
        return ", ".join(filter(None, (job, process))) or "a run that cannot be read"


def this_process(token: str = "", *, element: str = "") -> Owner:
    """Return this process as the owner of a folder.

    Args:
        token: Token of its run; a new one if empty.
        element: The array element, for messages.
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
        job=env.read(env.JOB_ID) or "",
        element=element,
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


# Decisions


FREE, LIVING, UNKNOWN = "free", "living", "unknown"


def judge(owner: Owner, mine: Owner, *, alive: bool | None) -> str:
    """Return whether an owner lives, as far as known at the first look. Pure.

    Args:
        owner: The owner of the folder.
        mine: The newcomer.
        alive: Whether the owner's process exists; None if it is not visible from here.
    """
    if alive is not None:
        return LIVING if alive else FREE
    same_job = bool(owner.job) and owner.job == mine.job
    if same_job and (owner.restarts != mine.restarts or not owner.pid):
        return FREE  # Slurm has ended the job before it started it again
    return UNKNOWN


@dataclass
class Watch:
    """Watch an owner's counter by the newcomer's own clock. Pure.

    Attributes:
        expiry_s: Time without a change after which the owner is gone.
        patience_s: Time that a newcomer waits for a living owner, which may be ending.
    """

    expiry_s: float
    patience_s: float
    _mark: tuple[str, int] | None = None
    _first_s: float = 0.0
    _changed_s: float = 0.0
    _has_changed: bool = False

    def sees(self, owner: Owner, now_s: float, *, alive: bool | None) -> str:
        """Return ``LIVING`` or ``FREE`` once that is known, until then ``UNKNOWN``.

        Args:
            owner: The current content of the lease.
            now_s: The time.
            alive: Whether the owner's process exists; None if it is not visible from here.
        """
        mark = (owner.token, owner.count)
        if self._mark is None:
            self._first_s = now_s
        if mark != self._mark:
            self._has_changed = self._mark is not None
            self._mark, self._changed_s = mark, now_s
        if self._has_changed or alive:
            return LIVING if now_s - self._first_s >= self.patience_s else UNKNOWN
        return FREE if now_s - self._changed_s >= self.expiry_s else UNKNOWN


def in_use(folder: Path, owner: Owner) -> Finding:
    """Return the finding that a living run owns the folder."""
    stop = f"scancel {owner.job}" if owner.job else f"kill {owner.pid}, on {owner.host}"
    return Finding(
        "run-folder-in-use",
        f"the run folder {folder} is in use by {owner.words}",
        where=str(folder),
        why="two runs in one folder would load and overwrite each other's checkpoints",
        fix=f"another folder (--run-dir FOLDER, Session(run_dir=...)), or end that run: {stop}",
    )


def taken_over(folder: Path, owner: Owner) -> Finding:
    """Return the finding that another run has taken over the folder while this one sent no
    heartbeat.
    """
    return Finding(
        "run-folder-taken-over",
        f"the run folder {folder} now belongs to {owner.words}: nothing more is saved there by"
        " this run",
        where=str(folder),
        why="this run gave no sign of life for a minute, as a process that was suspended does",
        fix="let the other run finish; this one has ended at its last checkpoint",
    )


# Effects


class Lease:
    """A folder that this process owns, until ``release`` has been called as often as ``take``.

    Attributes:
        lost: The run that has taken over the folder; None as long as it is ours.
    """

    def __init__(self, folder: Path, owner: Owner, say: Say) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.owner = owner
        self.lost: Owner | None = None
        self.users = 1
        self._path, self._shown, self._say = RunDir(self.folder).lease, folder, say
        self._has_warned = False
        self._pid = os.getpid()
        self._lock = threading.Lock()  # the heartbeat must not write again what was just released

    def beat(self) -> None:
        """Increment the counter. An error causes a warning and never ends the training."""
        with self._lock:
            if self.users == 0:
                return
            try:
                self._beat()
            except OSError as error:
                self._warn(
                    f"the lease of the run folder {self._shown} cannot be written"
                    f" ({error.strerror}): training continues, but a second run in this folder"
                    " would not notice it"
                )

    def _beat(self) -> None:
        now = read(self.folder)
        if now is not None and now.token and now.token != self.owner.token:
            self.lost = now
            self._warn(taken_over(self._shown, now).what)
            return
        self.owner = replace(self.owner, count=self.owner.count + 1)
        _write(self._path, self.owner, flags=os.O_CREAT)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._say(text)

    def release_soon(self) -> None:
        """Release the folder at the next heartbeat or ``take``; for callbacks of the garbage
        collector.

        The collector may run in a thread that holds one of this module's locks, where ``release``
        would deadlock.
        """
        _heart.given_back.put(self)

    def release(self) -> None:
        """Release the folder, when its last user has called this."""
        if os.getpid() != self._pid:
            return  # a forked child does not own what its parent does
        with self._lock:
            self.users = max(0, self.users - 1)
            if self.users:
                return
            with contextlib.suppress(OSError):
                now = read(self.folder)
                if now is not None and now.token == self.owner.token:
                    self._path.unlink()
        _heart.forget(self)


def take(
    folder: Path, mine: Owner, *, say: Say, ended: Callable[[str], bool] | None = None
) -> Lease:
    """Make this process the owner of a folder, and send heartbeats from a thread.

    Args:
        folder: The run folder; it exists.
        mine: This process.
        say: Prints a line, also from that thread.
        ended: Returns whether a Slurm job has certainly ended.

    Raises:
        UsageError: A living run owns the folder.
        OSError: The folder cannot be written.
    """
    _heart.take_back()
    own_lease = _heart.lease_of(folder)
    if own_lease is not None:
        own_lease.users += 1
        return own_lease
    acquire(folder, mine, say=say, ended=ended)
    lease = Lease(folder, mine, say)
    _heart.keep(lease)
    return lease


def acquire(
    folder: Path, mine: Owner, *, say: Say, ended: Callable[[str], bool] | None = None
) -> None:
    """Write an owner to a folder as soon as no other owner lives; see ``take``."""
    watch: Watch | None = None
    next_question_s = 0.0
    while True:
        other = read(folder)
        if other is None:
            if _create(folder, mine):
                return
            continue
        alive = _is_alive(other)
        verdict = judge(other, mine, alive=alive)
        if watch is None and verdict != FREE:
            watch = _watch(other, mine)
            _say_wait(folder, other, verdict, say)
        if verdict != FREE and watch is not None:
            verdict = watch.sees(other, time.monotonic(), alive=alive)
        if verdict == LIVING:
            raise UsageError(in_use(folder, other))
        is_due = time.monotonic() >= next_question_s
        if verdict == UNKNOWN and ended is not None and other.job and is_due:
            verdict = FREE if ended(other.job) else UNKNOWN
            next_question_s = time.monotonic() + LEASE_HEARTBEAT
        if verdict == FREE and _replace(folder, other, mine):
            return
        time.sleep(min(_LOOK_S, scaled(LEASE_HEARTBEAT)))


def _watch(other: Owner, mine: Owner) -> Watch:
    same_job = bool(other.job) and other.job == mine.job
    return Watch(
        expiry_s=scaled(LEASE_SAME_JOB if same_job else LEASE_EXPIRY),
        patience_s=scaled(LEASE_LIVING),
    )


def _say_wait(folder: Path, other: Owner, verdict: str, say: Say) -> None:
    if verdict == LIVING:
        say(
            f"the run folder {folder} is in use by {other.words}: waiting {scaled(LEASE_LIVING):g}"
            " s for its end"
        )
    else:
        limit_s = scaled(LEASE_EXPIRY)
        say(
            f"the run folder {folder} was last used by {other.words}: waiting up to {limit_s:g} s"
            " for a sign of it"
        )


def prepare() -> None:
    """Release all leases of this process at its end, after functions that are registered with
    ``atexit`` later.
    """
    _heart.prepare()


def is_held_by(folder: Path, token: str) -> Owner | None:
    """Return the run that has taken over a folder from the run with this token; None if none is
    visible.
    """
    try:
        now = read(folder)
    except OSError:
        return None
    return now if now is not None and now.token and now.token != token else None


def read(folder: Path) -> Owner | None:
    """Return the owner of a folder, None if there is none; an owner without a token if the lease is
    not readable.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        text = RunDir(folder).lease.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        return Owner("")
    try:
        values = json.loads(text)
        return Owner(
            **{key: value for key, value in values.items() if key in Owner.__dataclass_fields__}
        )
    except (ValueError, TypeError, AttributeError):
        return Owner("")  # truncated by a full disk, or of another version


def _create(folder: Path, owner: Owner) -> bool:
    """Create a lease; return False if another process was faster."""
    try:
        _write(RunDir(folder).lease, owner, flags=os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    return True


def _replace(folder: Path, judged: Owner, mine: Owner) -> bool:
    """Overwrite the lease of an owner that is gone; return whether it was still that owner's.

    A lock file that is created exclusively admits one newcomer at a time, on network file systems
    too.
    """
    lock = RunDir(folder).lease.with_suffix(".next")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        _remove_stale_lock(lock)
        return False
    try:
        now = read(folder)
        if now is not None and (now.token, now.count) != (judged.token, judged.count):
            return False
        _write(RunDir(folder).lease, mine, flags=os.O_CREAT)
        return True
    finally:
        lock.unlink(missing_ok=True)


def _remove_stale_lock(lock: Path) -> None:
    """Remove the lock of a newcomer that was killed; others exist for milliseconds only."""
    with contextlib.suppress(FileNotFoundError):
        before = lock.stat().st_ino
        time.sleep(scaled(LEASE_LIVING) / 2)
        if lock.stat().st_ino == before:
            lock.unlink()


def _write(path: Path, owner: Owner, *, flags: int) -> None:
    # In place and not with a rename, so that an NFS client that has the file open sees the change
    # when it reopens it.
    handle = os.open(path, os.O_WRONLY | flags, 0o666)
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


def _is_alive(owner: Owner) -> bool | None:
    """Return whether the owner's process exists; None if it is not visible from here."""
    if not owner.pid or not owner.machine or owner.machine != _machine():
        return None
    started = _start_of(owner.pid)
    return started is not None and started == owner.started


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None if it does not exist or has
    ended.
    """
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class _Heart:
    """The thread that increments the counters of all leases of this process; it runs only while
    there are leases.
    """

    def __init__(self) -> None:
        self._leases: dict[Path, Lease] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_registered = False
        self.given_back: queue.SimpleQueue[Lease] = (
            queue.SimpleQueue()
        )  # its ``put`` may interrupt itself

    def lease_of(self, folder: Path) -> Lease | None:
        return self._leases.get(Path(os.path.abspath(folder)))

    def prepare(self) -> None:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._release_all)
            # A child has neither the thread nor the folder: it must not release its parent's
            # leases.
            os.register_at_fork(after_in_child=self._forget_all)

    def keep(self, lease: Lease) -> None:
        self.prepare()
        with self._lock:
            self._leases[lease.folder] = lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="paceline-lease", daemon=True
                )
                self._thread.start()

    def take_back(self) -> None:
        """Release the leases that callbacks of the garbage collector have queued."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.given_back.get_nowait().release()

    def forget(self, lease: Lease) -> None:
        with self._lock:
            if self._leases.get(lease.folder) is lease:
                del self._leases[lease.folder]

    def _run(self) -> None:
        while True:
            time.sleep(scaled(LEASE_HEARTBEAT))
            self.take_back()
            with self._lock:
                leases = list(self._leases.values())
                if not leases:
                    self._thread = None
                    return
            for lease in leases:
                lease.beat()

    def _release_all(self) -> None:
        for lease in list(self._leases.values()):
            lease.users = 1
            lease.release()

    def _forget_all(self) -> None:
        self._leases, self._thread, self._lock = {}, None, threading.Lock()
        self.given_back = queue.SimpleQueue()


_heart = _Heart()
