"""Run a function once for all ranks, over the store and without a time limit.

It serves downloads and preprocessing. A barrier would end a long download at the process group's
timeout. Here the waiting ranks poll the store for the end, and for heartbeats of the rank that runs
the function. Each heartbeat also counts as progress for the launcher, on the rank that sends it and
on the ranks that receive it.

Any process that reaches the store's port can write to it, so nothing from the store is unpickled:
it holds which ranks have arrived, heartbeats and how the work ended, signed where ranks have a
secret. The value itself goes through the process group.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from paceline import counters
from paceline.errors import Finding, RunError, option_invalid
from paceline.train import runtime
from paceline.world import World

SCOPES = ("job", "node")

BEAT_S = 1.0
# Limit without a heartbeat. The launcher notices at once if a process ends. A process that lives
# may be in C code that holds the GIL, or get no CPU time, so the limit is as long as torch's own.
SILENCE_S = 1800.0
LOOK_S = 0.1
_TEXT = 4000  # characters of an exception's text: the store rejects values over 8 MiB


class OnceStore(Protocol):
    """The methods of ``SignedStore`` that are used here."""

    def set(self, key: str, value: Any) -> None: ...
    def find(self, key: str) -> bytes | None: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, value: int) -> int: ...


def do_once(fn: Callable[[], Any], scope: str, *, world: World) -> Any:
    """Run ``fn`` on one rank of the job or of each node; return its value on all ranks.

    ``fn`` takes no argument and returns what can be pickled; ``scope`` is one of ``SCOPES``. Raises
    UsageError if it is unknown, RunError if ``fn`` failed on another rank, or that rank has ended.
    """
    if scope not in SCOPES:
        what = f"scope={scope!r} is neither 'job' nor 'node'"
        raise option_invalid(what, where="session.once(...)", fix='scope="node"')
    if world.world_size == 1:
        return fn()
    store, on_node = runtime.store(), scope == "node"
    key = f"paceline/once/{runtime.number_of_call('once')}"
    works = (world.local_rank if on_node else world.rank) == 0
    own = _node(world) if on_node else "job"
    # With ranks assigned round-robin to nodes, no formula says which ranks do the work.
    store.set(f"{key}/at/{world.rank}", json.dumps([own, works]))
    store.add(f"{key}/here", 1)
    value, data = perform(fn, store, f"{key}/{world.rank}") if works else (None, b"")
    workers = _workers(store, key, world) if on_node else {own: 0}
    for rank in sorted({*workers.values()} - {world.rank}):
        await_end(store, f"{key}/{rank}", rank=rank)
    await_all(store, key, world_size=world.world_size)
    pickles = {rank: runtime.bytes_of(rank, data) for rank in sorted(workers.values())}
    return value if works else pickle.loads(pickles[workers[own]])


def _workers(store: Any, key: str, world: World) -> dict[str, int]:
    """Return the working rank of each node, after all ranks have arrived."""
    await_all(store, key, world_size=world.world_size)
    places = [json.loads(store.get(f"{key}/at/{rank}")) for rank in range(world.world_size)]
    return {node: rank for rank, (node, works) in enumerate(places) if works}


def _node(world: World) -> str:
    """Return a name that the ranks of a node share, even if the launcher reports only one node."""
    if world.launcher == "mpi":  # which may give nodes different numbers of tasks, in any order
        return f"host {socket.gethostname()}"
    return (
        f"node {world.node_rank}"
        if world.num_nodes > 1
        else f"node from {world.rank - world.local_rank}"
    )


def perform(fn: Callable[[], Any], store: OnceStore, key: str) -> tuple[Any, bytes]:
    """Run ``fn`` on this rank; send heartbeats to the other ranks, and then the outcome.

    Returns the value of ``fn``, and its pickle. What it raises is raised here; the other ranks get
    a RunError.
    """
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(store, key, ended), daemon=True)
    beating.start()
    try:
        value = fn()
        data = pickle.dumps(value)
        store.set(f"{key}/end", "")
        return value, data
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}"[:_TEXT]
        place = f"{last.filename}:{last.lineno} in {last.name}"
        with contextlib.suppress(Exception):  # the store may be what has failed
            store.set(f"{key}/failure", json.dumps({"what": what, "place": place}))
        raise
    finally:
        ended.set()
        beating.join()


def await_end(store: OnceStore, key: str, *, rank: int) -> None:
    """Wait until ``perform`` has ended on ``rank``.

    Raises RunError if the function failed there, or no heartbeat came for ``SILENCE_S``.
    """
    beat: bytes | None = None
    heard_s = time.monotonic()
    while not store.check([f"{key}/end"]):  # if a stranger writes it, the collective begins early
        if (failure := store.find(f"{key}/failure")) is not None:
            raise RunError(_failed(rank, **json.loads(failure)))
        time.sleep(LOOK_S)
        now_s = time.monotonic()
        if (new := store.find(f"{key}/beat")) not in (None, beat):
            beat, heard_s = new, now_s
            _show_progress()
        if now_s - heard_s > SILENCE_S and beat:
            raise RunError.of(
                "peer-rank-died",
                f"rank {rank} does the work of session.once and has shown no sign of life for"
                f" {SILENCE_S:g} s",
                where=f"session.once, waiting for rank {rank}",
                fix=f"look at the log of rank {rank}",
            )


def _failed(rank: int, *, what: str, place: str) -> Finding:
    return Finding(
        "user-exception",
        f"session.once failed on rank {rank}: {what}",
        where=place,
        why="all ranks wait for its return value",
        fix=f"fix it there; the traceback is in rank {rank}'s log",
    )


def await_all(store: OnceStore, key: str, *, world_size: int) -> None:
    """Wait without a limit until all ranks have arrived; only then may they enter a collective."""
    while store.add(f"{key}/here", 0) < world_size:
        time.sleep(LOOK_S)


def _beat(store: OnceStore, key: str, ended: threading.Event) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        store.set(f"{key}/beat", str(number))
        _show_progress()
        ended.wait(BEAT_S)


def _show_progress() -> None:
    """Show the launcher that this rank is not stuck; does nothing without a launcher."""
    if counters.mine is not None:
        counters.mine[counters.BEAT_NS] = time.monotonic_ns()
