"""Network interfaces of this machine."""

import os
import socket
import types

import psutil

from paceline.machine import interfaces


def test_what_stands_behind_an_interface(tmp_path):
    (tmp_path / "eno1" / "device").mkdir(parents=True)
    (tmp_path / "veth1").mkdir()
    (tmp_path / "virbr0" / "lower_veth1").mkdir(parents=True)
    (tmp_path / "br0" / "lower_eno1").mkdir(parents=True)
    (tmp_path / "tun0").mkdir()
    (tmp_path / "bond0" / "lower_eno1").mkdir(parents=True)
    (tmp_path / "bond0.12" / "lower_bond0").mkdir(parents=True)
    kinds = {
        name: interfaces.describe(name, ["10.0.0.1"], 10_000, net=tmp_path)
        for name in os.listdir(tmp_path)
    }
    assert {name: (each.virtual, each.mbit) for name, each in kinds.items()} == {
        "eno1": (False, 10_000),
        "veth1": (True, 0),
        "virbr0": (True, 0),
        "br0": (False, 10_000),
        "tun0": (True, 0),
        "bond0": (False, 10_000),
        "bond0.12": (False, 10_000),
    }
    assert interfaces.describe("lo", ["127.0.0.1", "::1"], 0, net=tmp_path).loopback


def test_addresses_leave_out_what_is_down_and_link_local(monkeypatch):
    def entry(family, address):
        return types.SimpleNamespace(family=family, address=address)

    monkeypatch.setattr(
        psutil,
        "net_if_stats",
        lambda: {
            name: types.SimpleNamespace(isup=name != "eth1", speed=0) for name in ("eth0", "eth1")
        },
    )
    monkeypatch.setattr(
        psutil,
        "net_if_addrs",
        lambda: {
            "eth0": [
                entry(socket.AF_INET6, "fe80::1%eth0"),
                entry(socket.AF_INET6, "fd00::5"),
                entry(socket.AF_INET, "10.0.0.5"),
                entry(socket.AF_PACKET, "aa:bb"),
            ],
            "eth1": [entry(socket.AF_INET, "10.0.0.6")],
        },
    )
    assert interfaces.addresses() == (("eth0", "10.0.0.5"), ("eth0", "fd00::5"))
    (only,) = interfaces.gather()
    assert (only.name, only.addresses) == ("eth0", ("10.0.0.5", "fd00::5"))


def test_an_unknown_rate_is_none(tmp_path):
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    rates = [
        interfaces.describe("eth0", ["10.0.0.1"], speed, net=tmp_path).mbit
        for speed in (-1, 0, 2**32 - 1, 25_000)
    ]
    assert rates == [0, 0, 0, 25_000]


def test_addresses_of_this_machine():
    assert all(map(interfaces.is_loopback, ("127.0.1.1", "::1", "localhost")))
    assert not any(map(interfaces.is_loopback, ("10.0.0.1", "node1")))
    assert ("lo", "127.0.0.1") in interfaces.addresses()
