"""Prove that a launcher has ended, by an idle connection to the node that hosts the store.

The kernel closes the connection when the launcher ends. A missing heartbeat proves nothing: a
stopped launcher or a cut network leaves the connection open. The result is written into the store,
where every node can read it.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from typing import Any

from paceline.launch.channel.reachability import public_form
from paceline.machine import host
from paceline.machine.signed_store import SignedStore

# Raw keys, outside every prefix, because a launcher lives through all attempts of a run.
_PORT = "paceline/liveness"
_CLOSED = "paceline/closed"
_GOODBYE = b"bye"
_CONNECT_S = 2.0
_AGAIN_S = 2.0
_MOST_BYTES = 4096
_MOST_SILENT = 256  # a node sends its name right after it has connected
_GREETING = "greeting"
_REST_S = 0.05


def closed_key(who: str) -> str:
    """Return the key that exists while a launcher's connection is closed (see ``name_of``)."""
    return f"{_CLOSED}/{who}"


def name_of(host: str, pid: int) -> str:
    """Return the name of a launcher in the store, ``HOST:PID``."""
    return f"{host}:{pid}"


class Listener:
    """Holds the connections of the other launchers, in the process that hosts the store."""

    def __init__(
        self,
        store: Any,  # of the run; the listener opens a separate client
        *,
        token: str,
        address: str = "",  # empty for all interfaces
    ) -> None:
        self._store = SignedStore.of(store).clone()
        self._hello = public_form(token).encode()
        self._names: dict[socket.socket, str] = {}
        self._selector = selectors.DefaultSelector()
        self._server = host.listen(address, 0, only=True) if address else _listen()
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._store.set(_PORT, json.dumps(self._server.getsockname()[1]))
        threading.Thread(target=self._serve, name="paceline-liveness", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # this process ends, and the store with it
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._server:
                        self._accept()
                    else:
                        self._read(key.fileobj)

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:  # no free descriptor, or the client has gone
            time.sleep(_REST_S)
            return
        client.setblocking(False)
        self._names[client] = ""
        self._selector.register(client, selectors.EVENT_READ)
        self._drop_strangers()

    def _drop_strangers(self) -> None:
        """Close the oldest connections without a name, if there are many of them."""
        silent = [client for client, name in self._names.items() if not name]
        for client in silent[:-_MOST_SILENT]:
            self._forget(client)

    def _read(self, client: Any) -> None:
        if client not in self._names:  # closed in the same round
            return
        try:
            data = client.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        except OSError:  # the host is unreachable, which proves nothing about the launcher
            data = _GOODBYE
        if data and not self._names[client]:
            self._greet(client, data)
            return
        name = self._names[client]
        if not data and name:
            self._store.set(closed_key(name), str(time.time()))
        self._forget(client)

    def _greet(self, client: socket.socket, data: bytes) -> None:
        """Read the launcher's name, and confirm that this is its run."""
        hello, _, content = data.strip().partition(b" ")
        name = self._store.signing.open(_GREETING, content)
        if hello != self._hello or not name:
            self._forget(client)
            return
        self._names[client] = name.decode("utf-8", "replace")
        self._store.delete_key(closed_key(self._names[client]))
        with contextlib.suppress(OSError):
            client.sendall(self._hello + b"\n")

    def _forget(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        self._names.pop(client, None)
        client.close()


class Connection:
    """This launcher's connection; reopened when something else has closed it."""

    def __init__(
        self,
        store: Any,  # of the run, on another host; holds the listener's port
        address: str,  # of that host
        *,
        token: str,
        name: str,  # as ``name_of`` returns it
    ) -> None:
        self._hello = public_form(token).encode()
        self._name = name.encode()
        self._signing = SignedStore.of(store).signing
        port = SignedStore.of(store).find(_PORT)
        self._place = None if port is None else (address, int(json.loads(port)))
        self._socket: socket.socket | None = None
        self._leaving = threading.Event()
        if self._place is not None:
            threading.Thread(target=self._keep, name="paceline-liveness", daemon=True).start()

    def _keep(self) -> None:
        while not self._leaving.is_set():
            with contextlib.suppress(OSError), self._connect() as connected:
                self._socket = connected
                if self._leaving.is_set():  # set before the connection was open
                    _send_goodbye(connected)
                connected.recv(1)  # returns when the connection closes, hours or days later
            self._socket = None
            self._leaving.wait(_AGAIN_S)

    def _connect(self) -> socket.socket:
        """Connect, and let the listener confirm that it belongs to the run.

        Raises OSError if the listener is unreachable, or another program answers.
        """
        assert self._place is not None
        connected = socket.create_connection(self._place, timeout=_CONNECT_S)
        connected.sendall(self._hello + b" " + self._signing.close(_GREETING, self._name) + b"\n")
        if not connected.recv(_MOST_BYTES).startswith(self._hello):
            connected.close()
            raise ConnectionError("another program answers")
        connected.settimeout(None)
        return connected

    def leave(self) -> None:
        """Announce that this launcher ends in order."""
        self._leaving.set()
        connected = self._socket  # the other thread resets it when the head closes the connection
        if connected is not None:
            _send_goodbye(connected)


def _send_goodbye(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.sendall(_GOODBYE)
        connected.shutdown(socket.SHUT_RDWR)


def _listen() -> socket.socket:
    """Return a socket that listens on all interfaces, on a port that the kernel chooses."""
    try:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(("", 0), family=family, backlog=4096, dualstack_ipv6=dual)
    except OSError:  # IPv6 is disabled
        return socket.create_server(("", 0), backlog=4096)
