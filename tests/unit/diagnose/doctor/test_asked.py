"""Settings of NCCL are read as NCCL reads them."""

import pytest

from paceline.diagnose.doctor.checks import asked


@pytest.mark.parametrize("value", ["1", "2", "-1", " 1", "0x1", "010", "1x"])
def test_any_number_but_zero_is_on(value):
    assert asked.is_on(value)


@pytest.mark.parametrize("value", [None, "", "0", "00", "0x0", "true", "yes"])
def test_zero_and_words_are_off(value):
    assert not asked.is_on(value)
