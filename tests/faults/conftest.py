"""A stage for every test of a fault."""

from __future__ import annotations

import pytest

from faults import stage as stages


@pytest.fixture
def stage(tmp_path):
    with stages.stage(tmp_path) as made:
        yield made
