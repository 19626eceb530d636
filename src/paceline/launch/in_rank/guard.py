"""The guard at the store: a rank that reaches the store of another run says so and ends.

Every run has a token. The launcher of the head writes it, with the run's name, into the store that the
ranks meet at; each rank knows the token of its own run. Whatever the ranks then write goes under that
token, so the keys of two runs never mix.
"""

from __future__ import annotations

import functools
import json
import time
from importlib import import_module
from typing import Any

from paceline import env
from paceline.errors import Finding, RunError

# Raw key, outside every prefix: the first thing that anybody who connects can read.
IDENTITY_KEY = "paceline/run"
# The head names the run in a store right after it has opened it; another node's rank may be as quick.
_PATIENCE_S = 5.0
_FIELDS = {"token", "run_id", "script", "user", "host", "pid"}


def install() -> None:
    """Check the token whenever this rank connects to the store of ``env://`` rendezvous."""
    # by its full name: `torch.distributed.rendezvous` as an attribute is a function
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def checked(hostname: str, port: int, rank: int, *args: Any, **kwargs: Any) -> Any:
        token = env.read(env.RUN_TOKEN)
        if token is None or env.read(env.USE_AGENT_STORE) != "True":
            return create(hostname, port, rank, *args, **kwargs)
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store = create(hostname, port, rank, *args, **kwargs)
        _require_token(store, token, place=f"{hostname}:{port}")
        # The attempt is part of the prefix because the store outlives a restart, and with it the addresses
        # that ranks of the attempt before have left there.
        return PrefixStore(f"paceline/{token}/{env.read(env.RESTART_COUNT) or 0}", store)

    rendezvous._create_c10d_store = checked


def _require_token(store: Any, token: str, *, place: str) -> None:
    raw = _underlying(store)
    deadline = time.monotonic() + _PATIENCE_S
    while not raw.check([IDENTITY_KEY]) and time.monotonic() < deadline:
        time.sleep(0.02)
    found = parse(raw.get(IDENTITY_KEY)) if raw.check([IDENTITY_KEY]) else None
    if found is None or found["token"] != token:
        raise RunError(foreign(found, place=place))


def parse(content: bytes) -> dict[str, Any] | None:
    """Return the identity of a run as it was read from a store; None if that is no run's."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() >= _FIELDS else None


def _underlying(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def foreign(found: dict[str, Any] | None, *, place: str) -> Finding:
    """Return the finding that names the run that answers at a place where ours was expected.

    Args:
        found: The identity in the store there, None if it has none.
        place: ``HOST:PORT``.
    """
    who = "something that is not a run of paceline" if found is None else f"the run {describe(found)}"
    return Finding(
        "port-held-by-other",
        f"{place} is held by {who}, not by this run",
        where=place,
        why="ranks of two runs in one store would break each other",
        fix="give this run another port, or do not set MASTER_ADDR and MASTER_PORT in the script",
    )


def describe(identity: dict[str, Any]) -> str:
    """Return who a run is, in words: its script, id, user, host and process."""
    return (
        f"of {identity['script']} (id {identity['run_id']}, user {identity['user']}, host {identity['host']}, "
        f"launcher pid {identity['pid']})"
    )
