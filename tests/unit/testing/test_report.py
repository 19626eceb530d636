"""What a test that failed on ranks says, from the outcomes alone."""

import pytest

from paceline.testing import report
from paceline.testing.job import (
    DIED_ON_PURPOSE,
    ENDED,
    FAILED,
    RETURNED,
    SKIPPED,
    STUCK,
    RankOutcome,
)

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17"


def failed(time_s, headline="ValueError: broken", text="", place="test_a.py:3"):
    return RankOutcome(FAILED, time_s, headline=headline, text=text or headline, place=place)


@pytest.mark.parametrize(
    ("outcomes", "order"),
    [
        ({0: failed(2.0), 1: failed(1.0)}, [1, 0]),
        ({0: failed(1.0, LOST), 1: failed(2.0)}, [1, 0]),
        ({0: failed(1.0, LOST), 1: RankOutcome(ENDED, 2.0, headline="exit status 3")}, [1, 0]),
        ({0: RankOutcome(STUCK, 1.0), 1: failed(2.0)}, [1, 0]),
        ({0: RankOutcome(RETURNED), 1: RankOutcome(SKIPPED), 2: RankOutcome(DIED_ON_PURPOSE)}, []),
    ],
)
def test_the_cause_comes_before_what_follows_from_it(outcomes, order):
    assert list(report.failures(outcomes)) == order


def test_ranks_that_fail_alike_are_named_together():
    same = "E   AssertionError"
    outcomes = {rank: failed(rank, text=same) for rank in range(3)}
    assert report.render(outcomes, limit_s=60) == f"ranks 0-2 of 3 failed:\n\n{same}"


def test_a_rank_that_ended_is_said_in_one_line():
    outcomes = {0: failed(1.0, LOST), 1: RankOutcome(ENDED, 2.0, headline="killed by SIGKILL")}
    assert report.render(outcomes, limit_s=60).splitlines() == [
        "rank 1 of 2: its process has ended, killed by SIGKILL",
        "rank 0: lost its connection to a rank that had ended (test_a.py:3)",
    ]
    assert report.headline(outcomes) == "rank 1: its process has ended, killed by SIGKILL"


def test_a_hang_lists_every_rank():
    stuck = RankOutcome(STUCK, 9.0, headline="all_reduce, test_a.py:8", text="  test_a.py:8 total")
    text = report.render({0: stuck, 1: RankOutcome(RETURNED)}, limit_s=60)
    assert text.splitlines() == [
        "rank 0 of 2 is not done after 60 s:",
        "  rank 0: not done: all_reduce, test_a.py:8",
        "  rank 1: returned",
        "",
        "stack of rank 0, innermost call last:",
        "  test_a.py:8 total",
    ]
