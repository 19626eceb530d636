"""Report that a script has replaced what the launcher has set for the meeting of the ranks.

If one rank looks for the others at another port, or for another number of them, all wait in vain. A
script may also replace the variables on all ranks alike and be right. So the launcher prints only
what has not led to a process group after some seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from paceline import env
from paceline.errors import Notice
from paceline.launch.plan.early_variables import line_of_setting

_NAMES = (env.MASTER_ADDR, env.MASTER_PORT, env.WORLD_SIZE, env.RANK)
LEAVE_THEM = "leave these variables to the launcher, or set them alike on all ranks"
_PATIENCE_NS = 3 * 10**9
_EVERY_S = 1.0


class Meeting:
    """In a rank: reports the changes when a process group is about to be made, and when it is."""

    def __init__(
        self,
        expected: Mapping[str, str],  # the variables that the launcher has set for this rank
        report: Callable[[dict[str, Any]], None],  # called with an entry for the launcher
        is_users: Callable[[str], bool],  # whether a file is the user's own
    ) -> None:
        self._expected, self._report, self._is_users = expected, report, is_users
        self._lines: dict[str, str] = {}
        self._is_open, self._pid = False, os.getpid()

    def note(self, name: str, before: str | None, value: str) -> None:
        """Keep the line of the user's code that sets a variable."""
        if name in _NAMES and value != before:
            self._lines[name] = line_of_setting(sys._getframe(1), self._is_users)

    def begin(self) -> None:
        """Report the variables that differ from the launcher's; a group is about to be made."""
        now = {name: env.read(name) for name in _NAMES if name in self._expected}
        changed = [name for name, value in now.items() if value != self._expected[name]]
        self._is_open = bool(changed) and os.getpid() == self._pid
        if self._is_open:
            changes = [
                f"{name}={now[name]}{self._at(name)}; the launcher set {self._expected[name]}"
                for name in changed
            ]
            rank = self._expected[env.RANK]
            self._report({"rank": rank, "time_ns": time.time_ns(), "changes": changes})

    def end(self) -> None:
        """Report that the group is made."""
        if self._is_open:
            self._is_open = False
            self._report({"rank": self._expected[env.RANK], "time_ns": 0, "changes": []})

    def _at(self, name: str) -> str:
        return f" ({self._lines[name]})" if self._lines.get(name) else ""


def open_changes(entries: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the last entry of each rank, by rank, without those whose group was made. Pure."""
    last = {entry["rank"]: entry for entry in entries}
    return {rank: entry for rank, entry in last.items() if entry["changes"]}


class Meetings:
    """In the launcher: print what ranks have changed and still wait for."""

    def __init__(
        self,
        # returns the reports of the ranks of this node so far
        entries: Callable[[], Iterator[dict[str, Any]]],
        inform: Callable[[Notice], None],  # prints a notice
    ) -> None:
        self._entries, self._inform = entries, inform
        self._printed: set[str] = set()
        self._next_s = 0.0

    def tick(self) -> None:
        """Print what is new, at intervals."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        for rank, entry in open_changes(self._entries()).items():
            waits = time.time_ns() - entry["time_ns"] > _PATIENCE_NS
            if waits and rank not in self._printed:
                self._printed.add(rank)
                self._inform(notice(rank, entry["changes"]))


def notice(rank: str, changes: Iterable[str]) -> Notice:
    """Return the notice that a rank waits for the others after its script has changed variables."""
    return Notice(
        f"rank {rank} waits for the other ranks, and its script has changed how it finds them",
        tuple(changes),
        f"fix: {LEAVE_THEM}",
    )
