"""A port that is taken is known before anything is imported."""

import socket
from types import SimpleNamespace

import pytest

from paceline.errors import SetupError
from paceline.launch.plan import ports


def needs(port, *, one_node=True):
    plan = SimpleNamespace(port=SimpleNamespace(value=port), host="127.0.0.1")
    ports.require_free(SimpleNamespace(one_node=one_node), plan)


@pytest.fixture
def held():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_taken_is_refused_with_its_holder(held):
    with pytest.raises(SetupError, match=rf"port {held} is held by pid \d+") as caught:
        needs(held)
    assert caught.value.finding.name == "port-in-use"


def test_on_several_nodes_another_may_listen_there(held):
    needs(held, one_node=False)


def test_a_port_that_the_kernel_is_to_choose_is_free():
    needs(0)


def test_a_free_port_stays_free(held):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    needs(free)
    needs(free)


def test_a_port_that_may_not_be_listened_on(monkeypatch):
    def refuse(address, port):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ports.host, "listen", refuse)
    with pytest.raises(SetupError, match="cannot listen on port 80: Permission denied"):
        needs(80)
