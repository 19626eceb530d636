"""What lint believes a class to have is what it has: lint reads no torch, so its tables are written by hand."""

import pytest

import paceline
from paceline.diagnose.lint.python.checks import public_names


@pytest.mark.parametrize(
    ("known", "kind"),
    [(public_names.SESSION, paceline.Session), (public_names.PACELINE_TRAINER, paceline.Trainer)],
)
def test_every_public_name_is_known(known, kind):
    assert {name for name in dir(kind) if not name.startswith("_")} <= set(known)
