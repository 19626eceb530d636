"""NCCL's lists of interfaces and cards are read as NCCL reads them."""

import pytest

from paceline.machine.nccl_lists import parse, taken_interfaces


@pytest.mark.parametrize(
    ("setting", "taken"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1", ["eth1"]),
        ("=eth", []),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^docker,lo", ["eth0", "eth1", "ib0"]),
        ("^=eth0", ["eth1", "ib0", "docker0", "lo"]),
        ("mlx", []),
        ("eth0:1", ["eth0"]),
        ("=ib0:1:2:3,eth1:", ["eth1", "ib0"]),
        ("^eth:7", ["ib0", "docker0", "lo"]),
        ("eth0, ib0", ["eth0"]),
        (" eth0", []),
        ("=^eth0", []),
        (",,ib", ["ib0"]),
        (":1,ib", ["ib0"]),
        ("^,", []),
        *[
            (ignored, ["eth0", "eth1", "ib0", "docker0", "lo"])
            for ignored in ("", "e", "^", "=", ",:1")
        ],
    ],
)
def test_interfaces(setting, taken):
    assert taken_interfaces(setting, ["eth0", "eth1", "ib0", "docker0", "lo"]) == taken


@pytest.mark.parametrize(
    ("setting", "taken"),
    [
        ("mlx5", ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1"]),
        ("mlx5_0:1", ["mlx5_0:1"]),
        ("=mlx5_0:2,mlx5_1", ["mlx5_0:2", "mlx5_1:1"]),
        ("^mlx5_0:1", ["mlx5_0:2", "mlx5_1:1"]),
        ("^=mlx5_0", ["mlx5_1:1"]),
        ("mlx5_0: 2x", ["mlx5_0:2"]),
        ("mlx5_0:two", []),
        ("mlx5_1:2", []),
    ],
)
def test_ports_of_cards(setting, taken):
    ports = [("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1)]
    assert [f"{card}:{port}" for card, port in ports if parse(setting).takes(card, port)] == taken
