"""Probe the head's port: does it open, and if not, what can this node find out about the reason.

Collects with plain sockets; ``judge`` decides. torch's own client prints stack traces while it
waits, cannot be interrupted, and reports every failure as a timeout.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from paceline.launch.in_rank import store_token_check
from paceline.machine import host
from paceline.machine.deadline import within

STORE_TIMEOUT = timedelta(seconds=300)
_CONNECT_S = 2.0
# A resolver waits half a minute for a name server that does not answer.
_RESOLVE_S = 3.0
# How long the host has to answer on another port or a ping, after its port stayed silent.
_ELSEWHERE_S = 0.7
# A server that accepts but does not speak the store's protocol blocks torch's client for minutes.
_SPEAK_S = 8.0
# Ports that most hosts answer, with a connection or a reset, even if a firewall drops ours.
_OTHER_PORTS = (22, 9, 113, 49151)
# Linux's <linux/errqueue.h>
_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
_MSG_ERRQUEUE = 0x2000
# By origin (2 is ICMP, 3 is ICMPv6): the family of the sender's address, and where it is.
_SENDERS = {2: (socket.AF_INET, slice(20, 24)), 3: (socket.AF_INET6, slice(24, 40))}
# By origin: ICMP's type and codes for "no route to that host".
_UNREACHABLE = {2: ((3, 0), (3, 1)), 3: ((1, 0), (1, 3))}


@dataclass(frozen=True)
class ConnectionProbe:
    """The result of one connection probe."""

    # ``open``, ``refused`` (a reset: nothing listens), ``rejected`` (an ICMP error: a firewall),
    # ``dropped`` (silence, but the host answers elsewhere), ``silent`` (the host does not answer at
    # all), ``no-route`` or ``unresolved``
    kind: str
    address: str = ""  # numeric address that was tried; empty if the name did not resolve
    detail: str = ""  # what the network answered, in words; may be empty


@dataclass(frozen=True)
class Icmp:
    """An ICMP error that the kernel kept for a socket."""

    origin: int  # 2 for ICMP, 3 for ICMPv6
    kind: int  # ICMP's type
    code: int  # ICMP's code
    sender: str  # address of the sender; this host itself if the neighbour does not answer


def probe_port(name: str, port: int) -> ConnectionProbe:
    """Probe a port once."""
    addresses = look_up(name)
    if isinstance(addresses, str):
        return ConnectionProbe("unresolved", detail=addresses)
    address = addresses[0]
    number, icmp = _connect(address, port)
    kind, detail = judge(number, icmp, address=address)
    if kind == "dropped" and not (_any_port_answers(address) or _answers_ping(address)):
        return ConnectionProbe("silent", address, "neither a port of it nor a ping is answered")
    return ConnectionProbe(kind, address, detail)


def look_up(name: str) -> tuple[str, ...] | str:
    """Return the addresses of a name, or in words why it has none."""

    def ask() -> tuple[str, ...] | str:
        try:
            return host.resolve(name)
        except OSError as error:
            return str(error.strerror)

    late: tuple[str, ...] | str = "the name server does not answer"
    return within(_RESOLVE_S, ask, late)


def judge(number: int, icmp: Icmp | None, *, address: str) -> tuple[str, str]:
    """Return the kind of a probe and its detail; ``number`` is 0 on success. Pure."""
    if number == 0:
        return "open", ""
    if number in (errno.ETIMEDOUT, errno.EAGAIN):
        return "dropped", ""
    if icmp is not None:
        is_unreachable = (icmp.kind, icmp.code) in _UNREACHABLE[icmp.origin]
        if is_unreachable and icmp.sender != address:
            return "silent", f"{icmp.sender} says that it is not there"
        error = f"an ICMP error (type {icmp.kind}, code {icmp.code})"
        return "rejected", f"{error} came from {icmp.sender}"
    if number == errno.ECONNREFUSED:
        return "refused", "the host answers, nothing listens on the port"
    if number == errno.ENETUNREACH:
        return "no-route", "this node has no route there"
    return "silent", os.strerror(number)


def _connect(address: str, port: int) -> tuple[int, Icmp | None]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        with contextlib.suppress(OSError):  # only Linux keeps an error queue
            probe.setsockopt(*_RECVERR[family], 1)
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect((address, port))
        except TimeoutError:
            return errno.ETIMEDOUT, None
        except OSError as error:
            return error.errno or errno.EIO, _read_icmp(probe)
    return 0, None


def _read_icmp(probe: socket.socket) -> Icmp | None:
    """Return the ICMP error that ended a connection; else a rejection looks like a refusal."""
    probe.setblocking(False)
    try:
        _, messages, _, _ = probe.recvmsg(512, 512, _MSG_ERRQUEUE)
    except OSError:
        return None
    for _, _, data in messages:
        if len(data) < 24:
            continue
        _, origin, kind, code = struct.unpack_from("=IBBB", data)
        if origin in _SENDERS:
            family, place = _SENDERS[origin]
            return Icmp(origin, kind, code, socket.inet_ntop(family, data[place]))
    return None


def _any_port_answers(address: str) -> bool:
    """Return whether any of a few ports accepts a connection or refuses it with a reset."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as stack:
        pending, poller = {}, select.poll()  # not select, which refuses descriptors from 1024 on
        for port in _OTHER_PORTS:
            probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.setblocking(False)
            if probe.connect_ex((address, port)) == errno.ECONNREFUSED:
                return True
            pending[probe.fileno()] = probe
            poller.register(probe, select.POLLOUT)
        deadline = time.monotonic() + _ELSEWHERE_S
        while pending and (remaining_s := deadline - time.monotonic()) > 0:
            for handle, _ in poller.poll(remaining_s * 1000):
                probe = pending.pop(handle)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED):
                    return True
                poller.unregister(probe)
    return False


def _answers_ping(address: str) -> bool:
    """Return whether the host answers a ping; False if this user may not send one."""
    family, protocol = socket.AF_INET, socket.IPPROTO_ICMP
    request = struct.pack("!BBHHH", 8, 0, 0xF7FE, 0, 1)
    if ":" in address:
        family, protocol = socket.AF_INET6, socket.IPPROTO_ICMPV6
        request = struct.pack("!BBHHH", 128, 0, 0, 0, 1)
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):  # the system decides who may use which
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.settimeout(_ELSEWHERE_S)
            probe.connect((address, 0))
            probe.send(request)
            return bool(probe.recv(64))
    return False


def open_client(address: str, port: int) -> TCPStore | None:
    """Return a client of the store behind an open port; None if the server there is not a store."""
    clients: queue.SimpleQueue[TCPStore | None] = queue.SimpleQueue()

    def connect() -> None:
        try:
            store = TCPStore(
                address, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False
            )
            store.check([store_token_check.IDENTITY_KEY])
        except RuntimeError:
            clients.put(None)
        else:
            clients.put(store)

    threading.Thread(target=connect, name="paceline-enter", daemon=True).start()
    try:
        return clients.get(timeout=_SPEAK_S)
    except queue.Empty:
        return None


def banner(address: str, port: int) -> str:
    """Return the first line that a foreign server sends; empty if it sends nothing readable."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, port), timeout=0.5) as probe,
    ):
        probe.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            probe.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        first = probe.recv(120).split(b"\n")[0].strip().decode("ascii", "replace")
        return first if first.isprintable() else ""
    return ""
