"""Host the run's store on a port that is already bound, or connect to the store on the head.

A node that connects checks that the store belongs to this run before it writes anything.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from paceline import deadlines
from paceline.errors import Finding, Notice, RunError, SetupError
from paceline.launch.channel.connection_probe import (
    STORE_TIMEOUT,
    ConnectionProbe,
    banner,
    look_up,
    open_client,
    probe_port,
)
from paceline.launch.in_rank import store_token_check
from paceline.launch.plan import ports
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.starter_defaults import POD
from paceline.launch.rendezvous import unreachable
from paceline.launch.rendezvous.node_wait import Waiting, join_limit_s, typed_limit_s
from paceline.launch.rendezvous.notes import Notes
from paceline.machine import host, interfaces
from paceline.machine.deadline import within
from paceline.text.wording import duration

_NOTE_AFTER_S = 3.0
# torch's server opens a client connection to itself, which a firewall can block for minutes.
_OWN_S = 10.0
_AGAIN_S = 0.2
_PROBE_KEY = "paceline/opened-by"  # written before the identity, which lets the other nodes in
_IDENTITY_S = 5.0  # the head writes its identity right after it listens


def open_or_reach(
    options: Options,
    plan: Plan,
    *,
    identity: dict[str, Any],
    local: tuple[str, ...],
    notes: Notes,
    inform: Callable[[Notice], None],
) -> tuple[TCPStore, str, bool]:
    """Host the store of the run, or connect to it.

    Returns the store, the head's numeric address, and whether this node hosts the store. Raises
    SetupError if the port is taken or a name does not resolve, RunError if nothing has answered in
    time or the server on that port is not a store.
    """
    port = int(plan.port.value)
    reaching = _Reaching(options, plan.host, port, notes=notes, inform=inform)
    may_host = options.one_node or plan.rendezvous == "c10d" or options.node_rank == 0
    head = reaching.await_name() if may_host else ""
    if not _hosts_store(options, plan, head=head, local=local):
        return (*reaching.reach(), False)
    is_static = plan.rendezvous == "static" and not options.one_node
    is_own = head in local or interfaces.is_loopback(head)
    store: TCPStore | None
    if is_static and not options.no_check and not is_own:
        store, hosts = _host_behind(head, port, identity=identity, reaching=reaching)
    else:
        store, hosts = _open_or_join(head, port, identity, options=options, plan=plan)
    if store is None:
        return (*reaching.reach(), False)
    if hosts:
        notes.mine = replace(notes.mine, address=head, port=store.port, listens=True)
    return store, head, hosts


def _hosts_store(options: Options, plan: Plan, *, head: str, local: tuple[str, ...]) -> bool:
    """Return whether this node must host the store.

    torch compares host names. That fails for the address of a second interface: then no node hosts.
    """
    if plan.rendezvous != "c10d":
        return options.node_rank == 0 or options.one_node
    is_host = dict(options.rdzv_conf).get("is_host", "").lower()
    if is_host:
        return is_host in ("1", "true", "t", "yes", "y")
    return head in local or interfaces.is_loopback(head)


def _open_or_join(
    head: str, port: int, identity: dict[str, Any], *, options: Options, plan: Plan
) -> tuple[TCPStore | None, bool]:
    """Host the store; if another launcher of this run does, return a client, None with c10d.

    Also returns whether this node hosts it.
    """
    must = plan.rendezvous != "c10d" or options.one_node
    try:
        return open_store(head, port, must=must, only=is_only_address(options, plan)), True
    except SetupError:
        # Two launchers with node rank 0 on one host: the first reports both.
        client = None if options.one_node or options.no_check else open_client(head, port)
        if client is None or not _is_same_run(_identity_in(client), identity):
            raise
        return client, False


def _host_behind(
    head: str, port: int, *, identity: dict[str, Any], reaching: _Reaching
) -> tuple[TCPStore, bool]:
    """Host the store at an address that no interface of this host has.

    The address belongs to a service that leads here, or to another host. If another host has a
    launcher with node rank 0 as well, this one finds that launcher at the address, and that
    launcher reports both. This node's store must not be opened through the address: it would
    write into the store of the other.
    """
    own = open_store("::1" if ":" in head else "127.0.0.1", port, must=True)
    assert own is not None
    own.set(_PROBE_KEY, identity["token"])
    store, _ = reaching.reach()
    if store.check([_PROBE_KEY]) and store.get(_PROBE_KEY).decode() == identity["token"]:
        return own, True
    return store, False


def _identity_in(store: TCPStore) -> dict[str, Any] | None:
    """Return the identity of a store's run; None if the store has none within ``_IDENTITY_S``."""
    deadline = time.monotonic() + _IDENTITY_S
    while not store.check([store_token_check.IDENTITY_KEY]):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return store_token_check.parse(store.get(store_token_check.IDENTITY_KEY))


def _is_same_run(theirs: dict[str, Any] | None, mine: dict[str, Any]) -> bool:
    return theirs is not None and all(theirs[name] == mine[name] for name in ("run_id", "script"))


def is_only_address(options: Options, plan: Plan) -> bool:
    """Return whether all processes that may connect use this node's address of the head.

    They do on one node. They also do in a Slurm step, where one line starts all nodes, if the
    address is numeric. A name may resolve to another interface of the head elsewhere, and another
    address may have been typed on another node.
    """
    return options.one_node or (
        options.starter_defaults.shared_output and host.is_numeric(plan.host)
    )


