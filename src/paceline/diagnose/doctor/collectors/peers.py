"""Tries a copy between every two GPUs, in a process that may be killed: a broken link can hang for good."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from paceline import env

LIMIT_S = 20.0
_HANGS_S = 4.0  # a copy of some megabytes takes milliseconds; one that the limit cut off is not called a hang
_PROGRAM = "paceline.diagnose.doctor.collectors.peer_trial"


@dataclass(frozen=True)
class Trial:
    """What copies between two GPUs showed, in both directions.

    Attributes:
        outcome: ``ok``, ``wrong-data``, ``hang`` or ``not-possible``.
        gigabytes_per_s: Of the slower direction.
    """

    outcome: str
    gigabytes_per_s: float | None = None


def try_pairs(uuids: Sequence[str], *, limit_s: float = LIMIT_S, command: Sequence[str] = ()) -> dict[Any, Trial]:
    """Return what copies between every two GPUs showed, by their numbers; one that was not tried is not there.

    Args:
        uuids: The GPUs' ids, in NVML's order: CUDA numbers those that it shows in another one.
        limit_s: How long all of it may take.
        command: What to run instead of the trial, in a test.
    """
    arguments = list(command) or [sys.executable, "-m", _PROGRAM]
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            env={**env.snapshot(), "PYTHONSAFEPATH": "1"},  # what lies in this folder is not to be imported
        )
    except OSError:
        return {}
    try:
        lines, silent_s = _read(child, limit_s)
    finally:  # Ctrl-C does not reach its session
        _end(child)
    return read_trials(lines, uuids, silent_s=silent_s)


def _read(child: subprocess.Popen[str], limit_s: float) -> tuple[list[str], float]:
    """Return the lines that the child wrote in time, and how long it was silent at the end of it."""
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def work(stream: IO[str]) -> None:
        with stream:
            for line in stream:
                found.put(line)
        found.put(None)

    assert child.stdout is not None
    threading.Thread(target=work, args=(child.stdout,), name="paceline-trial", daemon=True).start()
    lines: list[str] = []
    last = time.monotonic()
    deadline = last + limit_s
    with contextlib.suppress(queue.Empty):
        while (line := found.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            lines.append(line)
            last = time.monotonic()
        return lines, 0.0
    return lines, time.monotonic() - last


def _end(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    # One that waits inside the driver cannot be killed before the driver answers: it is left to the kernel.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=2)


def read_trials(lines: Iterable[str], uuids: Sequence[str], *, silent_s: float) -> dict[tuple[int, int], Trial]:
    """Return what the lines of the trial say. Pure.

    Args:
        lines: Each a JSON object with the ids of two GPUs (``from``, ``to``) and ``state``: ``begin``, ``ok``,
            ``wrong-data`` or ``not-possible``.
        uuids: The GPUs' ids, in NVML's order.
        silent_s: How long the trial had written nothing when its time was up; 0 if it came to its end by itself.
    """
    number = {uuid: place for place, uuid in enumerate(uuids)}
    found: dict[tuple[int, int], Trial] = {}
    begun: tuple[int, int] | None = None
    for line in lines:
        try:
            told = json.loads(line)
            one, other = number[told["from"]], number[told["to"]]
        except (ValueError, KeyError, TypeError):
            continue
        pair = (min(one, other), max(one, other))
        begun = pair if told.get("state") == "begin" else None
        if begun is None:
            found[pair] = _worse(found.get(pair), Trial(str(told.get("state")), told.get("gigabytes_per_s")))
    if begun is not None and silent_s >= _HANGS_S:
        found[begun] = Trial("hang")
    return found


def _worse(one: Trial | None, other: Trial) -> Trial:
    if one is None:
        return other
    order = ("hang", "wrong-data", "not-possible", "ok")
    outcome = min(one.outcome, other.outcome, key=lambda each: order.index(each) if each in order else len(order))
    rates = [each.gigabytes_per_s for each in (one, other) if each.gigabytes_per_s is not None]
    return Trial(outcome, min(rates, default=None))
