"""Meet the other nodes of a run: torch's rendezvous on a port that is bound before it is published.

Builds torch's own handlers and adds three things: ports are bound before any node learns of them,
addresses are numeric, and no node joins the store of another run.
"""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous import registry as torch_registry
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    create_handler,
)

from paceline import deadlines, env
from paceline.errors import Notice, RunError, SetupError
from paceline.launch.channel import liveness, run_secret
from paceline.launch.channel.run_secret import SharedFile
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.starter_defaults import POD
from paceline.launch.rendezvous.gathering import Gathering
from paceline.launch.rendezvous.held_rendezvous import HeldRendezvous
from paceline.launch.rendezvous.node_wait import join_limit_s, rejoin_limit_s
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived
from paceline.launch.rendezvous.roll_call import Roll
from paceline.launch.rendezvous.store import (
    is_only_address,
    open_or_reach,
    publish_identity,
    read_identity,
)
from paceline.machine import host, interfaces
from paceline.machine.signed_store import SignedStore
from paceline.machine.signing import Signing
from paceline.rundir.files import RUNS
from paceline.world import expand_nodelist


@dataclass
class NodeMeeting:
    """What a node needs to take part in a run."""

    handler: RendezvousHandler  # torch's rendezvous handler
    store: TCPStore | None  # the raw store of the run; None if torch keeps it private (etcd)
    identity: dict[str, Any]  # the run's identity, as the head wrote it into the store
    address: str  # numeric address of this node, as the other nodes reach it
    endpoint: str  # ``HOST:PORT`` of the store, numeric
    hosts_store: bool  # whether the store lives in this process, which must then outlast the others
    # whether the store must show late nodes which hosts have the places of the run
    places: bool = False
    # watches the nodes until the first attempt begins; None with one node or without a roll call
    gathering: Gathering | None = None
    # shows the node that hosts the store when this launcher has ended; None there
    connection: liveness.Connection | None = None
    # how launchers sign what they write for each other
    signing: Signing = field(default_factory=Signing)
    # the file with the run's secret; None unless this node created it
    shared_secret: SharedFile | None = None

    @property
    def signed_store(self) -> SignedStore:
        """The raw store, in which launchers sign what they write if the run has a secret."""
        return SignedStore(self.store, self.signing)

    def scope(self, port: int) -> str:
        """Return what identifies the current attempt: its signatures are invalid in all others.

        It is the port where its ranks meet; c10d rendezvous opens one for each attempt. The address
        is not used: nodes may know the head by different addresses.
        """
        rounds = self.handler.rounds if isinstance(self.handler, HeldRendezvous) else 0
        return f"{port}/{rounds}"

    @property
    def num_before(self) -> int | None:
        """How many times nodes had met before they met last, the same on all nodes.

        A node that comes later has not counted them itself. None if the backend does not tell.
        """
        if isinstance(self.handler, HeldRendezvous):
            return self.handler.rounds - 1
        if isinstance(self.handler, DynamicRendezvousHandler):
            return int(self.handler._state_holder.state.round)
        return None


def meet(
    options: Options,
    plan: Plan,
    *,
    script: str,  # its name, part of the run's identity
    run_name: str,  # name of the run folder, published by the head
    first_attempt: int,  # in that folder, published by the head
    inform: Callable[[Notice], None],
) -> NodeMeeting:
    """Open or reach the store of the run, wait for the other nodes, and return how to meet there.

    Raises SetupError if the port is taken, or a name does not resolve; RunError if another run
    answers, nothing answers in time, or nodes are missing or disagree.
    """
    identity = {**_identity(options, script, run_name), "first_attempt": first_attempt}
    if plan.rendezvous not in ("local", "static", "c10d"):
        return _meet_elsewhere(options, plan, identity)
    local = tuple(address for _, address in interfaces.addresses())
    notes = _make_notes(options, plan, identity, local=local)
    own_secret = b"" if options.one_node else run_secret.given(options)
    node = _Node(options, plan, identity, own_secret, local, notes, inform)
    secret_file = SharedFile(notes.folder, identity["token"])
    gathering = None
    try:
        entry = _enter(node, secret_file)
        address = options.local_addr or _own_address(entry.head, local)
        if not options.one_node and not options.no_check:
            gathering = _await_nodes(node, entry, secret_file)
        # The connection is signed too, so it must wait until it is clear whether all nodes sign.
        connection = None if entry.is_head else _connect(node, entry)
    except BaseException:
        secret_file.remove()  # only the node that hosts the store has created it
        raise
    finally:
        notes.remove()
    has_fixed_size = 1 < options.min_nodes == options.max_nodes
    return NodeMeeting(
        handler=_handler(node, entry, address=address, gathering=gathering),
        store=entry.store,
        identity=entry.identity,
        address=address,
        endpoint=entry.place,
        hosts_store=entry.is_head,
        places=plan.rendezvous == "c10d" and has_fixed_size and not options.no_check,
        gathering=gathering,
        connection=connection,
        signing=entry.signing,
        shared_secret=secret_file if entry.is_head else None,
    )


