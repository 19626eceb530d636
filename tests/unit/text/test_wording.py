"""Many things in few words."""

import pytest

from paceline.text.wording import few, few_lines, fold, has_or_have, is_or_are


def test_long_lists_are_cut():
    assert few_lines(["x"] * 8, 8) == ("x",) * 8
    assert few_lines(["x"] * 9, 8) == ("x",) * 8 + ("and 1 more",)


@pytest.mark.parametrize(
    ("words", "told"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_long_rows_are_cut(words, told):
    assert few(words, 2) == told


@pytest.mark.parametrize(("items", "verbs"), [([3], ("is", "has")), ([0, 2], ("are", "have"))])
def test_a_verb_agrees_with_the_number_of_items(items, verbs):
    assert (is_or_are(items), has_or_have(items)) == verbs


@pytest.mark.parametrize(
    ("numbers", "ranges"), [([0, 1, 2, 3, 7, 9, 8], "0-3, 7-9"), ([5], "5"), ([], "")]
)
def test_numbers_are_folded_into_ranges(numbers, ranges):
    assert fold(numbers) == ranges
