"""Many things in few words."""

from __future__ import annotations

import pytest

from paceline.text.wording import few, few_lines


def test_long_lists_are_cut():
    assert few_lines(["x"] * 8, 8) == ("x",) * 8
    assert few_lines(["x"] * 9, 8) == ("x",) * 8 + ("and 1 more",)


@pytest.mark.parametrize(
    ("words", "told"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_long_rows_are_cut(words, told):
    assert few(words, 2) == told
