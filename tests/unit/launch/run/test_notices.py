"""A warning is printed once, by the head where all nodes print to one output; each node keeps it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.errors import Finding
from paceline.launch.run.notices import Notices


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_warning_that_the_head_prints_is_kept_and_not_printed(is_quiet):
    printed: list[str] = []
    notices = Notices(SimpleNamespace(say=printed.append), is_quiet=lambda: is_quiet)
    warning = Finding("cpus-too-few", "few", severity="warning")
    notices.warn(warning)
    notices.warn(warning)
    assert notices.warnings == [warning]
    assert len(printed) == (not is_quiet)
