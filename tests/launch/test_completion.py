"""Completion in bash: its script works in a real shell, at a terminal too."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
DEADLINE_S = 50
# bash gives the words to the function of the script, as it does when the tab key is pressed.
ASK = """
eval "$(paceline completion bash)"
compopt() { true; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_paceline_completion paceline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def environ():
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PS1": "$ "}


@pytest.fixture
def completed(tmp_path, environ):
    """The words that bash would offer for the last of some words."""

    def ask(*words):
        ended = subprocess.run(
            ["bash", "-c", ASK, "bash", "paceline", *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.stderr == ""
        return ended.stdout.split()

    return ask


def test_commands_and_options_are_completed(completed):
    assert completed("ru") == ["run"]
    assert completed("checkpoint", "e") == ["export"]
    assert completed("run", "--np") == ["--nproc-per-node"]
    assert completed("run", "--nnodes", "2", "--on-hang", "s") == ["stop"]


def test_what_is_behind_the_script_is_its_own(completed):
    assert completed("run", "train.py", "--nn") == []


def test_findings_and_runs_are_completed(completed, tmp_path):
    for name in ("20261121-a", "20261122-b"):
        (tmp_path / "paceline-runs" / name).mkdir(parents=True)
    assert "port-in-use" in completed("explain", "port-")
    assert completed("explain", "NET00")[0] == "NET001"
    newest_first = ["paceline-runs/20261122-b", "paceline-runs/20261121-a"]
    assert completed("top", "") == newest_first


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_tab_key_completes_a_line_at_a_terminal(tmp_path, environ):
    (tmp_path / "train_digits.py").write_text("")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--noprofile", "--norc", "-i"], environ)
    try:
        os.write(terminal, b'eval "$(paceline completion bash)"; echo READ""Y\n')
        read_until(terminal, b"READY\r\n")
        os.write(terminal, b"paceline expl\tport-in-\t")
        read_until(terminal, b"explain port-in-use ")
        os.write(terminal, b"\x15paceline run train_\t")  # ^U clears the line
        read_until(terminal, b"train_digits.py ")
        os.write(terminal, b"\x15exit\n")
        os.waitpid(pid, 0)
    finally:
        os.close(terminal)  # ends the shell, if something has failed


def read_until(terminal, expected):
    """Read what the terminal shows until it has a text."""
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while expected not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096)
