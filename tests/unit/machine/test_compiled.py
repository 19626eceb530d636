"""A replacement of a function of torch is no frame of its own for warnings."""

import functools
import inspect
import warnings

import pytest

from paceline.machine.compiled import not_traced, uncounted


def warn():
    warnings.warn("about the caller", stacklevel=2)


@pytest.mark.parametrize("mark", [uncounted, not_traced])
def test_a_warning_names_the_caller_and_not_the_replacement(mark):
    @functools.wraps(warn)
    def replacement():
        warn()

    marked = mark(replacement)
    with pytest.warns(UserWarning) as caught:
        line = inspect.currentframe().f_lineno + 1
        marked()
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)
