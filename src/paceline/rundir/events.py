"""The events of a run folder: their schema, how launchers write them, and what they say about the
run.

One folder holds all starts of a run, so an outcome counts only if no start came after it. Standard
library only.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_OK, EXIT_UNFINISHED, Finding
from paceline.rundir import owned
from paceline.rundir.files import open_file

EVENT_VERSION = 1
# kind -> the fields beside version, time_ns, node and kind
EVENTS: Mapping[str, frozenset[str]] = {
    "start": frozenset({"attempt", "ranks", "pids", "world_size", "host", "launcher"}),
    "end": frozenset({"attempt", "ends"}),
    "restart": frozenset({"attempt", "why"}),
    "outcome": frozenset({"exit_status", "findings", "summary"}),
}
# The last events of most runs. The outcome of a thousand ranks is longer, that of a hundred is not.
TAIL_BYTES = 1 << 17

_NO_START = -1
_LOST = re.compile(r"node (\d+)(?: \(([^)]*)\))?")


@dataclass(frozen=True)
class Outcome:
    """The end of a run as its launcher recorded it."""

    exit_status: int  # exit status of the command
    findings: tuple[Finding, ...] = ()  # the findings, the cause first
    time_ns: int = 0  # when the run ended

    @property
    def word(self) -> str:
        """One word for a table."""
        if self.exit_status in (EXIT_OK, EXIT_UNFINISHED):
            return "succeeded" if self.exit_status == EXIT_OK else "unfinished"
        return "stopped" if self.exit_status > 128 else "failed"

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped from outside, with a checkpoint or without."""
        return self.exit_status == EXIT_UNFINISHED or self.exit_status > 128

    @property
    def lost(self) -> tuple[tuple[int, str], ...]:
        """The nodes that went silent, if that is the cause: node rank, and the name of the host,
        empty if unknown.
        """
        first = self.findings[0] if self.findings else None
        if first is None or first.name != "agent-died":
            return ()
        return tuple((int(rank), host) for rank, host in _LOST.findall(first.where))


@dataclass(frozen=True)
class History:
    """What the events of a run folder say."""

    outcome: Outcome | None = None  # how the last start ended, None if that is not recorded
    started_ns: int = 0  # when ranks were last started, 0 if they never were
    steps: int | None = None  # optimizer steps of the last start, as far as they are recorded
    nodes: int = 0  # number of nodes that have recorded events
    # host and process of each launcher of the last start
    launchers: tuple[tuple[str, int], ...] = ()


def append(path: Path, *, node: int, kind: str, **fields: Any) -> None:
    """Append one event.

    Raises ValueError if the kind is unknown or its fields are not those of the schema.
    """
    if EVENTS.get(kind) != frozenset(fields):
        raise ValueError(f"event {kind!r} does not take the fields {sorted(fields)}")
    event = {
        "version": EVENT_VERSION,
        "time_ns": time.time_ns(),
        "node": node,
        "kind": kind,
        **fields,
    }
    with owned.append(path) as file:
        file.write(json.dumps(event).encode() + b"\n")


def paths(folder: Path) -> list[Path]:
    """Return the event files of a run folder, that of node 0 first, whose outcome is the most
    complete.

    Raises OSError if the folder cannot be read, or the path is not a folder.
    """
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    return [folder / name for name in names if re.fullmatch(r"events(\..*)?\.jsonl", name)]


def read(path: Path, *, tail_bytes: int | None = None) -> list[dict[str, Any]]:
    """Return the events of a file. Lines that are cut off, or that are not events, are left out.

    ``tail_bytes`` reads only the end of the file. Raises OSError if it cannot be read.
    """
    events, _ = read_counted(path, tail_bytes=tail_bytes)
    return events


def read_counted(path: Path, *, tail_bytes: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """Return what ``read`` does, and the number of lines, those that are left out included."""
    with open_file(path) as file:
        if tail_bytes is not None:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - tail_bytes))
        lines = file.read().splitlines()
    return [event for line in lines if (event := _parse(line)) is not None], len(lines)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and _is_event(event) else None


