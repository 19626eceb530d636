"""Real starts of the real command, each in a folder of its own, with a check that no process is left."""

from __future__ import annotations

import pytest

from starting import commands


@pytest.fixture
def command(tmp_path):
    with commands(tmp_path) as made:
        yield made
