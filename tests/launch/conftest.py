"""Real starts of the real command, each in a folder of its own, with a check that no process is left."""

from __future__ import annotations

import pytest

from starting import commands


@pytest.fixture
def command(request, tmp_path, preloaded):
    """Starts of commands: as forks, but in modules that are marked ``cold`` as new processes."""
    is_cold = request.node.get_closest_marker("cold") is not None
    with commands(tmp_path, preloaded, is_cold=is_cold) as made:
        yield made
