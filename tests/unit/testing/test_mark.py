"""What the mark of a test asks for."""

import pytest

from paceline.errors import UsageError
from paceline.testing.mark import RanksMark, parse
from refusals import refusal


def test_sizes_and_options_are_taken():
    assert parse((1, 2), {"group": False, "timeout_s": 5}) == RanksMark(
        (1, 2), group=False, timeout_s=5
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "name", "part"),
    [
        ((), {}, "option-invalid", "no number of ranks"),
        ((0,), {}, "option-invalid", "0 is not a number of ranks"),
        ((65,), {}, "option-invalid", "1 to 64"),
        ((True,), {}, "option-invalid", "True is not"),
        (("2",), {}, "option-invalid", "'2' is not"),
        (([1, 2],), {}, "option-invalid", "[1, 2] is not"),
        ((2, 2), {}, "option-invalid", "twice"),
        ((2,), {"timeout": 5}, "option-unknown", "no option timeout"),
        ((2,), {"group": "gloo"}, "option-invalid", "True or False"),
        ((2,), {"timeout_s": 0}, "option-invalid", "number of seconds"),
        ((2,), {"collective_timeout_s": "5"}, "option-invalid", "number of seconds"),
    ],
)
def test_what_it_cannot_mean_is_refused(args, kwargs, name, part):
    finding = refusal(UsageError, parse, args, kwargs, where="test_a.py::test_b")
    assert finding.name == name
    assert part in finding.what
    assert finding.where == "test_a.py::test_b"
    assert finding.fix
