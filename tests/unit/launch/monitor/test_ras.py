"""NCCL's RAS socket: a server of our own plays NCCL, with a report laid out as in NVIDIA's documentation."""

from __future__ import annotations

import socket
import threading

import pytest

from paceline.launch.monitor import ras

REPORT = """NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  INCOMPLETE

Errors
======

{errors}
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 66

"""


def test_errors_come_before_warnings():
    report = REPORT.format(
        errors="#0-0 (27a079b828ff1a75) INCOMPLETE\n  Missing communicator data from 1 rank\n"
    )
    assert ras.notable(report) == [
        "NCCL RAS: #0-0 (27a079b828ff1a75) INCOMPLETE",
        "NCCL RAS: Missing communicator data from 1 rank",
    ]


def test_warnings_are_told_where_there_are_no_errors():
    assert ras.notable(REPORT.format(errors=""))[1].endswith(
        "different collective operation counts"
    )


@pytest.mark.parametrize("report", ["", "Errors\n======\n\n\nWarnings\n========\n\n", "garbage"])
def test_nothing_to_tell(report):
    assert ras.notable(report) == []


def test_the_report_is_read_to_its_end():
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def play():
            link, _ = server.accept()
            with link:
                asked.append(link.recv(100))
                for part in ("one\n", "two\n"):
                    link.sendall(part.encode())

        player = threading.Thread(target=play)
        player.start()
        assert ras.ask(f"127.0.0.1:{server.getsockname()[1]}") == "one\ntwo\n"
        player.join()
    assert asked == [b"verbose status\n"]


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert ras.ask(f"127.0.0.1:{port}") == ""
