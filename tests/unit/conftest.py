"""What tests of several packages rest on."""

import json
import sys
import warnings

import pytest

from paceline.cli import main as module
from paceline.launch.plan.accelerate import answer, ask


@pytest.fixture
def asked_here(monkeypatch):
    """accelerate is asked in this process: one of its own takes as long as importing torch."""

    def answers(questions):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("accelerate.commands.launch")
            return json.loads(json.dumps([answer.answer(**each) for each in json.loads(questions)]))

    monkeypatch.setattr(ask, "_answers", answers)
    ask.read.cache_clear()  # it knows files by their names


@pytest.fixture
def typed(monkeypatch, capsys):
    """Run the whole command; return its exit status and what it printed."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["paceline", *words])
        monkeypatch.setattr(module.os, "_exit", sys.exit)
        with pytest.raises(SystemExit) as stopped:
            module.main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run
