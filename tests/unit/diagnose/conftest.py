"""What tests of commands that diagnose have in common."""

import sys

import pytest

from paceline.cli import main as module


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
