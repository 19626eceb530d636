"""The folder of a run that several nodes make, each as soon as it knows the run's name."""

from __future__ import annotations

import pytest

from paceline.errors import SetupError
from paceline.launch.plan.options import Options
from paceline.launch.run import folder
from paceline.rundir.files import RunDir


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def head_makes(name):
        options = Options(script="train.py")
        return folder.make(options, name, is_new=True, console=None, notices=None)

    return head_makes


def test_another_node_of_the_run_may_have_made_it_before_the_head(make, tmp_path):
    RunDir(tmp_path / "paceline-runs" / "name").create()
    made = make("name")
    assert made.root == tmp_path / "paceline-runs" / "name"
    assert (made.root / "logs").is_dir()


@pytest.mark.parametrize("file", ["lease", "training"])
def test_that_of_another_run_is_refused(make, tmp_path, file):
    taken = RunDir(tmp_path / "paceline-runs" / "name")
    taken.create()
    getattr(taken, file).write_text("{}")
    with pytest.raises(SetupError, match="another run has chosen"):
        make("name")
