"""The processes of the ranks: what is left when they cannot be forked."""

import socket

import pytest

from paceline.errors import SetupError
from paceline.testing import processes
from paceline.testing.job import RankChannel


def test_a_server_that_does_not_fork_leaves_no_socket(monkeypatch):
    made = []

    def noted_pair(pair=socket.socketpair):
        made.append(pair())
        return made[-1]

    ranks = processes.RankProcesses(processes.Style(), ())
    ours, theirs = socket.socketpair()
    ranks._control = RankChannel(ours)
    theirs.close()
    monkeypatch.setattr(socket, "socketpair", noted_pair)
    with ours, pytest.raises(SetupError):
        ranks._fork(2)
    ranks.close()
    assert [end.fileno() for pair in made for end in pair] == [-1] * 4
