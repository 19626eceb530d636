"""The folder of a run that several nodes make, each as soon as it knows the run's name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.errors import SetupError
from paceline.launch.plan.options import Options
from paceline.launch.run.node import Node
from paceline.rundir.files import RunDir


@pytest.fixture
def head(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = Node(Options(script="train.py"), None, None, warm=None, handle=-1, console=None)
    node._meeting = SimpleNamespace(hosts_store=True)
    return node


def test_another_node_of_the_run_may_have_made_it_before_the_head(head, tmp_path):
    RunDir(tmp_path / "paceline-runs" / "name").create()
    made = head._make_run_dir("name", None)
    assert made.root == tmp_path / "paceline-runs" / "name"
    assert (made.root / "logs").is_dir()


@pytest.mark.parametrize("file", ["lease", "training"])
def test_that_of_another_run_is_refused(head, tmp_path, file):
    taken = RunDir(tmp_path / "paceline-runs" / "name")
    taken.create()
    getattr(taken, file).write_text("{}")
    with pytest.raises(SetupError, match="another run has chosen"):
        head._make_run_dir("name", None)
