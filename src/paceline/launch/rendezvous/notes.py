"""Exchange notes through the shared folder while nodes wait, for the case of a broken network.

A note never ends a run. It only shows one node what another one sees, for example that the other
tries another port, or that the head's name resolves to another address there. If the folder is not
writable, no notes are exchanged.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.rundir import owned
from paceline.rundir.files import read_json

# A waiting node renews its note. An older note was left by a launcher that was killed.
_RENEW_S = 5.0
_STALE_S = 20.0
_OURS_TO_REMOVE_S = 120.0
# A node writes its first note a few seconds after its start. A node that gave up before that
# belonged to an earlier try.
_FIRST_NOTE_S = 5.0
_NAME = re.compile(r"[\w.-]+-\d+\.json")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Note:
    """What one waiting node reports about itself."""

    script: str  # name of its script
    run_id: str  # its ``--rdzv-id``
    rank: int | None  # its node rank; None if torch assigns the ranks
    host: str  # its host name
    pid: int  # process id of its launcher
    name: str  # the head's name or address, as typed on that node
    address: str  # the address that the name resolves to; empty if it does not resolve
    port: int  # the port that it tries to reach, or listens on
    listens: bool  # whether this node hosts a store
    addresses: tuple[str, ...] = ()  # addresses of this node
    trouble: str = ""  # the result of its last connection probe, in words
    ended: bool = False  # whether the node has given up; its note stays for nodes that still wait
    time_s: float = 0.0  # when the note was written, in seconds since the epoch

    @property
    def words(self) -> str:
        """The node that wrote the note, as messages name it."""
        if self.rank is None:
            return f"{self.host} (launcher pid {self.pid})"
        return f"node {self.rank} on {self.host}"


class Notes:
    """The notes of the nodes of one run, and this node's note."""

    def __init__(
        self,
        folder: Path,  # created when the first note is written
        mine: Note,  # at the start of the wait
    ) -> None:
        self.folder = folder
        self.mine = mine
        self._written = 0.0
        self._first_mtime = 0.0  # of this node's first note, by the file server's clock
        name = re.sub(r"[^\w.-]+", "-", f"{mine.script}-{mine.host}-{mine.pid}")
        self._name = f"{name}.json"
        atexit.register(self.remove)  # a signal may end the launcher while its node still waits

    def leave(self, **changes: Any) -> None:
        """Write or renew this node's note; ``changes`` are the fields that have changed."""
        now = time.monotonic()
        changed = replace(self.mine, **changes)
        if changed == self.mine and self._written and now - self._written < _RENEW_S:
            return
        self.mine, self._written = changed, now
        text = json.dumps({**asdict(changed), "time_s": time.time()})
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with owned.folder(self.folder) as folder:
                owned.write_whole(folder / self._name, text)
                self._first_mtime = self._first_mtime or (folder / self._name).stat().st_mtime

    def read(self) -> list[Note]:
        """Return the recent notes of other nodes of this run, and remove stale ones.

        What is not a note stays, and so does all in a folder that is a link, or another user's.
        """
        self.leave()
        notes = []
        with contextlib.suppress(OSError), owned.folder(self.folder) as folder:
            # by the file server's clock, like the rest
            now = (folder / self._name).stat().st_mtime
            for path in sorted(folder.iterdir()):
                status, note = path.lstat(), _read(path)
                if note is None or path.name == self._name or not owned.is_ours(status, folder):
                    continue
                written = status.st_mtime
                if now - written > _OURS_TO_REMOVE_S:
                    owned.delete(path)
                elif now - written < _STALE_S and self._is_of_this_try(note, written):
                    notes.append(note)
        return notes

    def _is_of_this_try(self, note: Note, written: float) -> bool:
        """Return whether a node wrote a note while it waited for this try of this run."""
        if (note.script, note.run_id) != (self.mine.script, self.mine.run_id):
            return False
        if note.ended:
            return written > self._first_mtime - _FIRST_NOTE_S
        return not self._is_dead(note)

    def _is_dead(self, note: Note) -> bool:
        """Return whether a killed launcher on this host left the note."""
        if note.host != self.mine.host or not Path("/proc/self").exists():
            return False
        return not Path(f"/proc/{note.pid}").exists()

    def remove(self) -> None:
        """Remove this node's note, and the folder when it is empty.

        The note stays if it says why the node has given up.
        """
        if self.mine.ended:
            return
        with contextlib.suppress(OSError):
            with owned.folder(self.folder) as folder:
                owned.delete(folder / self._name)
            self.folder.rmdir()


def _read(path: Path) -> Note | None:
    """Return a note; None for what is not one."""
    try:
        if not _NAME.fullmatch(path.name):
            return None
        values = read_json(path, most_bytes=_MOST_BYTES)
        return Note(**{**values, "addresses": tuple(values["addresses"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # removed meanwhile, or written by another version
