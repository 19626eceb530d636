"""Meet the other nodes of a run: torch's rendezvous on a port that is bound before it is published.

Builds torch's own handlers and adds three things: ports are bound before any node learns of them,
addresses are numeric, and no node joins the store of another run.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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

from paceline import deadlines, env
from paceline.errors import Finding, Notice, RunError, SetupError
from paceline.launch.channel import liveness, run_secret
from paceline.launch.channel.run_secret import SharedFile
from paceline.launch.channel.signed_store import SignedStore
from paceline.launch.channel.signing import Signing
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.rendezvous import presence
from paceline.launch.rendezvous.gathering import Gathering
from paceline.launch.rendezvous.node_wait import Waiting
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived
from paceline.launch.rendezvous.roll_call import Roll
from paceline.launch.rendezvous.store import (
    agree_on_run,
    is_only_address,
    join_limit_s,
    open_or_reach,
    open_store,
    rejoin_limit_s,
)
from paceline.machine import host, interfaces
from paceline.rundir.files import RUNS
from paceline.world import expand_nodelist


@dataclass
class Meeting:
    """What a node needs to take part in a run.

    Attributes:
        handler: torch's rendezvous handler.
        store: The raw store of the run; None if torch keeps it private (etcd).
        identity: The run's identity, as the head wrote it into the store.
        address: Numeric address of this node, as the other nodes reach it.
        endpoint: ``HOST:PORT`` of the store, numeric.
        hosts_store: Whether the store lives in this process, which must then outlast the others.
        places: Whether the store must show late nodes which hosts have the places of the run.
        gathering: Watches the nodes until the first attempt begins; None with one node or
            without a roll call.
        connection: Shows the node that hosts the store when this launcher has ended; None there.
        signing: How launchers sign what they write for each other.
        shared_secret: The file with the run's secret; None unless this node created it.
    """

    handler: RendezvousHandler
    store: TCPStore | None
    identity: dict[str, Any]
    address: str
    endpoint: str
    hosts_store: bool
    places: bool = False
    gathering: Gathering | None = None
    connection: liveness.Connection | None = None
    signing: Signing = field(default_factory=Signing)
    shared_secret: SharedFile | None = None

    @property
    def signed_store(self) -> SignedStore:
        """The raw store, in which launchers sign what they write if the run has a secret."""
        return SignedStore(self.store, self.signing)

    def scope(self, port: int) -> str:
        """Return what identifies the current attempt: its signatures are invalid in all others.

        Args:
            port: The port where its ranks meet; c10d rendezvous opens one for each attempt. The
                address is not used: nodes may know the head by different addresses.
        """
        rounds = self.handler.rounds if isinstance(self.handler, HeldRendezvous) else 0
        return f"{port}/{rounds}"


class HeldRendezvous(RendezvousHandler):
    """Static rendezvous on an existing store, whose port was bound when it was chosen.

    torch's own static handler creates the store itself, on a port number that the user guessed, and
    waits for the other nodes inside a constructor that no signal can interrupt.
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
        inform: Callable[[Notice], None],
        signing: Signing | None = None,
    ) -> None:
        self._signing = signing
        self._join_s = join_s
        self._inform = inform
        self.lost: Callable[[], Finding | None] = lambda: None
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

    @property
    def rounds(self) -> int:
        """How many times nodes have met here."""
        return self._rounds

    def next_rendezvous(self) -> RendezvousInfo:
        prefix = f"torchelastic/{self._run_id}/{self._rounds}"
        if self._rounds and self._num_nodes == 1:
            # Ranks of the previous attempt have left their addresses in the store.
            self._for_ranks = open_store(self._address, 0, must=True, only=True) or self._store
        self._rounds += 1
        store = PrefixStore(prefix, self._store)
        if self._num_nodes > 1:
            self._await_all(SignedStore(store, self._signing, scope=prefix))
        return RendezvousInfo(
            store,
            self._rank,
            self._num_nodes,
            RendezvousStoreInfo(self._address, self._for_ranks.port),
        )

    def _await_all(self, store: SignedStore) -> None:
        """Announce this node and wait for the others, where a signal can interrupt the wait.

        Raises:
            RunError: Another node has this node's rank, a node is lost, or some have not come in
                time.
        """
        me = Arrived(
            0, self._rank, socket.gethostname(), os.getpid(), (self._num_nodes, self._num_nodes)
        )
        mine = json.dumps(me.to_json())
        other = store.claim(f"here/{self._rank}", mine).decode()
        if other != mine:
            raise RunError(presence.same_rank_twice(Arrived.from_json(json.loads(other)), me))
        waiting = Waiting(self._inform, limit_s=self._join_s)
        while len(present := self._present(store)) < self._num_nodes:
            lost = self.lost()
            if lost is not None:
                raise RunError(lost)
            if waiting.is_over:
                missing = presence.missing(
                    present, head=me, waited_s=waiting.waited_s, hosts=[], evidence=[]
                )
                raise RunError(missing)
            waiting.show(presence.notice(present, head=me, hosts=[], evidence=[], fix=""))
            time.sleep(0.05)

    def _present(self, store: SignedStore) -> list[Arrived]:
        here = store.find_all(f"here/{rank}" for rank in range(self._num_nodes))
        return [Arrived.from_json(json.loads(content)) for content in here.values()]

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
    options: Options,
    plan: Plan,
    *,
    script: str,
    run_name: str,
    first_attempt: int,
    inform: Callable[[Notice], None],
) -> Meeting:
    """Open or reach the store of the run, wait for the other nodes, and return how to meet there.

    Args:
        options: The options of this launcher.
        plan: The plan of the run.
        script: Name of the script, part of the run's identity.
        run_name: Name of the run folder, published by the head.
        first_attempt: Number of the first attempt in that folder, published by the head.
        inform: Prints a notice.

    Raises:
        SetupError: The port is taken, or a name does not resolve.
        RunError: Another run answers, nothing answers in time, or nodes are missing or disagree.
    """
    mine = {**_identity(options, script, run_name), "first_attempt": first_attempt}
    if plan.rendezvous not in ("local", "static", "c10d"):
        return _meet_elsewhere(options, plan, mine)
    local = tuple(address for _, address in interfaces.addresses())
    notes = _make_notes(options, plan, mine, local=local)
    own_secret = b"" if options.one_node else run_secret.given(options)
    shared = SharedFile(notes.folder, mine["token"])
    hosts = False
    try:
        store, head, hosts = open_or_reach(
            options, plan, identity=mine, local=local, notes=notes, inform=inform
        )
        place = f"{head}:{store.port}"
        if hosts:
            mine, secret = run_secret.of_head(options, mine, own_secret, shared)
            signing = run_secret.signing(secret, mine, inform=inform)
        if hosts and not options.one_node:
            # before the other nodes learn that this is their run
            address = head if is_only_address(options, plan) else ""
            liveness.Listener(SignedStore(store, signing), token=mine["token"], address=address)
        identity = agree_on_run(store, mine, hosts=hosts, place=place)
        if not hosts:
            shared = SharedFile(notes.folder, identity["token"])
            secret = run_secret.of_run(identity, own_secret, shared, place=place)
            signing = run_secret.signing(secret, identity, inform=inform)
        signed = SignedStore(store, signing)
        address = options.local_addr or (head if head in local else host.address_towards(head))
        gathering = None
        if not options.one_node and not options.no_check:
            quiet = options.slurm_defaults.shared_output and not hosts  # the head prints the same
            say = _say_nothing if quiet else inform
            asked = bool(own_secret)
            roll = _call_roll(
                options,
                plan,
                signed,
                identity,
                mine,
                hosts=hosts,
                notes=notes,
                inform=say,
                needs_secret=asked,
            )
            if roll.is_signed and not secret:
                raise RunError(run_secret.lost(place))
            if hosts and (plan.rendezvous == "static" or not signing.is_on):
                shared.remove()  # all have read it, and no node joins later
            gathering = _gather(options, signed, roll.members, mine, inform=say)
        # The connection is signed too, so it must wait until it is clear whether all nodes sign.
        connection = None if hosts else _connect(signed, head, identity, mine)
    except BaseException:
        if hosts:
            shared.remove()
        raise
    finally:
        notes.remove()
    handler = _handler(
        options,
        plan,
        store,
        identity=identity,
        address=address,
        head=head,
        inform=inform,
        signing=signing,
    )
    if gathering is not None and isinstance(handler, HeldRendezvous):
        handler.lost = lambda: gathering.lost
    return Meeting(
        handler=handler,
        store=store,
        identity=identity,
        address=address,
        endpoint=place,
        hosts_store=hosts,
        places=plan.rendezvous == "c10d"
        and 1 < options.min_nodes == options.max_nodes
        and not options.no_check,
        gathering=gathering,
        connection=connection,
        signing=signing,
        shared_secret=shared if hosts else None,
    )