def _is_event(event: dict[str, Any]) -> bool:
    """Return whether the fields that are read here have their types: the file may be anybody's."""
    numbers = [event.get(name, 0) for name in ("time_ns", "attempt", "exit_status", "launcher")]
    ends, findings = event.get("ends", []), event.get("findings", [])
    if not all(isinstance(value, int) for value in numbers):
        return False
    if not isinstance(ends, list) or not isinstance(findings, list):
        return False
    return all(isinstance(end, dict) and isinstance(end.get("steps", 0), int) for end in ends)


def read_history(folder: Path, *, since_ns: int = 0) -> History:
    """Return what the last events of a run folder say, as far as it can be read.

    Ends before ``since_ns`` do not count: the job has been queued again since.
    """
    try:
        files = [_read_tail(path) for path in paths(folder)]
    except OSError:
        return History()
    return history_of(files, since_ns=since_ns)


def _read_tail(path: Path) -> list[dict[str, Any]]:
    try:
        return read(path, tail_bytes=TAIL_BYTES)
    except OSError:
        return []


def history_of(files: Sequence[Sequence[dict[str, Any]]], *, since_ns: int = 0) -> History:
    """Return what the events of all nodes say, a list for each node. Pure."""
    starts = [start for events in files for start in _of_kind("start", events)]
    last = max((start.get("attempt", 0) for start in starts), default=_NO_START)
    nodes = [_last_attempt(events, since_ns) for events in files]
    ends = [end for node in nodes if node.number == last for end in _of_kind("end", node.events)]
    # A node that has left the run has recorded the end of an earlier start.
    outcomes = [_last_outcome(node.events) for node in nodes if node.number in (_NO_START, last)]
    return History(
        outcome=next((outcome for outcome in outcomes if outcome is not None), None),
        started_ns=max((start.get("time_ns", 0) for start in starts), default=0),
        steps=_steps(ends),
        nodes=sum(bool(events) for events in files),
        launchers=_launchers(starts, attempt=last),
    )


@dataclass(frozen=True)
class _Attempt:
    """The last start that a node has recorded."""

    number: int  # the attempt, ``_NO_START`` if the node has recorded no start
    events: Sequence[dict[str, Any]]  # what it recorded afterwards


def _last_attempt(events: Sequence[dict[str, Any]], since_ns: int) -> _Attempt:
    places = [place for place, event in enumerate(events) if event.get("kind") == "start"]
    number = events[places[-1]].get("attempt", 0) if places else _NO_START
    later = events[places[-1] + 1 :] if places else events
    return _Attempt(number, [event for event in later if event.get("time_ns", 0) >= since_ns])


def state_by_processes(history: History, alive: Callable[[str, int, float], bool | None]) -> str:
    """Return the state of a run that has recorded no outcome, in one word. Pure.

    Nothing but its launchers' processes shows whether such a run lives. ``alive`` returns whether a
    process of a host that started before a time, in seconds since the epoch, is alive; None if that
    is unknown.
    """
    living = [alive(host, pid, history.started_ns / 1e9) for host, pid in history.launchers]
    if any(living):
        return "running"
    # A launcher that ends without being killed writes its outcome to the run folder.
    return "killed" if living and None not in living else "unknown"


def _of_kind(kind: str, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("kind") == kind]


def _launchers(starts: Sequence[dict[str, Any]], *, attempt: int) -> tuple[tuple[str, int], ...]:
    return tuple(
        (str(start.get("host", "")), start["launcher"])
        for start in starts
        if start.get("attempt") == attempt and "launcher" in start
    )


def _last_outcome(events: Sequence[dict[str, Any]]) -> Outcome | None:
    outcomes = _of_kind("outcome", events)
    if not outcomes:
        return None
    event = outcomes[-1]
    findings = [_finding(values) for values in event.get("findings", ())]
    readable = tuple(finding for finding in findings if finding is not None)
    return Outcome(event.get("exit_status", 1), readable, event.get("time_ns", 0))


def _finding(values: Any) -> Finding | None:
    try:
        return Finding.from_json(values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # written by another version, or by somebody else


def _steps(ends: Sequence[dict[str, Any]]) -> int | None:
    counts = [rank.get("steps", 0) for event in ends for rank in event.get("ends", ())]
    return max(counts, default=0) if ends else None
