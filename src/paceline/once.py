"""Doing a thing once for all ranks: downloads and preprocessing, over the store and without a time limit.

A barrier would end a long download at the process group's timeout. Here those who wait look into the store for
the result, and for the heartbeat of the one that works. Each heartbeat is progress for the launcher too: of the rank
that works, and of those that hear it.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol, cast

from paceline import pulse
from paceline.errors import Finding, RunError

BEAT_S = 1.0
# Without a heartbeat: a process that has gone is noticed by its launcher at once. One that lives may be inside C code
# that holds the interpreter's lock, or starved, so this is as long as torch's own limit.
SILENCE_S = 1800.0
LOOK_S = 0.1
PART_BYTES = 4 << 20  # torch's TCPStore closes the connection over more than 8 MiB


class Store(Protocol):
    """What is needed of torch's stores."""

    def set(self, key: str, value: Any) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


def perform(fn: Callable[[], Any], store: Store, key: str) -> Any:
    """Run ``fn`` here; tell the others that it goes on, and at last what came of it.

    Raises:
        BaseException: What ``fn`` raised; the others get a RunError.
    """
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(store, key, ended), daemon=True)
    beating.start()
    try:
        value = fn()
        _tell(store, key, ("value", value))
        return value
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}:{last.lineno} in {last.name}"
        with contextlib.suppress(Exception):  # the store may be what has failed
            _tell(store, key, ("error", (f"{type(error).__name__}: {error}", place)))
        raise
    finally:
        ended.set()
        beating.join()


def await_end(store: Store, key: str, *, rank: int) -> Any:
    """Wait for what ``perform`` does on ``rank``; return its value.

    Raises:
        RunError: It failed there, or has been silent for ``SILENCE_S``.
    """
    beat, heard_s = b"", time.monotonic()
    while not store.check([f"{key}/end"]):
        time.sleep(LOOK_S)
        now_s = time.monotonic()
        if store.check([f"{key}/beat"]) and (new := store.get(f"{key}/beat")) != beat:
            beat, heard_s = new, now_s
            _show_progress()
        if now_s - heard_s > SILENCE_S and beat:
            raise RunError(
                Finding(
                    "peer-rank-died",
                    f"rank {rank} does the work of session.once and has shown no sign of life for {SILENCE_S:g} s",
                    where=f"session.once, waiting for rank {rank}",
                    fix=f"look at the log of rank {rank}",
                )
            )
    parts = range(int(store.get(f"{key}/end")))
    kind, content = pickle.loads(b"".join(store.get(f"{key}/part/{part}") for part in parts))
    if kind == "value":
        return content
    what, place = cast(tuple[str, str], content)
    raise RunError(
        Finding(
            "user-exception",
            f"session.once failed on rank {rank}: {what}",
            where=place,
            why="all ranks wait for what it was to return",
            fix=f"mend it there; the traceback is in the log of rank {rank}",
        )
    )


def _tell(store: Store, key: str, message: tuple[str, Any]) -> None:
    data = pickle.dumps(message)
    parts = range(0, len(data), PART_BYTES)
    for number, start in enumerate(parts):
        store.set(f"{key}/part/{number}", data[start : start + PART_BYTES])
    store.set(f"{key}/end", str(len(parts)))


def _beat(store: Store, key: str, ended: threading.Event) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        store.set(f"{key}/beat", str(number))
        _show_progress()
        ended.wait(BEAT_S)


def _show_progress() -> None:
    """Let the launcher know that this rank is not stuck; without a launcher there is nothing to do."""
    if pulse.mine is not None:
        pulse.mine[pulse.BEAT_NS] = time.monotonic_ns()