def _say_nothing(_: Notice) -> None:
    pass


def _connect(
    store: SignedStore, head: str, identity: dict[str, Any], mine: dict[str, Any]
) -> liveness.Connection:
    name = liveness.name_of(mine["host"], mine["pid"])
    return liveness.Connection(store, head, token=identity["token"], name=name)


def _gather(
    options: Options,
    store: SignedStore,
    members: tuple[Arrived, ...],
    mine: dict[str, Any],
    *,
    inform: Callable[[Notice], None],
) -> Gathering | None:
    """Watch the nodes of a complete run until its first attempt begins."""
    if options.min_nodes != options.max_nodes:
        return None  # torch begins with the remaining nodes
    launcher = liveness.name_of(mine["host"], mine["pid"])
    timeout_s = node_timeout_s(options)
    num_nodes = options.max_nodes
    return Gathering(
        store,
        members,
        launcher=launcher,
        num_nodes=num_nodes,
        inform=inform,
        node_timeout_s=timeout_s,
    )


def _make_notes(
    options: Options, plan: Plan, mine: dict[str, Any], *, local: tuple[str, ...]
) -> Notes:
    folder = Path(options.run_dir).parent if options.run_dir is not None else RUNS
    note = Note(
        script=mine["script"],
        run_id=options.rdzv_id,
        rank=options.node_rank if plan.rendezvous == "static" else -1,
        host=mine["host"],
        pid=mine["pid"],
        name=plan.host,
        address="",
        port=int(plan.port.value),
        listens=False,
        addresses=tuple(address for address in local if not interfaces.is_loopback(address)),
    )
    return Notes(folder / ".roll-call", note)


