"""Count the bytes that processes have sent and received over TCP (netlink, ``sock_diag``).

This module collects and decides nothing. The counters of ``/proc/PID/io`` omit sockets if a library
reads into its own memory, so a process that downloads looks idle there. Processes of the same user
need no privileges.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from paceline.machine import processes

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_ALL_STATES = 0xFFF
_INFO = 2  # INET_DIAG_INFO
_DONE, _ERROR = 3, 2
_LISTEN = 10  # TCP_LISTEN
_HEADER = struct.Struct("=IHHII")
_MESSAGE = struct.Struct("=BBBB 2s2s 16s16s 3I 5I")  # inet_diag_msg
_ACKED_AT = 120  # of tcpi_bytes_acked and tcpi_bytes_received in tcp_info
_TIMEOUT_S = 1.0


def traffic(pids: Iterable[int], *, leave_out: Collection[int] = ()) -> dict[int, tuple[int, int]]:
    """Return how many bytes the TCP sockets of processes have moved, and how many are on their way.

    Bytes in the send queue, and bytes that the process has read, count as moved: the number
    increases with every movement. Bytes that are not acknowledged or not read are on their way.
    """
    files = {pid: processes.open_files(pid).values() for pid in pids}
    visible = {
        pid: {int(target[8:-1]) for target in targets if target.startswith("socket:[")}
        for pid, targets in files.items()
        if targets
    }
    moved = _all_moved(leave_out) if visible else None
    if moved is None:
        return {}
    figures = {pid: [moved.get(inode, (0, 0)) for inode in own] for pid, own in visible.items()}
    return {
        pid: (sum(one for one, _ in pairs), sum(other for _, other in pairs))
        for pid, pairs in figures.items()
    }


def _all_moved(leave_out: Collection[int]) -> dict[int, tuple[int, int]] | None:
    """Return moved and queued bytes of all TCP sockets of this namespace; None on failure."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return None
    moved: dict[int, tuple[int, int]] = {}
    try:
        for kind in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(family, socket.SOCK_DGRAM, _SOCK_DIAG) as asker:
                asker.settimeout(_TIMEOUT_S)
                moved.update(_dump(asker, kind, leave_out))
    except (OSError, struct.error):
        return None
    return moved


def _dump(
    asker: Any, family: int, leave_out: Collection[int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    request = struct.pack(
        "=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_STATES
    ) + bytes(48)
    asker.sendto(
        _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + request, (0, 0)
    )
    while True:
        data = asker.recv(1 << 18)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR or length < _HEADER.size:
                raise OSError("the kernel refuses to list sockets")
            message, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
            fields = _MESSAGE.unpack_from(message)
            ports = {int.from_bytes(fields[4], "big"), int.from_bytes(fields[5], "big")}
            if not ports & set(leave_out):
                unread, unsent, inode = fields[12], fields[13], fields[15]
                transferred = 2 * _transferred(message[_MESSAGE.size :])
                is_listening = fields[1] == _LISTEN  # its queues are connections
                queued = 0 if is_listening else unread + unsent
                yield inode, (transferred - unread + unsent, queued)


def _transferred(attributes: bytes) -> int:
    """Return the acknowledged and received bytes of a socket; 0 for a listening one."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _INFO and length >= 4 + _ACKED_AT + 16:
            acked, received = struct.unpack_from("=QQ", attributes, 4 + _ACKED_AT)
            return int(acked + received)
        attributes = attributes[max(4, (length + 3) & ~3) :]
    return 0
