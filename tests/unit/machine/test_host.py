"""Facts about the machine: quotas, GPUs, addresses, and who holds a port."""

import errno
import os
import socket
import sys
import types

import pytest

from paceline.machine import host

# -------------------------------------------------------------------------------------------------- GPUs


@pytest.fixture
def gpus(monkeypatch):
    """A driver with a number of GPUs; returns the calls that it got."""

    def install(count):
        calls = []
        fake = types.ModuleType("pynvml")
        fake.nvmlInit = lambda: calls.append("init")
        fake.nvmlDeviceGetCount = lambda: count
        fake.nvmlShutdown = lambda: calls.append("shutdown")
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return calls

    return install


# ------------------------------------------------------------------------------------------------- ports


@pytest.fixture
def held():
    """A port of the loopback interface that this process listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_is_held_is_not_free(held):
    with pytest.raises(OSError) as caught:
        host.listen("127.0.0.1", held)
    assert caught.value.errno == errno.EADDRINUSE


def test_the_holder_of_a_port_is_named(held):
    assert host.holder_of(held).startswith(f"pid {os.getpid()} (")


def test_a_port_that_nobody_holds_has_no_holder(held):
    with host.listen("127.0.0.1", 0) as server:
        free = server.getsockname()[1]
    assert host.holder_of(free) == ""


@pytest.mark.parametrize(
    ("address", "bound"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("10.1.2.3", "0.0.0.0")],
)
def test_a_chosen_port_is_open_to_whoever_may_come(address, bound):
    with host.listen(address, 0) as server:
        assert server.getsockname()[0] == bound
        assert server.getsockname()[1] > 0
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


@pytest.mark.parametrize(
    ("address", "bound"), [("127.0.0.1", "127.0.0.1"), ("10.1.2.3", "0.0.0.0")]
)
def test_a_port_that_one_address_leads_to_is_open_there_only(address, bound):
    """The second is not this host's, as that of a service which leads here."""
    with host.listen("127.0.0.1", 0) as server:
        free = server.getsockname()[1]
    with host.listen(address, free, only=True) as server:
        assert server.getsockname() == (bound, free)


@pytest.mark.parametrize(
    ("name", "numeric"),
    [("10.0.0.5", True), ("fe80::1", True), ("node-1", False), ("10.0.0", False), ("", False)],
)
def test_an_address_is_told_from_a_name(name, numeric):
    assert host.is_numeric(name) == numeric


def test_two_listeners_never_get_the_same_port():
    with host.listen("127.0.0.1", 0) as one, host.listen("127.0.0.1", 0) as other:
        assert one.getsockname() != other.getsockname()


# ----------------------------------------------------------------------------------- names


def test_numeric_addresses_resolve_to_themselves():
    assert host.resolve("127.0.0.1") == ("127.0.0.1",)
    assert host.resolve("::1") == ("::1",)


def test_a_name_with_several_addresses_gives_ipv4_first(monkeypatch):
    entries = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0)),
    ]
    monkeypatch.setattr(host.socket, "getaddrinfo", lambda *_, **__: entries)
    assert host.resolve("head") == ("10.0.0.1", "fd00::1")


def test_the_way_to_this_machine_is_the_loopback_interface():
    assert host.address_towards("127.0.0.1") == "127.0.0.1"


def test_facts_are_gathered_without_torch_devices(gpus):
    gpus(2)
    facts = host.gather("1")
    assert (facts.num_gpus, facts.hostname, facts.platform) == (
        1,
        socket.gethostname(),
        sys.platform,
    )
    assert facts.usable_cpus >= 1
    assert ("lo", "127.0.0.1") in facts.addresses


# ------------------------------------------------------------------------------------------------ flags


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("python /bin/paceline run train.py", ()),
        ("python -m paceline run -m -O", ()),
        ("python -u -mpaceline run train.py", ()),
        ("python -um paceline run train.py", ()),
        ("python -O -m paceline run train.py", ("-O",)),
        ("python -OOmpaceline run", ("-O", "-O")),
        (
            "python -W error -X dev -Xutf8 -Werror -m paceline",
            ("-W error", "-X dev", "-Xutf8", "-Werror"),
        ),
        ("/usr/bin/python3 -sP /usr/bin/paceline run train.py", ("-s", "-P")),
        ("python -c code -O", ()),
        ("python", ()),
    ],
)
def test_flags_of_the_interpreter(command, flags):
    assert host.python_flags(command.split()) == flags
