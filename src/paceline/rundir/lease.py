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
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.deadlines import LEASE_EXPIRY, LEASE_HEARTBEAT, LEASE_LIVING, LEASE_SAME_JOB, scaled
from paceline.errors import Finding, UsageError
from paceline.rundir import lease_file
from paceline.rundir.lease_file import Owner

_LOOK_S = 0.5  # between two looks of a newcomer

Say = Callable[[str], None]


# Decisions


FREE, LIVING, UNKNOWN = "free", "living", "unknown"


def judge(owner: Owner, mine: Owner, *, alive: bool | None) -> str:
    """Return whether an owner lives, as far as known at the first look. Pure.

    ``alive``: the owner's process exists; None if it is not visible from here.
    """
    if alive is not None:
        return LIVING if alive else FREE
    same_job = bool(owner.job) and owner.job == mine.job
    if same_job and (owner.restarts != mine.restarts or not owner.pid):
        return FREE  # Slurm has ended the job before it started it again
    return UNKNOWN


@dataclass
class LeaseWatch:
    """Watch an owner's counter by the newcomer's own clock. Pure."""

    expiry_s: float  # time without a change after which the owner is gone
    patience_s: float  # time that a newcomer waits for a living owner, which may be ending
    _mark: tuple[str, int] | None = None
    _first_s: float = 0.0
    _changed_s: float = 0.0
    _has_changed: bool = False

    def sees(self, owner: Owner, now_s: float, *, alive: bool | None) -> str:
        """Return ``LIVING`` or ``FREE`` once that is known, else ``UNKNOWN`` (see ``judge``)."""
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
    """A folder that this process owns, until ``release`` has been called as often as ``take``."""

    def __init__(self, folder: Path, owner: Owner, say: Say) -> None:
        self.folder = Path(os.path.abspath(folder))  # the folder's absolute path
        self.owner = owner  # this process, with the count of its last heartbeat
        self.users = 1  # how often take has returned this lease without a release since
        self._folder_as_typed, self._say = folder, say
        self._has_warned = False
        self._pid = os.getpid()
        self._lock = threading.Lock()  # the heartbeat must not write again what was just released

    def send_heartbeat(self) -> None:
        """Increment the counter. An error causes a warning and never ends the training."""
        with self._lock:
            if self.users == 0:
                return
            try:
                self._increment()
            except OSError as error:
                self._warn(
                    f"the lease of the run folder {self._folder_as_typed} cannot be written"
                    f" ({error.strerror}): training continues, but a second run in this folder"
                    " would not notice it"
                )

    def _increment(self) -> None:
        other = _other_owner(self.folder, self.owner.token)
        if other is not None:
            self._warn(taken_over(self._folder_as_typed, other).what)
            return
        self.owner = replace(self.owner, count=self.owner.count + 1)
        lease_file.write(self.folder, self.owner)

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
        _heartbeats.pending_releases.put(self)

    def release(self) -> None:
        """Release the folder, when its last user has called this."""
        if os.getpid() != self._pid:
            return  # a forked child does not own what its parent does
        with self._lock:
            self.users = max(0, self.users - 1)
            if self.users:
                return
            with contextlib.suppress(OSError):
                lease_file.remove(self.folder, self.owner)
        _heartbeats.remove(self)


def take(
    folder: Path,  # the run folder; it exists
    mine: Owner,
    *,
    say: Say,  # prints a line, also from that thread
    ended: Callable[[str], bool] | None = None,  # returns whether a Slurm job has certainly ended
) -> Lease:
    """Make this process the owner of a folder, and send heartbeats from a thread.

    Raises UsageError if a living run owns the folder; OSError if the folder cannot be written.
    """
    _heartbeats.release_pending()
    own_lease = _heartbeats.lease_of(folder)
    if own_lease is not None:
        own_lease.users += 1
        return own_lease
    acquire(folder, mine, say=say, ended=ended)
    lease = Lease(folder, mine, say)
    _heartbeats.add(lease)
    return lease


def acquire(
    folder: Path, mine: Owner, *, say: Say, ended: Callable[[str], bool] | None = None
) -> None:
    """Write an owner to a folder as soon as no other owner lives; see ``take``."""
    newcomer = _Newcomer(folder, mine, say, ended)
    while True:
        other = lease_file.read(folder)
        if other is None:
            if lease_file.create(folder, mine):
                return
            continue
        verdict = newcomer.judge(other)
        if verdict == LIVING:
            raise UsageError(in_use(folder, other))
        if verdict == FREE and lease_file.replace_owner(folder, other, mine):
            return
        time.sleep(min(_LOOK_S, scaled(LEASE_HEARTBEAT)))