def _is_plain(name: object) -> bool:
    """Return whether a name is a plain folder name that does not lead out of the runs' folder."""
    return isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")


def open_store(head: str, port: int, *, must: bool, only: bool = False) -> TCPStore | None:
    """Host the store on a port that is bound now; None if it is taken and another node may host.

    ``port`` 0 lets the kernel choose, ``must``: no other node can be the host, ``only``: listen on
    that address only. Raises SetupError if the port is taken, and no other node can be the host.
    """
    try:
        listener = host.listen(head, port, only=only)
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

    store = within(_OWN_S, make, None)
    if store is None:
        raise RunError(_not_to_itself(head, bound))
    return store


def _not_to_itself(head: str, port: int) -> Finding:
    return Finding(
        "port-filtered",
        f"this node, the head, does not reach its own port {port} at {head}: a firewall drops or"
        " rejects it",
        where=socket.gethostname(),
        fix="let all packets of this machine to itself pass: iptables -I INPUT -i lo -j ACCEPT",
    )


class _Reaching:
    """This node's attempts to reach the head's port."""

    def __init__(
        self,
        options: Options,
        name: str,
        port: int,
        *,
        notes: Notes,
        inform: Callable[[Notice], None],
    ) -> None:
        self._options = options
        self._name = name
        self._port = port
        self._notes = notes
        self._waiting = Waiting(inform, limit_s=join_limit_s(options))
        self._refused_since_s: float | None = None
        self._refused_limit_s = deadlines.scaled(deadlines.PORT_REFUSED)
        self._is_limited = typed_limit_s(options) is not None or options.no_check  # by the user
        # A pod has its address before its image is pulled, and refuses connections until then.
        self._is_limited |= options.starter_defaults.starter == POD

    def await_name(self) -> str:
        """Return the head's numeric address as soon as its name resolves."""
        while isinstance(addresses := look_up(self._name), str):
            self._wait(ConnectionProbe("unresolved", detail=addresses))
        return addresses[0]

    def reach(self) -> tuple[TCPStore, str]:
        """Connect to the head's store once it listens; return it and the head's numeric address.

        Raises SetupError if the head's name does not resolve, RunError if nothing has answered in
        time or the server on that port is not a store.
        """
        while (probe := probe_port(self._name, self._port)).kind != "open":
            self._wait(probe)
        return _connect(probe.address, self._port), probe.address

    def _wait(self, probe: ConnectionProbe) -> None:
        """Wait a moment after a failed attempt; raise when the wait for the head is over."""
        trouble = unreachable.in_words(probe)
        if self._waiting.waited_s > _NOTE_AFTER_S:
            self._notes.leave(address=probe.address, trouble=trouble)
        if self._is_hopeless(probe):
            self._notes.leave(address=probe.address, trouble=trouble, ended=True)
            finding = self._judge(probe)
            raise SetupError(finding) if probe.kind == "unresolved" else RunError(finding)
        if self._waiting.is_due:
            place = f"{self._name}:{self._port}"
            notice = unreachable.notice(self._judge(probe), probe, place=place)
            is_short = probe.kind == "refused" and not self._is_limited
            until = f"{duration(self._refused_limit_s)} of refusals" if is_short else ""
            self._waiting.show(notice, until=until)
        time.sleep(_AGAIN_S)

    def _judge(self, probe: ConnectionProbe) -> Finding:
        notes = self._notes
        waited_s = self._waiting.waited_s
        finding = unreachable.judge(probe, notes.mine, notes.read(), waited_s=waited_s)
        if self._options.starter_defaults.starter == POD:
            return replace(finding, fix=unreachable.LOOK_AT_PODS)
        return finding

    def _is_hopeless(self, probe: ConnectionProbe) -> bool:
        """Return whether the wait is over, or the head's host has refused the port for too long."""
        now_s = time.monotonic()
        if probe.kind != "refused":
            self._refused_since_s = None
        elif self._refused_since_s is None:
            self._refused_since_s = now_s
        if self._options.one_node or self._waiting.is_over:
            return True
        refused_s = 0.0 if self._refused_since_s is None else now_s - self._refused_since_s
        return not self._is_limited and refused_s > self._refused_limit_s


def _connect(address: str, port: int) -> TCPStore:
    """Return a client of the store; refuse a server on that port that is not one."""
    client = open_client(address, port)
    if client is not None:
        return client
    first_line = banner(address, port)
    finding = replace(
        store_token_check.foreign(None, place=f"{address}:{port}"),
        evidence=(f"it says: {first_line}",) if first_line else (),
        why="",
        fix=(
            f"another port on every node; on the host of {address}, ss -tlnp shows who holds {port}"
        ),
    )
    raise RunError(finding)


def publish_identity(store: TCPStore, identity: dict[str, Any]) -> None:
    """Publish the run's identity, which lets the other nodes in."""
    store.set(store_token_check.IDENTITY_KEY, json.dumps(identity))


def read_identity(store: TCPStore, mine: dict[str, Any], *, place: str) -> dict[str, Any]:
    """Return the run's identity, as the head published it, and refuse to join another run.

    ``mine`` is what this node would publish. Raises RunError if the store belongs to another run,
    or to a program that is not paceline.
    """
    theirs = _identity_in(store)
    if theirs is None:
        raise RunError(store_token_check.foreign(None, place=place))
    runs_alone = mine["nodes"] == [1, 1]
    if runs_alone or not _is_same_run(theirs, mine) or not _is_plain(theirs.get("run_name")):
        raise RunError(store_token_check.foreign(theirs, place=place))
    return theirs
