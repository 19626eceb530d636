"""Try the addresses of other nodes: a small server that identifies its node, and its clients.

The server speaks first and closes, so no client can block it. Its line has its node and its time.
A client can thus distinguish the node from another one with the same address, such as the address
that docker's bridge has on every host.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_LIMIT_S = 1.0
_THREADS = 32


class Echo:
    """The server of this node, on a port that the kernel chooses."""

    def __init__(
        self,
        token: str,  # the server shows only a hash of it
        *,
        node: int,
    ) -> None:
        self._words = f"{public_form(token)} {node}"
        try:
            dual = socket.has_dualstack_ipv6()
            self._socket = socket.create_server(
                ("", 0),
                family=socket.AF_INET6 if dual else socket.AF_INET,
                backlog=1024,
                dualstack_ipv6=dual,
            )
        except OSError:  # IPv6 is disabled
            self._socket = socket.create_server(("", 0), backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="paceline-echo", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), client:
                client.sendall(f"{self._words} {time.time_ns()}\n".encode())

    def close(self) -> None:
        """Stop answering."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self._thread.join(1)


def public_form(token: str) -> str:
    """Return the public form of a token: the start of its SHA-256 hash."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ProbeAnswer:
    """The result of trying one address."""

    ok: bool  # whether the intended node has answered
    ahead_s: float = 0.0  # how far this node's clock is ahead of that node's clock, in seconds
    trip_s: float = 0.0  # how long the answer took, in seconds


def try_all(
    # port and addresses of each node to try, by node rank
    peers: Mapping[int, tuple[int, Sequence[str]]],
    *,
    token: str,
    own: Sequence[str],  # if another node has the same address, packets to it stay here
) -> dict[int, dict[str, ProbeAnswer]]:
    """Try addresses of other nodes, all at once."""
    tasks = [
        (node, port, address) for node, (port, addresses) in peers.items() for address in addresses
    ]
    answers: dict[int, dict[str, ProbeAnswer]] = {node: {} for node in peers}
    if not tasks:
        return answers
    with ThreadPoolExecutor(min(_THREADS, len(tasks)), thread_name_prefix="paceline-try") as pool:
        jobs = {
            (node, address): pool.submit(ask, address, port, token, node)
            for node, port, address in tasks
            if address not in own
        }
        for node, _, address in tasks:
            job = jobs.get((node, address))
            answers[node][address] = job.result() if job is not None else ProbeAnswer(False)
    return answers


def ask(address: str, port: int, token: str, node: int) -> ProbeAnswer:
    """Try one address, for at most a second."""
    try:
        with socket.create_connection((address, port), timeout=_LIMIT_S) as client:
            client.settimeout(_LIMIT_S)
            sent_ns, start_s = time.time_ns(), time.monotonic()
            words = client.makefile("rb").readline().decode("ascii", "replace").split()
            trip_s, received_ns = time.monotonic() - start_s, time.time_ns()
    except OSError:
        return ProbeAnswer(False)
    if len(words) != 3 or words[:2] != [public_form(token), str(node)]:
        return ProbeAnswer(False)
    ahead_ns = (sent_ns + received_ns) / 2 - int(words[2])
    return ProbeAnswer(True, ahead_s=ahead_ns / 1e9, trip_s=trip_s)