class _Newcomer:
    """A run that wants a folder and watches whether the owner still lives."""

    def __init__(
        self, folder: Path, mine: Owner, say: Say, ended: Callable[[str], bool] | None
    ) -> None:
        self._folder, self._mine, self._say, self._ended = folder, mine, say, ended
        self._watch: LeaseWatch | None = None
        self._next_question_s = 0.0

    def judge(self, other: Owner) -> str:
        """Return what is known about the current owner: ``FREE``, ``LIVING`` or ``UNKNOWN``."""
        alive = lease_file.is_alive(other)
        verdict = judge(other, self._mine, alive=alive)
        if verdict == FREE:
            return FREE
        if self._watch is None:
            self._watch = _watch(other, self._mine)
            self._say(_waiting(self._folder, other, verdict))
        verdict = self._watch.sees(other, time.monotonic(), alive=alive)
        if verdict == UNKNOWN and self._job_has_ended(other.job):
            return FREE
        return verdict

    def _job_has_ended(self, job: str) -> bool:
        """Ask about the owner's Slurm job, at most once in the time of a heartbeat."""
        if self._ended is None or not job or time.monotonic() < self._next_question_s:
            return False
        has_ended = self._ended(job)
        self._next_question_s = time.monotonic() + LEASE_HEARTBEAT
        return has_ended


def _watch(other: Owner, mine: Owner) -> LeaseWatch:
    same_job = bool(other.job) and other.job == mine.job
    return LeaseWatch(
        expiry_s=scaled(LEASE_SAME_JOB if same_job else LEASE_EXPIRY),
        patience_s=scaled(LEASE_LIVING),
    )


def _waiting(folder: Path, other: Owner, verdict: str) -> str:
    """Return the line that explains why the start waits."""
    if verdict == LIVING:
        return (
            f"the run folder {folder} is in use by {other.words}: waiting {scaled(LEASE_LIVING):g}"
            " s for its end"
        )
    return (
        f"the run folder {folder} was last used by {other.words}: waiting up to"
        f" {scaled(LEASE_EXPIRY):g} s for a sign of it"
    )


def prepare() -> None:
    """Release all leases of this process at its end, after functions that are registered with
    ``atexit`` later.
    """
    _heartbeats.prepare()


def new_owner(folder: Path, token: str) -> Owner | None:
    """Return the run that has taken over a folder from the run with this token; None if none is
    visible.
    """
    try:
        return _other_owner(folder, token)
    except OSError:
        return None


def _other_owner(folder: Path, token: str) -> Owner | None:
    current = lease_file.read(folder)
    if current is None or current.token in ("", token):
        return None
    return current


class _Heartbeats:
    """The thread that increments the counters of all leases of this process; it runs only while
    there are leases.
    """

    def __init__(self) -> None:
        self._leases: dict[Path, Lease] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_registered = False
        # A queue whose ``put`` may interrupt itself.
        # leases that callbacks of the garbage collector want to release
        self.pending_releases: queue.SimpleQueue[Lease] = queue.SimpleQueue()

    def lease_of(self, folder: Path) -> Lease | None:
        return self._leases.get(Path(os.path.abspath(folder)))

    def prepare(self) -> None:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._release_all)
            # A child has neither the thread nor the folder: it must not release its parent's
            # leases.
            os.register_at_fork(after_in_child=self._forget_all)

    def add(self, lease: Lease) -> None:
        self.prepare()
        with self._lock:
            self._leases[lease.folder] = lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="paceline-lease", daemon=True
                )
                self._thread.start()

    def release_pending(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.pending_releases.get_nowait().release()

    def remove(self, lease: Lease) -> None:
        with self._lock:
            if self._leases.get(lease.folder) is lease:
                del self._leases[lease.folder]

    def _run(self) -> None:
        while True:
            time.sleep(scaled(LEASE_HEARTBEAT))
            self.release_pending()
            with self._lock:
                leases = list(self._leases.values())
                if not leases:
                    self._thread = None
                    return
            for lease in leases:
                lease.send_heartbeat()

    def _release_all(self) -> None:
        for lease in list(self._leases.values()):
            lease.users = 1
            lease.release()

    def _forget_all(self) -> None:
        self._leases, self._thread, self._lock = {}, None, threading.Lock()
        self.pending_releases = queue.SimpleQueue()


_heartbeats = _Heartbeats()