@dataclass(frozen=True)
class _Node:
    """What this node knows before it has reached the store."""

    options: Options  # the options of this launcher
    plan: Plan  # the plan of the run
    identity: dict[str, Any]  # the run's identity, if this node is the one to publish it
    own_secret: bytes  # the secret that this node was given; empty if none was given
    local: tuple[str, ...]  # addresses of this host
    notes: Notes  # the notes of the nodes in the shared folder
    inform: Callable[[Notice], None]  # prints a notice

    @property
    def launcher(self) -> str:
        """Name of this launcher in the store."""
        return liveness.name_of(self.identity["host"], self.identity["pid"])


@dataclass(frozen=True)
class _Entry:
    """How this node has come into the store of its run."""

    store: TCPStore  # the store
    head: str  # numeric address of its host
    is_head: bool  # whether the store lives in this process
    identity: dict[str, Any]  # the run's identity, as the head published it
    secret: bytes  # the run's secret; empty without a secret
    signing: Signing  # how launchers sign what they write for each other

    @property
    def place(self) -> str:
        """``HOST:PORT`` of the store."""
        return f"{self.head}:{self.store.port}"

    @property
    def signed_store(self) -> SignedStore:
        """The store, in which launchers sign what they write if the run has a secret."""
        return SignedStore(self.store, self.signing)


def _enter(node: _Node, secret_file: SharedFile) -> _Entry:
    """Open or reach the store of the run, and publish or check the run's identity."""
    store, head, is_head = open_or_reach(
        node.options,
        node.plan,
        identity=node.identity,
        local=node.local,
        notes=node.notes,
        inform=node.inform,
    )
    if is_head:
        return _enter_as_head(node, store, head, secret_file)
    return _enter_as_client(node, store, head)


def _enter_as_head(node: _Node, store: TCPStore, head: str, secret_file: SharedFile) -> _Entry:
    identity, secret = run_secret.of_head(node.options, node.identity, node.own_secret, secret_file)
    signing = run_secret.signing(secret, identity, inform=node.inform)
    entry = _Entry(store, head, True, identity, secret, signing)
    if not node.options.one_node:  # before the other nodes learn that this is their run
        address = head if is_only_address(node.options, node.plan) else ""
        liveness.Listener(entry.signed_store, token=identity["token"], address=address)
    publish_identity(store, identity)
    return entry


def _enter_as_client(node: _Node, store: TCPStore, head: str) -> _Entry:
    place = f"{head}:{store.port}"
    identity = read_identity(store, node.identity, place=place)
    secret_file = SharedFile(node.notes.folder, identity["token"])
    secret = run_secret.of_run(identity, node.own_secret, secret_file, place=place)
    signing = run_secret.signing(secret, identity, inform=node.inform)
    return _Entry(store, head, False, identity, secret, signing)


def _own_address(head: str, local: tuple[str, ...]) -> str:
    """Return the numeric address of this node, as the other nodes reach it."""
    return head if head in local else host.address_towards(head)


def _await_nodes(node: _Node, entry: _Entry, secret_file: SharedFile) -> Gathering | None:
    """Call the roll, and return what watches the nodes from then on.

    Raises RunError if nodes are missing or disagree, or this node does not have the run's secret.
    """
    # the head prints the same
    is_quiet = node.options.starter_defaults.shared_output and not entry.is_head
    inform = (lambda notice: None) if is_quiet else node.inform
    roll = _call_roll(node, entry, inform=inform)
    if roll.is_signed and not entry.secret:
        raise RunError(run_secret.lost(entry.place))
    if entry.is_head and (node.plan.rendezvous == "static" or not entry.signing.is_on):
        secret_file.remove()  # all have read it, and no node joins later
    if node.options.min_nodes != node.options.max_nodes:
        return None  # torch begins with the remaining nodes
    return Gathering(
        entry.signed_store,
        roll.members,
        launcher=node.launcher,
        num_nodes=node.options.max_nodes,
        inform=inform,
        node_timeout_s=node_timeout_s(node.options),
    )


