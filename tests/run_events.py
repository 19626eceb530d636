"""Events of runs for tests that only read what a run folder says of a run."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import Finding
from paceline.rundir import events


def start(path: Path, *, node: int = 0, attempt: int = 0, world_size: int = 2) -> None:
    """Append the event that an attempt has started, with one rank on this node."""
    events.append(
        path,
        node=node,
        kind="start",
        attempt=attempt,
        ranks=[0],
        pids=[1],
        world_size=world_size,
        host="node-a",
        launcher=9,
    )


def outcome(path: Path, status: int, *findings: Finding, node: int = 0) -> None:
    """Append the event that a run has ended."""
    events.append(
        path,
        node=node,
        kind="outcome",
        exit_status=status,
        findings=[finding.to_json() for finding in findings],
        summary={},
    )
