"""What lint believes a class to have is what it has: lint reads no torch, so its tables are written by hand."""

from __future__ import annotations

import pytest

import paceline
from paceline.diagnose.lint.python import surfaces


@pytest.mark.parametrize(
    ("known", "kind"),
    [(surfaces.SESSION, paceline.Session), (surfaces.PACELINE_TRAINER, paceline.Trainer)],
)
def test_every_public_name_is_known(known, kind):
    assert {name for name in dir(kind) if not name.startswith("_")} <= set(known)
