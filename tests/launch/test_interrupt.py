"""Ctrl-C while the command is starting, and a launcher that was started where SIGINT is ignored."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from starting import BIN

pytestmark = pytest.mark.cold  # it is the start that is interrupted

# Sends SIGINT to this process when a module is about to be imported, or to a process that has just been forked.
SITE = """
import os, signal, sys
wanted = os.environ["INTERRUPT_AT"]

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

def forked():
    if not os.path.exists("forked"):
        open("forked", "w").close()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getppid(), signal.SIGINT)

if wanted == "fork":
    os.register_at_fork(after_in_child=forked)
else:
    sys.meta_path.insert(0, Finder())
"""
PLACES = [
    "click",
    "paceline.launch.plan.options",
    "paceline.launch.run",
    "torch",
    "numpy",
    "torch.utils.data",
    "fork",
]


@pytest.mark.alone
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_in_the_first_second_prints_no_traceback(command, place):
    command.script("print('never')")
    (command.folder / "site").mkdir()
    command.script(SITE, name="site/sitecustomize.py")
    env = {"PYTHONPATH": str(command.folder / "site"), "INTERRUPT_AT": place}
    ended = command.run("-m", "paceline", "run", "train.py", program=sys.executable, env=env)
    assert ended.status == 130, ended.err
    assert "Traceback" not in ended.err
    assert "KeyboardInterrupt" not in ended.err
    assert "never" not in ended.out
    assert command.survivors(within_s=2) == []


@pytest.mark.parametrize("program", ["paceline", "torchrun"])
def test_a_launcher_that_was_started_with_sigint_ignored_takes_it_all_the_same(command, program):
    """As torchrun: whoever sends SIGINT to a launcher means it, also in the background of a script."""
    command.script(
        "import os, signal, sys, time\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)\n"
        "open('up', 'w').write('here\\n')\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    open('told', 'w').write('here\\n'); raise\n"
    )
    words = [str(BIN / program), *(["run"] if program == "paceline" else [])]
    running = command.start(
        "-c", 'trap "" INT; exec "$@"', "sh", *words, "train.py", program=Path("/bin/sh")
    )
    command.wait_for(command.folder / "up")
    time.sleep(0.3)
    os.kill(running.process.pid, signal.SIGINT)
    ended = running.wait()
    assert ended.out == "True\n"
    command.wait_for(command.folder / "told")
    assert ended.status == (130 if program == "paceline" else 1), ended.err
