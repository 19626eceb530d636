"""One real cluster for all tests of this folder, and a place for each test from which commands are given to it."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from printed_json import read_json
from slurm.cluster import Cluster, NoCluster, start, stop
from starting import BIN, Ended, Running, survivors, wait_for

ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "PREEMPTED",
)


@dataclass
class Site:
    """The folder of one test, the commands that were started from it, and the jobs that came of them."""

    cluster: Cluster
    folder: Path
    mark: str
    running: list[Running] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        """What commands are started with: the cluster, this Python first, and this test's mark."""
        return {
            **{
                name: value
                for name, value in self.cluster.environ.items()
                if not name.startswith(("PET_", "OMP_"))
            },
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PACELINE_TEST_MARK": self.mark,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }

    def start(self, *words: object, env: dict[str, str] | None = None, stdin=None) -> Running:
        """Start a command in the folder."""
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=self.folder,
            env={**self.environ, **(env or {})},
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(Running(process))
        return self.running[-1]

    def run(self, *words: object, timeout: float = 45, **kwargs) -> Ended:
        """Run a command to its end."""
        return self.start(*words, **kwargs).wait(timeout)

    def bash(self, text: str, **kwargs) -> Ended:
        """Run lines of a shell."""
        return self.run("bash", "-c", text, **kwargs)

    def srun(self, *words: object, nodes: int = 2, tasks: int = 1, **kwargs) -> Ended:
        """Run a command by srun, which makes a job of it; ``job_of`` finds it."""
        return self.start_srun(*words, nodes=nodes, tasks=tasks, **kwargs).wait()

    def start_srun(self, *words: object, nodes: int = 2, tasks: int = 1, **kwargs) -> Running:
        """Start a command by srun, as a job that bears the mark of the test as its name."""
        options = (
            f"--job-name={self.mark}",
            "--kill-on-bad-exit=1",
            f"--nodes={nodes}",
            f"--ntasks-per-node={tasks}",
        )
        return self.start("srun", *options, *words, **kwargs)

    def submit(self, *words: object, timeout: float = 20) -> Submitted:
        """Give a script to ``paceline submit``."""
        ended = self.run("paceline", "submit", "--json", *words, timeout=timeout)
        assert ended.status == 0, ended.err
        told = read_json("submit", ended.out)
        return Submitted(self, told["job_id"], Path(told["run_dir"]))

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        text = self.cluster.ask("scontrol", "--oneliner", "show", "job", number)
        return dict(re.findall(r"(?:^|\s)(\S+?)=(.*?)(?=\s+\S+?=|\s*$)", text))

    def own_job(self) -> dict[str, str]:
        """The last job that this test's srun or salloc made, ended."""
        numbers = self.cluster.ask(
            "squeue", "-h", "--states=all", f"--name={self.mark}", "-o", "%A"
        ).split()
        return self.wait_for_state(max(numbers, key=int))

    def wait_for_state(self, number: str, *states: str, timeout: float = 40) -> dict[str, str]:
        """Wait until a job is in one of some states, or has ended, and return what is known of it."""
        deadline = time.monotonic() + timeout
        while True:
            job = self.job(number)
            if job["JobState"] in (states or ENDED):
                return job
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"job {number} is {job['JobState']} ({job['Reason']}) after {timeout} s: {self.said(job)}"
                )
            time.sleep(0.1)

    def said(self, job: dict[str, str]) -> str:
        """What a job has printed so far."""
        path = Path(job.get("StdOut", ""))
        return path.read_text() if path.is_file() else ""

    def wait_for(self, path: Path, timeout: float = 30) -> str:
        """Wait until a rank has written a file whole (it ends with a line feed)."""
        return wait_for(path, timeout)

    def survivors(self, within_s: float = 0.0) -> list[str]:
        """Processes that carry this test's mark after ``within_s``, as text."""
        return survivors(self.mark, within_s)

    def close(self) -> list[str]:
        """End what the test has started; return what it should have ended by itself."""
        for running in self.running:
            running.process.terminate()
        self.cluster.ask("scancel", "--quiet", "--user", "root")
        left = self.survivors(within_s=10)  # KillWait, and some
        for line in left:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        for running in self.running:
            running.process.kill()
            running.process.wait()
            running.process.stdout.close()
            running.process.stderr.close()
        self.cluster.heal()
        return left


@dataclass(frozen=True)
class Submitted:
    """A job that ``paceline submit`` has handed to Slurm."""

    site: Site
    number: str
    run_dir: Path

    def wait(self, timeout: float = 45) -> dict[str, str]:
        """Wait for the job's end."""
        return self.site.wait_for_state(self.number, timeout=timeout)

    @property
    def out(self) -> str:
        """What the job has printed so far."""
        path = self.run_dir / "slurm.out"
        # Two nodes write to it at once, and may cut a character of the other's progress bar in two.
        return path.read_text(errors="replace") if path.is_file() else ""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Start the cluster; at the end no job of it is left, and no process."""
    try:
        made = start(tmp_path_factory.mktemp("slurm"), first_job=1 + secrets.randbelow(16000))
    except NoCluster as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield made
        jobs = made.ask("squeue", "-h")
    finally:
        stop(made.folder)
    left = _processes_of(made)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not jobs, f"jobs were left behind: {jobs}"
    assert not left, f"processes of the cluster were left behind: {left}"


def _processes_of(cluster: Cluster) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"SLURM_CONF={cluster.conf}".encode() in (entry / "environ").read_bytes()
            ):
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            pass  # it ended, or is a zombie
    return found


@pytest.fixture
def site(cluster, tmp_path):
    """A place to give commands from; what a test has started is ended, and it is an error if a process stays."""
    made = Site(cluster, tmp_path, f"t{uuid.uuid4().hex[:12]}")
    try:
        yield made
    finally:
        left = made.close()
    assert not left, f"processes were left behind: {left}"