def _call_roll(node: _Node, entry: _Entry, *, inform: Callable[[Notice], None]) -> Roll:
    is_static = node.plan.rendezvous == "static"

    def arrived(identity: dict[str, Any], rank: int) -> Arrived:
        nodes = tuple(identity["nodes"])
        return Arrived(0, rank if is_static else None, identity["host"], identity["pid"], nodes)

    roll = Roll(
        entry.signed_store,
        arrived(node.identity, node.options.node_rank),
        arrived(entry.identity, 0),
        is_head=entry.is_head,
        limit_s=join_limit_s(node.options),
        hosts_by_rank=hosts_by_rank(node.options),
        notes=node.notes,
        inform=inform,
        needs_secret=bool(node.own_secret),
        in_pods=node.options.starter_defaults.starter == POD,
    )
    roll.answer()
    return roll


def _connect(node: _Node, entry: _Entry) -> liveness.Connection:
    """Show the node that hosts the store, from now on, when this launcher has ended."""
    token = entry.identity["token"]
    return liveness.Connection(entry.signed_store, entry.head, token=token, name=node.launcher)


def _make_notes(
    options: Options, plan: Plan, identity: dict[str, Any], *, local: tuple[str, ...]
) -> Notes:
    folder = Path(options.run_dir).parent if options.run_dir is not None else RUNS
    note = Note(
        script=identity["script"],
        run_id=options.rdzv_id,
        rank=options.node_rank if plan.rendezvous == "static" else None,
        host=identity["host"],
        pid=identity["pid"],
        name=plan.host,
        address="",
        port=int(plan.port.value),
        listens=False,
        addresses=tuple(address for address in local if not interfaces.is_loopback(address)),
    )
    return Notes(folder / ".roll-call", note)


def node_timeout_s(options: Options) -> float:
    """Return how long a node may be silent without any training step, in seconds."""
    is_typed = "node_timeout" in dict(options.typed)
    return options.node_timeout if is_typed else deadlines.scaled(deadlines.NODE_TIMEOUT)


def hosts_by_rank(options: Options) -> list[str]:
    """Return the host of each node rank if the starter has all nodes of the run; else empty."""
    if len(options.starter_defaults.hosts) == options.max_nodes:
        return list(options.starter_defaults.hosts)
    names = env.read(env.STEP_NODELIST)
    if names is None or env.read(env.NODEID) != str(options.node_rank):
        return []
    hosts = expand_nodelist(names)
    return hosts if len(hosts) == options.max_nodes else []


def _identity(options: Options, script: str, run_name: str) -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # containers run under user ids without a name
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


def _handler(
    node: _Node, entry: _Entry, *, address: str, gathering: Gathering | None
) -> RendezvousHandler:
    if node.plan.rendezvous == "c10d":
        return _dynamic_handler(node, entry, address=address)
    options = node.options
    handler = HeldRendezvous(
        entry.store,
        rank=options.node_rank if node.plan.rendezvous == "static" else 0,
        num_nodes=options.max_nodes,
        run_id=entry.identity["token"] if options.rdzv_id == "none" else options.rdzv_id,
        address=entry.head,
        join_s=rejoin_limit_s(options),
        inform=node.inform,
        signing=entry.signing,
    )
    if gathering is not None:
        handler.lost = lambda: gathering.lost
    return handler


def _dynamic_handler(node: _Node, entry: _Entry, *, address: str) -> RendezvousHandler:
    settings: dict[str, Any] = {
        "keep_alive_interval": node.plan.keep_alive_s,
        "last_call_timeout": node.plan.last_call_s,
        **dict(node.options.rdzv_conf),
    }
    settings.pop("is_host", None)
    parameters = _parameters(node.options, "c10d", entry.place, address=address, settings=settings)
    # A separate client: a thread that waits in a shared client would block the others.
    client: TCPStore = entry.store.clone()  # type: ignore[attr-defined]
    return create_handler(client, C10dRendezvousBackend(client, parameters.run_id), parameters)


def _meet_elsewhere(options: Options, plan: Plan, identity: dict[str, Any]) -> NodeMeeting:
    """Return the meeting of a backend from torch or a torch plug-in, such as etcd."""
    addresses = [address for _, address in interfaces.addresses()]
    outer = [address for address in addresses if not address.startswith("127.")]
    address = options.local_addr or next(iter(outer), "127.0.0.1")
    parameters = _parameters(
        options, plan.rendezvous, plan.host, address=address, settings=dict(options.rdzv_conf)
    )
    try:
        handler = torch_registry.get_rendezvous_handler(parameters)
    except (ValueError, ImportError) as error:
        raise SetupError.of(
            "option-invalid",
            f"--rdzv-backend {plan.rendezvous} cannot be used: {str(error).splitlines()[0]}",
            where="command line",
            fix="--rdzv-backend c10d needs nothing to be installed",
        ) from None
    return NodeMeeting(
        handler, None, identity, address=address, endpoint=plan.host, hosts_store=False
    )


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
