"""Bytes on a process's sockets, from the kernel."""

import os
import socket
import sys

import pytest

from paceline.machine import sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")


def moved(**options):
    return sockets.traffic([os.getpid()], **options)[os.getpid()][0]


def test_every_movement_is_seen_and_standstill_too():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            before = moved()
            assert moved() == before
            one.sendall(b"x" * 1000)
            sent = moved()
            assert sent > before
            other.recv(500)
            assert moved() > sent
            other.recv(500)


def test_the_runs_store_can_be_left_out():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            port = server.getsockname()[1]
            before = moved(leave_out=[port])
            one.sendall(b"x" * 1000)
            assert moved(leave_out=[port]) == before
            other.recv(1000)


def test_a_process_that_cannot_be_seen_has_no_count(monkeypatch):
    assert sockets.traffic([2**22 + 1]) == {}
    monkeypatch.delattr(socket, "AF_NETLINK")
    assert sockets.traffic([os.getpid()]) == {}
