"""What ``paceline explain NAME`` prints about a variable."""

import pytest

from paceline.diagnose.variables import describe
from paceline.diagnose.variables.table import known


@pytest.mark.parametrize(
    ("name", "is_read", "words"),
    [
        ("NCCL_BUFFSIZE", True, ("default: 4194304", "values: bytes")),
        ("NCCL_P2P_LEVEL", True, ("values: LOC, NVL, PIX, PXB, PHB, SYS", "since 2.3.4")),
        ("NCCL_IB_HCA", True, ("=exact",)),
        ("NCCL_TIMEOUT", False, ("no library reads it", "instead: dist.init_process_group")),
        ("NCCL_BLOCKING_WAIT", True, ("called TORCH_NCCL_BLOCKING_WAIT", "still read")),
        ("NCCL_IB_CUDA_SUPPORT", False, ("NCCL_NET_GDR_LEVEL", "no effect", "1 is SYS now")),
        ("NCCL_TREE_THRESHOLD", False, ("NCCL up to 2.4 read it",)),
        ("NCCL_SOCKET_IFNAM", False, ("there is NCCL_SOCKET_IFNAME",)),
        ("NCCL_TIMOUT", False, ("nor NCCL_TIMEOUT", "paceline explain NCCL_TIMEOUT")),
        ("NCCL_QQQQQ_XYZZY", False, ("not read by NCCL up to",)),
    ],
)
def test_a_name_is_described(name, is_read, words):
    description = describe(name)
    text = description.render()
    assert description.is_read is is_read
    assert not [word for word in words if word not in text], text
    assert "`" not in text
    assert description.to_json()["read"] is is_read


@pytest.mark.parametrize("name", ["PATH", "train.log", "port-in-use", "NET001", "", "nccl_debug"])
def test_what_is_not_a_variable_of_a_library_is_not_described(name):
    assert describe(name) is None


def test_every_known_variable_fits_a_terminal():
    for name in known():
        lines = describe(name).render().splitlines()
        assert lines[0] == name
        assert all(len(line) <= 80 or " " not in line.strip() for line in lines), lines
