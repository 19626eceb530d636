"""A run folder: how its run ended stands in its events, as the launcher told it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.diagnose.explain.answer import Answer
from paceline.errors import EXIT_OK, Finding, UsageError


def outcome(subject: str) -> Answer | None:
    """Return how a run ended, None if the subject is no run folder and not the events of one.

    Raises:
        UsageError: The run has not told its end: it goes on, or its launcher was killed.
    """
    path = Path(subject)
    folder = path.parent if path.name.startswith("events.") and path.suffix == ".jsonl" else path
    try:
        if not folder.is_dir() or not any(folder.glob("events*.jsonl")):
            return None
    except OSError:  # no name of a file; who opens it says so
        return None
    events = [event for file in sorted(folder.glob("events*.jsonl")) for event in _events(file)]
    told = [event for event in events if event.get("kind") == "outcome"]
    if not told:
        raise UsageError(
            Finding(
                "input-unreadable",
                f"the run of {folder} has not told its end: it goes on, or its launcher was killed",
                fix=f"cat {folder}/logs/rank-*.out | paceline explain -",
            )
        )
    return _answer(max(told, key=lambda event: int(event.get("time_ns", 0))), folder)


def _events(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off while it was written
        if isinstance(event, dict):
            yield event


def _answer(event: dict[str, Any], folder: Path) -> Answer:
    found = [Finding.from_json(values) for values in event.get("findings", [])]
    if event.get("exit_status") == EXIT_OK:
        well = Finding("no-error-in-log", f"the run of {folder} ended well", severity="hint")
        return Answer((well, *(replace(each, severity="warning") for each in found)))
    return Answer(tuple(found) or (Finding("cause-unknown", f"the run of {folder} failed without a finding"),))
