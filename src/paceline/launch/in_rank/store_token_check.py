"""Check the store's token: a rank that connects to the store of another run reports it and ends.

Every run has a token. The launcher of the head writes it, with the run's name, to the store
of the rendezvous. Each rank knows the token of its run.

Ranks write all keys below one that only their run can name, so the keys of two runs never mix: a
digest of the ranks' secret, or the token where they have none. The launcher writes that key too.
What others write under the run's name is only read to tell whose store it is, if that key is
missing.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from paceline import env
from paceline.errors import Finding, RunError
from paceline.launch.in_rank import default_group
from paceline.machine.signing import derive

# Raw key without a prefix, so that every client can read it.
IDENTITY_KEY = "paceline/run"
# The head writes the token right after it has opened the store; a rank of another node may connect
# before that.
_PATIENCE_S = 5.0
_OTHERS_S = 1.0  # the same if the store names another run, which a stranger may have written
_FIELDS = {"token", "run_id", "script", "user", "host", "pid"}


def install(
    begin: Callable[[], None],  # called before it connects
) -> None:
    """Check the token whenever this rank connects to the store of ``env://`` rendezvous."""
    # by its full name, because the attribute `torch.distributed.rendezvous` is a function
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def checked(
        hostname: str, port: int, rank: int, world_size: int, *args: Any, **kwargs: Any
    ) -> Any:
        begin()
        token = env.read(env.RUN_TOKEN)
        if token is None or env.read(env.USE_AGENT_STORE) != "True":
            return create(hostname, port, rank, world_size, *args, **kwargs)
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store = create(hostname, port, rank, world_size, *args, **kwargs)
        own = own_key(env.read(env.STORE_SECRET) or "", token)
        _require_own(store, own, token, place=f"{hostname}:{port}")
        # The attempt and the group are part of the prefix because the store outlives both, and
        # still holds the addresses at which the ranks met before.
        attempt = env.read(env.RESTART_COUNT) or 0
        group = f"{world_size}.{default_group.num_ended(rank, world_size)}"
        return PrefixStore(f"{own}/{attempt}/{group}", store)

    rendezvous._create_c10d_store = checked


def own_key(
    secret: str,  # the ranks' secret; empty for a run without one
    token: str,  # the run's token
) -> str:
    """Return the key below which the ranks of a run write, and which its launcher writes."""
    return f"paceline/{derive(secret.encode(), 'keys') if secret else token}"


def _require_own(store: Any, own: str, token: str, *, place: str) -> None:
    raw = _underlying(store)
    begun = time.monotonic()
    while not raw.check([own]):
        identity = parse(raw.get(IDENTITY_KEY)) if raw.check([IDENTITY_KEY]) else None
        is_others = identity is not None and identity["token"] != token
        if time.monotonic() - begun > (_OTHERS_S if is_others else _PATIENCE_S):
            raise RunError(foreign(identity, place=place))
        time.sleep(0.02)


def parse(content: bytes) -> dict[str, Any] | None:
    """Return the identity of the run that a store belongs to; None if it is not paceline's."""
    try:
        identity = json.loads(content)
    except ValueError:
        return None
    return identity if isinstance(identity, dict) and identity.keys() >= _FIELDS else None


def _underlying(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def foreign(
    identity: dict[str, Any] | None,  # the identity in the store, None if it has none
    *,
    place: str,  # ``HOST:PORT``
) -> Finding:
    """Return the finding that names the run to which a store belongs, instead of ours."""
    holder = (
        "something that is not a run of paceline"
        if identity is None
        else f"the run {describe(identity)}"
    )
    return Finding(
        "port-held-by-other",
        f"{place} is held by {holder}, not by this run",
        where=place,
        why="ranks of two runs in one store would break each other",
        fix="give this run another port, or do not set MASTER_ADDR and MASTER_PORT in the script",
    )


def describe(identity: dict[str, Any]) -> str:
    """Return the identity of a run in words: its script, id, user, host and process."""
    return (
        f"of {identity['script']} (id {identity['run_id']}, user {identity['user']}, host"
        f" {identity['host']}, launcher pid {identity['pid']})"
    )
