"""Where the nodes of a run meet: torch's rendezvous, with the port held open and the run named in the store.

Builds torch's own handlers; what it adds is that ports are bound before anybody is told of them, that
addresses are numeric, and that nobody joins the store of a foreign run.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous import registry as torch_registry
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from paceline.errors import Finding, RunError, SetupError
from paceline.launcher import guard, host
from paceline.launcher.options import Options
from paceline.launcher.plan import Plan

_STORE_TIMEOUT = timedelta(seconds=300)
_DEFAULT_JOIN_S = 600


@dataclass
class Meeting:
    """What a node needs to take part in a run.

    Attributes:
        handler: torch's rendezvous handler.
        store: The raw store of the run, None where torch keeps it to itself (etcd).
        identity: The run as its head wrote it into the store.
        address: Numeric address of this node as the others reach it.
        endpoint: ``HOST:PORT`` of the store, numeric.
        hosts_store: Whether the store lives in this process: it must outlast the others.
    """

    handler: RendezvousHandler
    store: TCPStore | None
    identity: dict[str, Any]
    address: str
    endpoint: str
    hosts_store: bool


class HeldRendezvous(RendezvousHandler):
    """Static rendezvous on a store that exists already: its port was bound when it was chosen.

    torch's own static handler makes the store itself, from a number that somebody guessed, and waits for
    the other nodes inside a constructor that no signal can interrupt.
    """

    def __init__(
        self,
        store: TCPStore,
        *,
        rank: int,
        num_nodes: int,
        run_id: str,
        address: str,
        join_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._join_s = join_s
        self._say = say
        self._store = store
        self._for_ranks = store
        self._rank = rank
        self._num_nodes = num_nodes
        self._run_id = run_id
        self._address = address
        self._rounds = 0

    def get_backend(self) -> str:
        return "static"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        prefix = f"torchelastic/{self._run_id}/{self._rounds}"
        if self._rounds and self._num_nodes == 1:
            # Ranks of the attempt before have left their addresses in the store.
            self._for_ranks = _open_store(self._address, 0, must=True) or self._store
        self._rounds += 1
        store = PrefixStore(prefix, self._store)
        if self._num_nodes > 1:
            self._await_all(store)
        return RendezvousInfo(
            store,
            self._rank,
            self._num_nodes,
            RendezvousStoreInfo(self._address, self._for_ranks.port),
        )

    def _await_all(self, store: PrefixStore) -> None:
        """Say that this node is here and wait for the others, where a signal can interrupt it.

        Raises:
            RunError: Another node has this node's rank, or some have not come in time.
        """
        me = f"{socket.gethostname()} (launcher pid {os.getpid()})"
        other = store.compare_set(f"here/{self._rank}", "", me).decode()
        if other != me:
            raise RunError(_same_rank_twice(self._rank, me, other))
        start = time.monotonic()
        told = start
        while missing := [node for node in range(self._num_nodes) if not store.check([f"here/{node}"])]:
            waited = time.monotonic() - start
            if waited > self._join_s:
                raise RunError(_nodes_missing(missing, self._num_nodes, waited))
            if time.monotonic() - told > 5:
                told = time.monotonic() + 25
                self._say(f"waiting for node {_listed(missing)} of {self._num_nodes} for {waited:.0f} s")
            time.sleep(0.05)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def meet(
    options: Options, plan: Plan, *, script: str, run_name: str, first_attempt: int, say: Callable[[str], None]
) -> Meeting:
    """Open or reach the store of the run, and return how to meet there.

    Args:
        options: What was asked for.
        plan: What was decided.
        script: Name of the script, part of the run's identity.
        run_name: Name of the run folder, published by the head.
        first_attempt: Number that the first attempt has in that folder, published by the head.
        say: Prints a line while this waits.

    Raises:
        SetupError: The port is taken, or a name does not resolve.
        RunError: Another run answers, or nobody does in time.
    """
    mine = {**_identity(options, script, run_name), "first_attempt": first_attempt}
    if plan.rendezvous not in ("local", "static", "c10d"):
        return _meet_elsewhere(options, plan, mine)
    head = _resolve(plan.host)
    local = tuple(address for _, address in host.addresses())
    port = int(plan.port.value)
    hosts = _hosts_store(options, plan, head=head, local=local)
    if hosts:
        store = _open_store(head, port, must=plan.rendezvous != "c10d" or options.one_node)
        hosts = store is not None
    if not hosts:
        store = _reach_store(head, port, deadline_s=_join_timeout(options), say=say)
    assert store is not None
    identity = _agree_on_run(store, mine, hosts=hosts, place=f"{head}:{store.port}")
    address = options.local_addr or (head if head in local else host.address_towards(head))
    return Meeting(
        handler=_handler(options, plan, store, identity=identity, address=address, head=head, say=say),
        store=store,
        identity=identity,
        address=address,
        endpoint=f"{head}:{store.port}",
        hosts_store=hosts,
    )


def _identity(options: Options, script: str, run_name: str) -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # containers run under ids without a name
    return {
        "token": uuid.uuid4().hex,
        "run_id": options.rdzv_id,
        "nodes": [options.min_nodes, options.max_nodes],
        "script": os.path.basename(script),
        "run_name": run_name,
        "user": user,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def _resolve(name: str) -> str:
    try:
        return host.resolve(name)[0]
    except OSError as error:
        raise SetupError(
            Finding(
                "hostname-unresolvable",
                f"the head's name {name} does not resolve on {socket.gethostname()}: {error.strerror}",
                where=socket.gethostname(),
                fix="use the head's numeric address, as `hostname -I` prints it there",
            )
        ) from None


def _hosts_store(options: Options, plan: Plan, *, head: str, local: tuple[str, ...]) -> bool:
    """Return whether this node is to host the store.

    torch compares host names, which fails for an address of a second interface: then nobody hosts.
    """
    if plan.rendezvous == "static":
        return options.node_rank == 0
    asked = dict(options.rdzv_conf).get("is_host", "").lower()
    if asked:
        return asked in ("1", "true", "t", "yes", "y")
    return head in local or head.startswith("127.") or head == "::1"


def _open_store(head: str, port: int, *, must: bool) -> TCPStore | None:
    """Host the store on a port that is bound now; None if it is taken and somebody else may host it.

    Raises:
        SetupError: The port is taken, and nobody else could be the host.
    """
    try:
        listener = host.listen(head, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _cannot_listen(port, error) from None
        if not must:
            return None
        raise _port_in_use(port) from None
    bound = listener.getsockname()[1]
    store = TCPStore(
        head,
        bound,
        is_master=True,
        timeout=_STORE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store


def _cannot_listen(port: int, error: OSError) -> SetupError:
    return SetupError(
        Finding(
            "option-invalid",
            f"cannot listen on port {port}: {error.strerror}",
            where=socket.gethostname(),
            fix="ports below 1024 need privileges; choose one above",
        )
    )


def _port_in_use(port: int) -> SetupError:
    holder = host.holder_of(port)
    return SetupError(
        Finding(
            "port-in-use",
            f"port {port} is held by {holder or 'another process (of another user, so it is not visible)'}",
            where=socket.gethostname(),
            fix="end that process, or give another port; on one node leave the port out and a free one is taken",
        )
    )


def _join_timeout(options: Options) -> float:
    settings = dict(options.rdzv_conf)
    return float(settings.get("join_timeout", settings.get("timeout", _DEFAULT_JOIN_S)))


def _reach_store(head: str, port: int, *, deadline_s: float, say: Callable[[str], None]) -> TCPStore:
    """Connect to the head's store as soon as it listens.

    Plain sockets ask first, because torch's client prints stack traces while it waits and cannot be
    interrupted.

    Raises:
        RunError: Nobody has answered within ``deadline_s``.
    """
    start = time.monotonic()
    told = start
    while True:
        trouble = _try_connect(head, port)
        if trouble is None:
            return TCPStore(head, port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)
        now = time.monotonic()
        if now - start > deadline_s:
            raise RunError(_unreachable(head, port, trouble, waited_s=now - start))
        if now - told > 5:
            told = now + 25
            say(f"waiting for the head at {head}:{port} for {now - start:.0f} s: {trouble.strerror or trouble}")
        time.sleep(0.2)


def _try_connect(head: str, port: int) -> OSError | None:
    try:
        socket.create_connection((head, port), timeout=3).close()
    except OSError as error:
        return error
    return None


def _unreachable(head: str, port: int, trouble: OSError, *, waited_s: float) -> Finding:
    refused = isinstance(trouble, ConnectionRefusedError)
    silent = isinstance(trouble, TimeoutError)
    name = "port-refused" if refused else "port-filtered" if silent else "master-unreachable"
    meaning = (
        "the host answers, nothing listens on the port"
        if refused
        else "packets to it vanish: a firewall, or the host is down"
        if silent
        else str(trouble.strerror)
    )
    return Finding(
        name,
        f"the head at {head}:{port} was not reached within {waited_s:.0f} s: {meaning}",
        where=socket.gethostname(),
        fix="start the head (node rank 0) with the same address and port, and open the port between the nodes",
    )


def _agree_on_run(store: TCPStore, mine: dict[str, Any], *, hosts: bool, place: str) -> dict[str, Any]:
    """Write or read the run's identity, and refuse a run that is not this one.

    Raises:
        RunError: The store belongs to another run, or to something that is not paceline.
    """
    if hosts:
        store.set(guard.IDENTITY_KEY, json.dumps(mine))
        return mine
    deadline = time.monotonic() + 10  # the head writes it right after it listens
    while not store.check([guard.IDENTITY_KEY]):
        if time.monotonic() > deadline:
            raise RunError(guard.foreign(None, place=place))
        time.sleep(0.05)
    theirs: dict[str, Any] = json.loads(store.get(guard.IDENTITY_KEY))
    alone = mine["nodes"] == [1, 1]
    if alone or theirs["run_id"] != mine["run_id"] or theirs["script"] != mine["script"]:
        raise RunError(guard.foreign(theirs, place=place))
    if theirs["nodes"] != mine["nodes"]:
        raise RunError(_sizes_differ(theirs, mine))
    return theirs


def _sizes_differ(theirs: dict[str, Any], mine: dict[str, Any]) -> Finding:
    def shown(nodes: list[int]) -> str:
        return str(nodes[0]) if nodes[0] == nodes[1] else f"{nodes[0]}:{nodes[1]}"

    return Finding(
        "world-size-mismatch",
        f"the head on {theirs['host']} expects --nnodes {shown(theirs['nodes'])}, "
        f"this node was started with --nnodes {shown(mine['nodes'])}",
        where=f"{theirs['host']} and {mine['host']}",
        fix=f"--nnodes {shown(theirs['nodes'])} on every node",
    )


def _listed(nodes: list[int]) -> str:
    shown = ", ".join(map(str, nodes[:10]))
    return shown if len(nodes) <= 10 else f"{shown} and {len(nodes) - 10} more"


def _same_rank_twice(rank: int, me: str, other: str) -> Finding:
    return Finding(
        "duplicate-ranks",
        f"two nodes have node rank {rank}: {other} and {me}",
        where=me,
        fix="give each node its own --node-rank, from 0",
    )


def _nodes_missing(missing: list[int], num_nodes: int, waited_s: float) -> Finding:
    return Finding(
        "node-missing",
        f"node {_listed(missing)} of {num_nodes} did not come within {waited_s:.0f} s",
        where=socket.gethostname(),
        fix="start paceline run there with its --node-rank; longer waits: --rdzv-conf join_timeout=1200",
    )


def _handler(
    options: Options,
    plan: Plan,
    store: TCPStore,
    *,
    identity: dict[str, Any],
    address: str,
    head: str,
    say: Callable[[str], None],
) -> RendezvousHandler:
    if plan.rendezvous != "c10d":
        return HeldRendezvous(
            store,
            rank=options.node_rank if plan.rendezvous == "static" else 0,
            num_nodes=options.max_nodes,
            run_id=identity["token"] if options.rdzv_id == "none" else options.rdzv_id,
            address=head,
            join_s=_join_timeout(options),
            say=say,
        )
    settings: dict[str, Any] = {
        "keep_alive_interval": plan.keep_alive_s,
        "last_call_timeout": plan.last_call_s,
        **dict(options.rdzv_conf),
    }
    settings.pop("is_host", None)
    parameters = _parameters(options, "c10d", f"{head}:{store.port}", address=address, settings=settings)
    # A client of its own: a thread that waits in one client would block the others.
    own: TCPStore = store.clone()  # type: ignore[attr-defined]
    return create_handler(own, C10dRendezvousBackend(own, parameters.run_id), parameters)


def _meet_elsewhere(options: Options, plan: Plan, identity: dict[str, Any]) -> Meeting:
    """Rendezvous by a backend that torch (or a plug-in of it) brings, such as etcd."""
    address = options.local_addr or next((a for _, a in host.addresses() if not a.startswith("127.")), "127.0.0.1")
    parameters = _parameters(options, plan.rendezvous, plan.host, address=address, settings=dict(options.rdzv_conf))
    try:
        handler = torch_registry.get_rendezvous_handler(parameters)
    except (ValueError, ImportError) as error:
        raise SetupError(
            Finding(
                "option-invalid",
                f"--rdzv-backend {plan.rendezvous} cannot be used: {str(error).splitlines()[0]}",
                where="command line",
                fix="--rdzv-backend c10d needs nothing to be installed",
            )
        ) from None
    return Meeting(handler, None, identity, address=address, endpoint=plan.host, hosts_store=False)


def _parameters(
    options: Options, backend: str, endpoint: str, *, address: str, settings: dict[str, Any]
) -> RendezvousParameters:
    return RendezvousParameters(
        backend=backend,
        endpoint=endpoint,
        run_id=options.rdzv_id,
        min_nodes=options.min_nodes,
        max_nodes=options.max_nodes,
        local_addr=address,
        **settings,
    )
