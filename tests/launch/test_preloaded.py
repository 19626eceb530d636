"""A command that is forked from a Python with torch in memory is what a new process would be."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

ENV_REPORT = Path(__file__).parent / "scripts" / "env_report.py"


def test_a_fork_sees_what_a_new_process_sees(command):
    reports = []
    for is_cold in (True, False):
        command.is_cold = is_cold
        environ = {"RANK": "0", "OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "1"}
        ended = command.run(ENV_REPORT, command.folder, program="python", env=environ)
        assert (ended.status, ended.out) == (0, ""), ended.err
        reports.append(json.loads((command.folder / "0.json").read_text()))
    assert reports[0] == reports[1]


def test_its_end_and_its_processes_are_found(command):
    command.script(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    running = command.start("train.py", program="python")
    child = int(running.process.stdout.readline())
    assert running.process.poll() is None
    pids = {int(line.split()[0]) for line in command.survivors()}
    assert pids == {running.process.pid, child}
    running.signal(signal.SIGKILL)
    assert running.process.wait(10) == -signal.SIGKILL
    os.kill(child, signal.SIGKILL)
    assert command.survivors(within_s=5) == []


def test_its_exit_status_and_output_are_those_of_the_script(command):
    command.script("import sys\nprint('out')\nsys.exit('not today')\n")
    ended = command.run("train.py", program="python")
    assert (ended.status, ended.out, ended.err) == (1, "out\n", "not today\n")