def _call_roll(
    options: Options,
    plan: Plan,
    store: SignedStore,
    identity: dict[str, Any],
    mine: dict[str, Any],
    *,
    hosts: bool,
    notes: Notes,
    inform: Callable[[Notice], None],
    needs_secret: bool,
) -> Roll:
    static = plan.rendezvous == "static"

    def arrived(who: dict[str, Any], rank: int) -> Arrived:
        return Arrived(0, rank if static else -1, who["host"], who["pid"], tuple(who["nodes"]))

    roll = Roll(
        store,
        arrived(mine, options.node_rank),
        arrived(identity, 0),
        hosts=hosts,
        limit_s=join_limit_s(options),
        hosts_by_rank=hosts_by_rank(options),
        notes=notes,
        inform=inform,
        needs_secret=needs_secret,
    )
    roll.answer()
    return roll


def node_timeout_s(options: Options) -> float:
    """Return how long a node may be silent without any training step, in seconds."""
    is_typed = "node_timeout" in dict(options.typed)
    return options.node_timeout if is_typed else deadlines.scaled(deadlines.NODE_TIMEOUT)


def hosts_by_rank(options: Options) -> list[str]:
    """Return the host of each node rank if this Slurm step has all nodes of the run; else empty."""
    names = env.read(env.STEP_NODELIST)
    if names is None or env.read(env.NODEID) != str(options.node_rank):
        return []
    found = expand_nodelist(names)
    return found if len(found) == options.max_nodes else []


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
    options: Options,
    plan: Plan,
    store: TCPStore,
    *,
    identity: dict[str, Any],
    address: str,
    head: str,
    inform: Callable[[Notice], None],
    signing: Signing,
) -> RendezvousHandler:
    if plan.rendezvous != "c10d":
        return HeldRendezvous(
            store,
            rank=options.node_rank if plan.rendezvous == "static" else 0,
            num_nodes=options.max_nodes,
            run_id=identity["token"] if options.rdzv_id == "none" else options.rdzv_id,
            address=head,
            join_s=rejoin_limit_s(options),
            inform=inform,
            signing=signing,
        )
    settings: dict[str, Any] = {
        "keep_alive_interval": plan.keep_alive_s,
        "last_call_timeout": plan.last_call_s,
        **dict(options.rdzv_conf),
    }
    settings.pop("is_host", None)
    parameters = _parameters(
        options, "c10d", f"{head}:{store.port}", address=address, settings=settings
    )
    # A separate client: a thread that waits in a shared client would block the others.
    own: TCPStore = store.clone()  # type: ignore[attr-defined]
    return create_handler(own, C10dRendezvousBackend(own, parameters.run_id), parameters)


def _meet_elsewhere(options: Options, plan: Plan, identity: dict[str, Any]) -> Meeting:
    """Return the meeting of a backend from torch or a torch plug-in, such as etcd."""
    own = [address for _, address in interfaces.addresses() if not address.startswith("127.")]
    address = options.local_addr or next(iter(own), "127.0.0.1")
    parameters = _parameters(
        options, plan.rendezvous, plan.host, address=address, settings=dict(options.rdzv_conf)
    )
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
