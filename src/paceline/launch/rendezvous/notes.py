"""Notes that nodes leave for each other in the shared folder while they wait: the way round a broken network.

A note never ends a run. It only lets a node say what the other sees: that it knocks at another port, or that
the head's name means another address there. Where the folder cannot be written there are no notes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# Notes of nodes that wait are renewed; an older one was left by a launcher that was killed.
_RENEW_S = 5.0
_STALE_S = 20.0
_OURS_TO_REMOVE_S = 120.0
# A node writes its first note a few seconds after its start; who had given up before that was in an earlier try.
_FIRST_NOTE_S = 5.0


@dataclass(frozen=True)
class Note:
    """What one waiting node says of itself.

    Attributes:
        script: Its script.
        run_id: Its ``--rdzv-id``.
        rank: Its node rank, -1 where torch gives the ranks.
        host: Its host name.
        pid: Its launcher.
        name: The head's name or address as it was typed there.
        address: What that resolved to; empty if to nothing.
        port: The port that it knocks at, or listens on.
        listens: Whether it hosts a store itself.
        addresses: Its own addresses.
        trouble: What its last knock came to, in words.
        ended: Whether it has given up; the note is left for those that still wait.
        time_s: When it was written.
    """

    script: str
    run_id: str
    rank: int
    host: str
    pid: int
    name: str
    address: str
    port: int
    listens: bool
    addresses: tuple[str, ...] = ()
    trouble: str = ""
    ended: bool = False
    time_s: float = 0.0

    @property
    def words(self) -> str:
        """Who wrote it."""
        return f"node {self.rank} on {self.host}" if self.rank >= 0 else f"{self.host} (launcher pid {self.pid})"


class Notes:
    """The notes of the nodes of one run, and this node's own.

    Args:
        folder: Where they lie; made when it is needed.
        mine: This node, as it begins to wait.

    Attributes:
        folder: As given.
    """

    def __init__(self, folder: Path, mine: Note) -> None:
        self.folder = folder
        self.mine = mine
        self._written = 0.0
        self._first_mtime = 0.0  # of this node's first note, by the clock of the file server
        name = re.sub(r"[^\w.-]+", "-", f"{mine.script}-{mine.host}-{mine.pid}")
        self._path = folder / f"{name}.json"
        atexit.register(self.remove)  # a signal may end the launcher while its node still waits

    def leave(self, **changes: Any) -> None:
        """Write or renew this node's note.

        Args:
            changes: Fields that have changed.
        """
        now = time.monotonic()
        changed = replace(self.mine, **changes)
        if changed == self.mine and self._written and now - self._written < _RENEW_S:
            return
        self.mine, self._written = changed, now
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".part")
            partial.write_text(json.dumps({**asdict(changed), "time_s": time.time()}), encoding="utf-8")
            os.replace(partial, self._path)
            self._first_mtime = self._first_mtime or self._path.stat().st_mtime

    def read(self) -> list[Note]:
        """Return the notes that other nodes of this run have left lately; removes stale ones."""
        self.leave()
        found = []
        with contextlib.suppress(OSError):
            now = self._path.stat().st_mtime  # by the clock of the file server, as the others' times
            for path in sorted(self.folder.glob("*.json")):
                written = path.stat().st_mtime
                if now - written > _OURS_TO_REMOVE_S:
                    path.unlink()
                    continue
                note = _parse(path) if now - written < _STALE_S and path != self._path else None
                if note is not None and (not note.ended or written > self._first_mtime - _FIRST_NOTE_S):
                    found.append(note)
        run = (self.mine.script, self.mine.run_id)
        return [note for note in found if (note.script, note.run_id) == run and not self._is_dead(note)]

    def _is_dead(self, note: Note) -> bool:
        """Return whether a note was left here by a launcher that was killed."""
        return (
            not note.ended
            and note.host == self.mine.host
            and not Path(f"/proc/{note.pid}").exists()
            and Path("/proc/self").exists()
        )

    def remove(self) -> None:
        """Take this node's note away, unless it says why the node has given up, and the folder after the last."""
        if self.mine.ended:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            self.folder.rmdir()


def _parse(path: Path) -> Note | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Note(**{**values, "addresses": tuple(values["addresses"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # gone meanwhile, or of another version
