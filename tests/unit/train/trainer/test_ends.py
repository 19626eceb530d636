"""Numbers logged after the last batch: how those of ranks become one, and what is said of it."""

import math

import pytest

from paceline.train.trainer.ends import NO_END, LoggedNumber, differ, mean_of_ends, remarks


def ends(*pairs, is_whole=False):
    return [LoggedNumber(value, rows, is_whole) for value, rows in pairs]


@pytest.mark.parametrize(
    ("of_ranks", "mean"),
    [
        (ends((0.5, 3)), 0.5),
        (ends((0.5, 3), (1.0, 1)), 0.625),
        (ends((0.1, 3), (0.1, 4), (0.1, 1)), 0.1),  # as it is: a mean would round
        ([*ends((0.5, 3)), NO_END], 0.5),
        (ends((0.5, 3), (9.0, 0)), 0.5),  # without rows, as of a step with zero rows under fsdp
        (ends((2.0, 0), (2.0, 0)), 2.0),  # after a resume at the end of an epoch
        (ends((1.0, 0), (3.0, 0)), 2.0),
    ],
)
def test_ranks_count_by_their_rows(of_ranks, mean):
    assert mean_of_ends(of_ranks) == mean


def test_nan_is_nan():
    assert math.isnan(mean_of_ends(ends((math.nan, 1), (1.0, 1))))
    assert not differ(ends((math.nan, 1), (math.nan, 2)))


def test_what_all_ranks_share_is_not_spoken_of():
    assert not differ(ends((4.0, 3), (4.0, 2), is_whole=True))
    assert not differ([*ends((4.0, 3)), NO_END])


def test_a_count_and_a_mean_are_told_apart():
    said = list(
        remarks(
            {
                "right": ends((4, 3), (1, 2), is_whole=True),
                "f1": ends((0.5, 3), (0.25, 2)),
                "auc": ends((1, 1), (0, 1)),
            }
        )
    )
    assert [type(each).__name__ for each in said] == ["Finding", "Notice"]
    assert said[0].name == "count-averaged"
    assert said[0].severity == "warning"
    assert said[1].details[:2] == ("f1 on ranks in order: 0.5, 0.25", "auc on ranks in order: 1, 0")


def test_parts_that_are_equal_by_chance_are_asked_about():
    """The number of an epoch is a plain int, and the same on all ranks for another reason."""
    (said,) = remarks({"right": [LoggedNumber(2, 3, True, True), LoggedNumber(2, 2, True, True)]})
    assert said.what.startswith("right was logged after the last batch, and is 2 on all ranks")
    assert not list(remarks({"epoch": [LoggedNumber(2, 3, True), LoggedNumber(2, 2, True)]}))
    assert not list(
        remarks({"right": [LoggedNumber(0, 3, True, True), LoggedNumber(0, 2, True, True)]})
    )
    assert not list(remarks({"right": [LoggedNumber(2, 3, True, True)]}))


def test_many_ranks_are_shortened():
    (said,) = remarks({"f1": ends(*((number / 8, 1) for number in range(8)))})
    assert said.details[0] == "f1 on ranks in order: 0, 0.125, 0.25, 0.375, ..."
