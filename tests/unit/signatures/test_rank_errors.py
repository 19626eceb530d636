"""What an error text of a rank says about the rank and about others, and where explain sees it differently."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge as explain
from paceline.signatures.rank_errors import RankError, read

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:224] "


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        (f"{GLOO}Timed out waiting 1800000ms for recv operation to complete", "collective-timeout"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", "collective-timeout"),
        (
            "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms",
            "collective-timeout",
        ),
        (
            "DistNetworkError: The client socket has timed out after 60000ms while trying to connect"
            " to (10.0.0.9, 29500).",
            "master-unreachable",
        ),
        (
            "DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
            "rendezvous-timeout",
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running",
            "collective-mismatch",
        ),
        ("RuntimeError: Invalid mt19937 state", "collective-mismatch"),
    ],
)
def test_a_vain_wait_has_the_name_that_explain_gives(text, wait):
    assert read(text) == RankError("", wait, has_lost_peer=False)
    assert explain([text]).findings[0].name == wait


@pytest.mark.parametrize(
    ("text", "error", "explained"),
    [
        (
            "DistStoreError: wait timeout after 300000ms, keys: /a",
            RankError("", "collective-timeout", has_lost_peer=False),
            "rendezvous-timeout",
        ),
        (
            f"{GLOO}connect [10.0.0.2]:4127: Connection refused",
            RankError("", "", has_lost_peer=True),
            "master-unreachable",
        ),
        (
            "ConnectionRefusedError: [Errno 111] Connection refused",
            RankError("", "", has_lost_peer=False),
            "master-unreachable",
        ),
    ],
)
def test_a_rank_of_ours_means_something_else_than_a_line_of_an_unknown_log(text, error, explained):
    assert read(text) == error
    assert explain([text]).findings[0].name == explained


def test_a_taken_port_is_a_fault_of_the_rank_itself():
    text = "DistNetworkError: The server socket has failed to listen: EADDRINUSE"
    assert read(text).own_fault == "port-in-use"
