"""Files in memory through which a rank reports to its launcher, even if the disk is full.

The launcher creates them and passes the descriptors to the rank. When the ranks have ended, it
copies them into the run folder if it can.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.machine import processes, system
from paceline.rundir import owned

# Kinds of entries in a rank's report.
FAILURE, THREAD, VARIABLE, MEETING = "failure", "thread", "variable", "meeting"
RESPONDER = "responder"  # where the rank answers, and which rank it is


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank in one attempt."""

    crash: int  # descriptor that faulthandler writes to when the rank crashes in native code
    stacks: int  # descriptor that faulthandler writes to when the launcher asks for stacks
    # descriptor that the worker entry writes to, a JSON line for each exception or variable set too
    # late
    report: int

    @classmethod
    def create(cls) -> RankFiles:
        """Return empty files."""
        return cls(
            *(system.memory_file(f"paceline-{name}") for name in ("crash", "stacks", "report"))
        )

    @property
    def handles(self) -> tuple[int, int, int]:
        """All descriptors, in the order in which they are passed to the rank."""
        return self.crash, self.stacks, self.report

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """Return the content of the rank's entries of a kind."""
        return _entries(_content(self.report), kind)

    def keep(self, *, crash: Path, stacks: Path) -> None:
        """Copy the stacks into the run folder, as far as it can be written."""
        for handle, path in ((self.crash, crash), (self.stacks, stacks)):
            content = _content(handle)
            if content:
                with contextlib.suppress(OSError):
                    owned.write_whole(path, content)

    def close(self) -> None:
        """Close the launcher's descriptors."""
        for handle in self.handles:
            os.close(handle)


def responder_of(pid: int) -> dict[str, Any]:
    """Return a rank's entry about its responder; empty for its launcher, which has the file too."""
    for handle, target in processes.open_files(pid).items():
        if target.startswith("/memfd:paceline-report"):
            with contextlib.suppress(OSError):
                entries = _entries(Path(f"/proc/{pid}/fd/{handle}").read_bytes(), RESPONDER)
                return next((entry for entry in entries if entry["pid"] == pid), {})
    return {}


def _entries(report: bytes, kind: str) -> list[dict[str, Any]]:
    *lines, _ = report.split(b"\n")  # the text after the last line feed is still being written
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return [entry["content"] for entry in entries if entry["kind"] == kind]


def append(report: int, kind: str, content: dict[str, Any]) -> None:
    """Append an entry to a rank's report; called in the rank."""
    if report >= 0:
        line = json.dumps({"kind": kind, "content": content}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(report, line)


def path_of(handle: int) -> Path:
    """Return the path at which this process can read one of its descriptors."""
    return Path(f"/dev/fd/{handle}")


def _content(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)
