"""A question with a deadline is answered in time, or not at all."""

import time

import pytest

from paceline.machine.deadline import within, within_why


def test_an_answer_that_comes_in_time():
    assert within(5, lambda: 7, 0) == 7
    assert within_why(5, lambda: 7, 0) == (7, "")


def test_a_question_that_fails_is_not_waited_for():
    before = time.monotonic()
    answer, why = within_why(5, lambda: 1 // 0, 0)
    assert (answer, why) == (0, "ZeroDivisionError: integer division or modulo by zero")
    assert within(5, lambda: int("seven"), 0) == 0
    assert time.monotonic() - before < 2


def test_a_question_that_hangs_is_left_alone():
    assert within_why(0.01, lambda: time.sleep(0.5), None) == (None, "no answer within 0.01 s")
    assert within(0.01, lambda: time.sleep(0.5) or "late", "nothing") == "nothing"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_is_not_taken_for_a_missing_answer():
    assert within(5, lambda: {}["key"], "nothing") == "nothing"
