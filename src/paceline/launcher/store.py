"""The store of a run: hosted here on a port that is bound already, or reached at the head.

Whoever reaches one makes sure that it is this run's before anything is written into it.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from paceline.errors import Finding, RunError, SetupError
from paceline.launcher import guard, host, ports, unreached
from paceline.launcher.knock import STORE_TIMEOUT, banner, enter, knock, look_up
from paceline.launcher.notes import Notes
from paceline.launcher.options import Options
from paceline.launcher.plan import Plan

_DEFAULT_JOIN_S = 600
# A name that does not resolve is mostly misspelt; of a service that is just starting it comes a little later.
_NAME_S = 6.0
_NOTE_AFTER_S = 3.0
# torch's server begins with a client of its own, which a firewall can keep out for minutes.
_OWN_S = 10.0


def open_or_reach(
    options: Options, plan: Plan, *, local: tuple[str, ...], notes: Notes, say: Callable[[str], None]
) -> tuple[TCPStore, str, bool]:
    """Return the store of the run, the head's numeric address, and whether this node hosts the store."""
    port = int(plan.port.value)
    head = ""
    if options.one_node or (plan.rendezvous == "static" and options.node_rank == 0):
        head = _resolve(plan.host)
    elif plan.rendezvous == "c10d":
        found = look_up(plan.host)
        head = "" if isinstance(found, str) else found[0]
    if _hosts_store(options, plan, head=head, local=local):
        store = open_store(head, port, must=plan.rendezvous != "c10d" or options.one_node)
        if store is not None:
            notes.mine = replace(notes.mine, address=head, port=store.port, listens=True)
            return store, head, True
    limit_s = join_limit_s(options)
    store, head = _reach_store(plan.host, port, limit_s=limit_s, notes=notes, say=say)
    return store, head, False


def _resolve(name: str) -> str:
    found = look_up(name)
    if isinstance(found, str):
        raise SetupError(
            Finding(
                "hostname-unresolvable",
                f"the head's name {name} does not resolve on {socket.gethostname()}: {found}",
                where=socket.gethostname(),
                fix="use the head's numeric address, as `hostname -I` prints it there",
            )
        )
    return found[0]


def _hosts_store(options: Options, plan: Plan, *, head: str, local: tuple[str, ...]) -> bool:
    """Return whether this node is to host the store.

    torch compares host names, which fails for an address of a second interface: then nobody hosts.
    """
    if plan.rendezvous == "static":
        # A second node 0 on another host is to meet the first, which tells both.
        foreign = bool(head) and head not in local and not host.is_loopback(head) and not options.no_check
        return options.node_rank == 0 and not (
            foreign and not options.one_node and knock(head, int(plan.port.value)).kind == "open"
        )
    asked = dict(options.rdzv_conf).get("is_host", "").lower()
    if asked:
        return asked in ("1", "true", "t", "yes", "y")
    return head in local or host.is_loopback(head)


def open_store(head: str, port: int, *, must: bool) -> TCPStore | None:
    """Host the store on a port that is bound now; None if it is taken and somebody else may host it.

    Raises:
        SetupError: The port is taken, and nobody else could be the host.
    """
    try:
        listener = host.listen(head, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ports.cannot_listen(port, error) from None
        if not must:
            return None
        raise ports.in_use(port) from None
    bound = listener.getsockname()[1]

    def make() -> TCPStore | None:
        return TCPStore(
            head,
            bound,
            is_master=True,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    store = host.within(_OWN_S, make, None)
    if store is None:
        raise RunError(_not_to_itself(head, bound))
    return store


def _not_to_itself(head: str, port: int) -> Finding:
    return Finding(
        "port-filtered",
        f"this node, the head, does not reach its own port {port} at {head}: a firewall drops or rejects it",
        where=socket.gethostname(),
        fix="let all packets of this machine to itself pass: iptables -I INPUT -i lo -j ACCEPT",
    )


def join_limit_s(options: Options) -> float:
    """Return how long the start may wait for nodes."""
    settings = dict(options.rdzv_conf)
    usual = _DEFAULT_JOIN_S if options.no_check else options.roll_call_timeout
    return float(settings.get("join_timeout", settings.get("timeout", usual)))


def rejoin_limit_s(options: Options) -> float:
    """Return how long a restart may wait for nodes: some have ranks that take their time to end."""
    settings = dict(options.rdzv_conf)
    return float(settings.get("join_timeout", settings.get("timeout", _DEFAULT_JOIN_S)))


def _reach_store(
    name: str, port: int, *, limit_s: float, notes: Notes, say: Callable[[str], None]
) -> tuple[TCPStore, str]:
    """Connect to the head's store as soon as it listens; return it and the head's numeric address.

    Raises:
        SetupError: The head's name does not resolve.
        RunError: Nobody has answered within ``limit_s``, or something that is no store.
    """
    start = told = time.monotonic()
    while True:
        tried = knock(name, port)
        waited_s = time.monotonic() - start
        if tried.kind == "open":
            return _enter(tried.address, port), tried.address
        if waited_s > _NOTE_AFTER_S:
            notes.leave(address=tried.address, trouble=unreached.in_words(tried))
        limited_s = min(limit_s, _NAME_S) if tried.kind == "unresolved" else limit_s
        if waited_s > limited_s:
            notes.leave(address=tried.address, trouble=unreached.in_words(tried), ended=True)
            finding = unreached.judge(tried, notes.mine, notes.read(), waited_s=waited_s)
            raise SetupError(finding) if tried.kind == "unresolved" else RunError(finding)
        if time.monotonic() - told > 5:
            told = time.monotonic() + 25
            say(f"waiting for the head at {name}:{port} for {waited_s:.0f} s: {unreached.in_words(tried)}")
        time.sleep(0.2)


def _enter(address: str, port: int) -> TCPStore:
    store = enter(address, port)
    if store is None:
        said = banner(address, port)
        foreign = guard.foreign(None, place=f"{address}:{port}")
        fix = f"another port on every node; on the host of {address}, ss -tlnp tells who holds {port}"
        raise RunError(replace(foreign, evidence=(f"it says: {said}",) if said else (), why="", fix=fix))
    return store


def agree_on_run(store: TCPStore, mine: dict[str, Any], *, hosts: bool, place: str) -> dict[str, Any]:
    """Write or read the run's identity, and refuse a run that is not this one.

    Raises:
        RunError: The store belongs to another run, or to something that is not paceline.
    """
    if hosts:
        store.set(guard.IDENTITY_KEY, json.dumps(mine))
        return mine
    deadline = time.monotonic() + 5  # the head writes it right after it listens
    while not store.check([guard.IDENTITY_KEY]):
        if time.monotonic() > deadline:
            raise RunError(guard.foreign(None, place=place))
        time.sleep(0.05)
    theirs: dict[str, Any] = json.loads(store.get(guard.IDENTITY_KEY))
    alone = mine["nodes"] == [1, 1]
    if alone or theirs["run_id"] != mine["run_id"] or theirs["script"] != mine["script"]:
        raise RunError(guard.foreign(theirs, place=place))
    return theirs
