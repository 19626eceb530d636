"""Read the events that the launchers of a run wrote to its run folder: outcome, steps and launchers of the last start.

One folder holds all starts of a run, so an outcome counts only if no start came after it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_OK, EXIT_UNFINISHED, Finding
from paceline.rundir.files import RunDir, open_file

# Enough for the last events of a launcher with a hundred ranks; those of a thousand ranks are cut off.
_TAIL_BYTES = 1 << 17
_LOST = re.compile(r"node (\d+)(?: \(([^)]*)\))?")


@dataclass(frozen=True)
class Outcome:
    """The end of a run as its launcher recorded it.

    Attributes:
        exit_status: Exit status of the command.
        findings: Findings of the run, the cause first.
        time_ns: When the run ended.
    """

    exit_status: int
    findings: tuple[Finding, ...] = ()
    time_ns: int = 0

    @property
    def word(self) -> str:
        """The outcome in one word, for a table."""
        if self.exit_status in (EXIT_OK, EXIT_UNFINISHED):
            return "succeeded" if self.exit_status == EXIT_OK else "unfinished"
        return "stopped" if self.exit_status > 128 else "failed"

    @property
    def stopped(self) -> bool:
        """Whether the run was ended from outside, with a checkpoint or without."""
        return self.exit_status == EXIT_UNFINISHED or self.exit_status > 128

    @property
    def lost(self) -> tuple[tuple[int, str], ...]:
        """Node rank and host name of the nodes whose loss ended the run; the name is empty if it is unknown."""
        first = self.findings[0] if self.findings else None
        if first is None or first.name != "agent-died":
            return ()
        return tuple((int(rank), host) for rank, host in _LOST.findall(first.where))


@dataclass(frozen=True)
class History:
    """What the events of a run folder say.

    Attributes:
        outcome: How the last start ended, None if there is no such event.
        started_ns: When ranks were last started, 0 if they never were.
        steps: Optimizer steps of the last start, None if there is no such event.
        nodes: Number of nodes with events.
        launchers: Host and process id of each launcher of the last start.
    """

    outcome: Outcome | None = None
    started_ns: int = 0
    steps: int | None = None
    nodes: int = 0
    launchers: tuple[tuple[str, int], ...] = ()


def read(run_dir: RunDir, *, since_ns: int = 0) -> History:
    """Read the events of a run.

    Args:
        run_dir: The run folder.
        since_ns: Ignore earlier outcomes: the job has been queued again since.
    """
    try:
        # the file of node 0 comes first: if several launchers record the end, its event has the most detail
        paths = sorted(path for path in map(Path, _names(run_dir)) if path.suffix == ".jsonl")
    except OSError:
        return History()
    return judge([_events(path) for path in paths], since_ns=since_ns)


def judge(files: Sequence[Sequence[dict[str, Any]]], *, since_ns: int = 0) -> History:
    """Combine the events of all nodes, one list for each node. Pure."""
    starts = [event for events in files for event in events if event.get("kind") == "start"]
    last_attempt = max((int(event.get("attempt", 0)) for event in starts), default=-1)
    outcomes = []
    steps: int | None = None
    for events in files:
        attempt, outcome = -1, None
        for event in events:
            kind, when = event.get("kind"), int(event.get("time_ns", 0))
            if kind == "start":
                attempt, outcome = int(event.get("attempt", 0)), None
            elif kind == "outcome" and when >= since_ns:
                outcome = event
            elif kind == "end" and attempt == last_attempt and when >= since_ns:
                steps = max([steps or 0, *(int(end.get("steps", 0)) for end in event.get("ends", ()))])
        # a node that has left the run has recorded the end of an earlier start
        if outcome is not None and attempt in (-1, last_attempt):
            outcomes.append(_outcome(outcome))
    return History(
        outcome=outcomes[0] if outcomes else None,
        started_ns=max((int(event.get("time_ns", 0)) for event in starts), default=0),
        steps=steps,
        nodes=sum(bool(events) for events in files),
        launchers=tuple(
            (str(event["host"]), int(event["launcher"]))
            for event in starts
            if event.get("attempt") == last_attempt and "launcher" in event
        ),
    )


def _outcome(event: dict[str, Any]) -> Outcome:
    findings = []
    for values in event.get("findings", ()):
        try:
            findings.append(Finding.from_json(values))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # written by another version, or not a finding
    return Outcome(int(event.get("exit_status", 1)), tuple(findings), int(event.get("time_ns", 0)))


def _names(run_dir: RunDir) -> list[str]:
    with os.scandir(run_dir.root) as entries:
        return [entry.path for entry in entries if entry.name.startswith("events.")]


def _events(path: Path) -> list[dict[str, Any]]:
    """Return the last events of a file, without lines that are cut off."""
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and _is_event(event):
            events.append(event)
    return events


def _is_event(event: dict[str, Any]) -> bool:
    """Return whether the fields that are read here have the expected types."""
    numbers = [event.get(name, 0) for name in ("time_ns", "attempt", "exit_status", "launcher")]
    lists = [event.get(name, []) for name in ("ends", "findings")]
    if not all(isinstance(value, int) for value in numbers) or not all(isinstance(value, list) for value in lists):
        return False
    return all(isinstance(end, dict) and isinstance(end.get("steps", 0), int) for end in lists[0])
