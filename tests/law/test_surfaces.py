"""What lint believes of a class or a launcher is so: it stands below them, so its tables are written by hand."""

import pytest

import paceline
from paceline.diagnose.lint.job import launcher_options
from paceline.diagnose.lint.python.checks import public_names
from paceline.launch.plan.options import OPTIONS


@pytest.mark.parametrize(
    ("known", "kind"),
    [(public_names.SESSION, paceline.Session), (public_names.PACELINE_TRAINER, paceline.Trainer)],
)
def test_every_public_name_is_known(known, kind):
    assert {name for name in dir(kind) if not name.startswith("_")} <= set(known)


def test_every_option_of_paceline_run_is_known():
    known = launcher_options.PACELINE
    flags = {option.name for option in OPTIONS if option.flag}
    values = {option.name for option in OPTIONS if not option.flag}
    # ``--use-env`` is deprecated in torchrun, where it has no effect, and is not ours to list.
    assert known.flags - {"help", "use_env"} == flags
    assert known.values == values
