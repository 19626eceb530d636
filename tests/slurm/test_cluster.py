"""The cluster that ``make cluster`` starts leaves no process behind, whatever became of its daemons."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from slurm.cluster import start, stop


@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_no_daemon_survives_its_stop(tmp_path_factory):
    cluster = start(tmp_path_factory.mktemp("stop"), first_job=31000)
    shell = subprocess.Popen(
        ["sleep", "600"], env=cluster.environ
    )  # of somebody whose shell points at it
    try:
        script = cluster.folder / "job.sh"
        script.write_text("#!/bin/bash\ntouch up\nsleep 600\n")
        cluster.ask("sbatch", "--nodes=2", f"--chdir={cluster.folder}", script)
        while not (cluster.folder / "up").exists():
            assert cluster.processes()
        for name in ("slurmctld", "node1"):
            os.kill(cluster.pids()[name], signal.SIGKILL)
        stop(cluster.folder)
        assert cluster.processes() == {}
        assert shell.poll() is None
    finally:
        shell.kill()
        shell.wait()
        stop(cluster.folder)
