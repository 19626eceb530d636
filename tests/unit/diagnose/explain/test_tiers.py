"""The order in which faults of one text are named, as a snapshot, and the pairs that do not follow it."""

from __future__ import annotations

import pytest

from paceline.codes import CODES
from paceline.diagnose.explain import judge
from paceline.diagnose.explain.pairs import CONSEQUENCES, EXPLAINS
from paceline.signatures.libraries import signatures
from paceline.signatures.tier import Tier

ORDER = """
ORIGIN
CAUSE
COARSE
BROAD
OUTSIDE
EXCEPTION
DOUBTFUL_EXCEPTION
MENTIONED_EXCEPTION
WORKER_CRASH
CRASH
LASTING
HINTED
WAIT_EXPLAINED
TIMEOUT
SUSPECTED
UNCLEAR
WARNED
INTERRUPTED
STOPPED
RETRIED
ABORTED
VICTIM
AFTERMATH
UNEXPLAINED
SUMMARY
STEP_ENDED
TASKS_ENDED
RANKS_ENDED
SURVIVED
REMARK
"""
# One text of each kind, from the likeliest cause down.
TEXTS = {
    "fabric-manager-down": "RuntimeError: CUDA error: system not yet initialized (error 802)",
    "cuda-oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "replicas-differ": "RuntimeError: gradients are inconsistent across ranks",
    "user-exception": 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in main\nKeyError: 1',
    "rank-segfault": "torch.distributed.elastic failed (exitcode: -11) local_rank: 1 (pid: 7) of binary: python",
    "collective-timeout": "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE) ran",
    "peer-rank-died": "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:41014",
}


def test_the_order_is_this_one():
    assert [tier.name for tier in Tier] == ORDER.split()
    assert sorted(Tier, reverse=True) == list(Tier)


def test_every_tier_says_what_it_means():
    assert len({tier.meaning for tier in Tier}) == len(Tier)


def test_a_tier_is_no_number_to_calculate_with():
    with pytest.raises(TypeError):
        Tier.CAUSE + 1  # type: ignore[operator]


def test_of_two_faults_the_one_of_the_higher_tier_is_named_first_whatever_comes_first():
    texts = list(TEXTS.values())
    for name, text in TEXTS.items():
        assert judge([text]).findings[0].name == name
    for place, (higher, text) in enumerate(TEXTS.items()):
        for lower in texts[place + 1 :]:
            assert judge([lower, text]).findings[0].name == higher


def test_a_closed_connection_explains_an_error_of_nccl_without_a_cause():
    unclear = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed"
    assert judge([unclear]).findings[0].name == "nccl-system-error"
    assert judge([unclear, TEXTS["peer-rank-died"]]).findings[0].name == "peer-rank-died"


def test_pairs_are_of_known_faults_and_none_explains_itself():
    names = {signature.name for signature in signatures()}
    for name, explained in EXPLAINS.items():
        assert {name, *explained} <= CODES.keys() & names
        assert not any(name in EXPLAINS.get(other, ()) for other in explained)
    for consequence in CONSEQUENCES:
        assert {*consequence.causes, *consequence.names} <= CODES.keys()
        assert not set(consequence.causes) & set(consequence.names)
