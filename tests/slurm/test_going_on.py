"""Jobs that end before their time: at the limit, by preemption, with a node. They go on, or say why not."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm
CURVE = Path(__file__).parent / "scripts" / "curve_train.py"
LIGHTNING = Path(__file__).parent / "scripts" / "lightning_saves.py"
EPOCHS = 12
STEPS = 6 * EPOCHS


def curve(text):
    """The weights after each step, and how often a step was made."""
    lines = re.findall(r"^step (\d+) (.+)$", text, re.M)
    return {int(step): weights for step, weights in lines}, len(lines)


@pytest.fixture(scope="module")
def uninterrupted(cluster, tmp_path_factory):
    """The steps of one process that nothing happens to."""
    import subprocess

    from starting import BIN

    words = [BIN / "python", CURVE, str(EPOCHS), "0"]
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(
        words, cwd=folder, env=cluster.environ, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    steps, count = curve(done.stdout)
    assert count == STEPS
    return steps


def assert_went_on(job, uninterrupted, *, again=0):
    """Check that all steps were made, with the result of the run that nothing happened to.

    So many steps as ``again`` may have been made twice, for want of a checkpoint.
    """
    steps, count = curve(job.out)
    assert steps == uninterrupted, job.out
    assert count <= STEPS + again, "it did not begin anew"


def up(site):
    for rank in range(2):
        site.wait_for(site.folder / f"up-{rank}", timeout=40)


@pytest.mark.timeout(
    240
)  # two minutes are the limit, and Slurm signals up to one minute earlier than told
def test_at_the_time_limit_it_saves_and_goes_on_with_one_node(site, uninterrupted):
    job = site.submit("--nodes", "1-2", "--time", "2m", "--grace-s", 20, CURVE, EPOCHS, 100 / STEPS)
    up(site)
    site.cluster.ask("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    ended = job.wait(timeout=200)
    assert (ended["JobState"], ended["Restarts"], ended["NumNodes"]) == ("COMPLETED", "1", "1"), (
        job.out
    )
    assert "saved by 2 ranks" in job.out
    assert "is queued again, to continue from step" in job.out
    assert_went_on(job, uninterrupted)
    record = json.loads((job.run_dir / "job.json").read_text())
    assert [entry["why"] for entry in record["requeues"]] == ["unfinished"]
    followed = site.run("paceline", "follow", job.run_dir)
    assert followed.status == 0, followed


@pytest.mark.timeout(120)
def test_where_requeue_is_forbidden_it_is_submitted_again(site, uninterrupted):
    job = site.submit("--nodes", 2, CURVE, EPOCHS, 1)
    up(site)
    site.cluster.ask("scontrol", "update", f"JobId={job.number}", "Requeue=0")
    site.cluster.ask("scancel", "--signal=TERM", job.number)
    assert job.wait()["ExitCode"] == "75:0", job.out
    record = json.loads((job.run_dir / "job.json").read_text())
    assert record["earlier_ids"] == [job.number]
    assert record["job_id"] != job.number
    ended = site.wait_for_state(record["job_id"], timeout=60)
    assert ended["JobState"] == "COMPLETED", job.out
    assert_went_on(job, uninterrupted)


@pytest.mark.timeout(120)
def test_a_preempted_job_goes_on(site, uninterrupted):
    """Slurm puts it back into the queue itself: it gives the job KillWait to end, and asks nobody."""
    job = site.submit("--nodes", 2, CURVE, EPOCHS, 1)
    follower = site.start("paceline", "follow", job.run_dir)
    up(site)
    site.cluster.ask("scontrol", "requeue", job.number)
    ended = site.wait_for_state(job.number, "COMPLETED", "FAILED", timeout=80)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.out
    followed = follower.wait()
    assert followed.status == 0
    assert re.search(rf"job {job.number} (is|was) queued again", followed.err), followed.err
    assert_went_on(job, uninterrupted, again=3)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "nodes"), [("requeue", 1), ("callback", 2)])
def test_lightning_goes_on_after_the_signal_that_it_saves_at(site, kind, nodes):
    job = site.submit("--nodes", nodes, LIGHTNING, kind)
    script = (job.run_dir / "job.sh").read_text()
    (signal_name,) = re.findall(r"^#SBATCH --signal=(\w+)@", script, re.M)
    # this script may do either, which its text shows; what is typed counts
    assert signal_name == "USR1"
    for rank in range(nodes):
        site.wait_for(site.folder / f"up-{rank}", timeout=60)
    site.cluster.ask("scancel", f"--signal={'USR1' if kind == 'requeue' else 'TERM'}", job.number)
    ended = site.wait_for_state(job.number, "COMPLETED", "FAILED", timeout=80)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.out
    starts = [int(step) for step in re.findall(r"^starts at step (\d+)$", job.out, re.M)]
    assert starts[0] == 0 and starts[1] >= 3, job.out
    assert "trained to step 40" in job.out


def lose(site, node, *, whole):
    """Take a node away: its slurmd, and with ``whole`` all that runs on it."""
    site.cluster.kill_node(node)
    if whole:
        for pid in _processes_on(node, site.mark):
            os.kill(pid, signal.SIGKILL)


def _processes_on(node, mark):
    pids = set()
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if (
                f"SLURMD_NODENAME={node}".encode() in environ
                and f"PACELINE_TEST_MARK={mark}".encode() in environ
            ):
                pids.add(int(entry.name))
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if "slurmstepd" in Path(f"/proc/{parent}/comm").read_text():
                    pids.add(parent)
        except OSError:
            pass  # it ended
    assert pids
    return sorted(pids)


LOSSES = pytest.mark.parametrize("whole", [False, True], ids=["slurmd", "node"])


@pytest.mark.timeout(150)
@LOSSES
def test_the_loss_of_a_node_ends_in_an_explained_failure(site, whole):
    job = site.submit("--nodes", 2, "--on-node-loss", "fail", CURVE, EPOCHS, 1)
    up(site)
    lose(site, "node2", whole=whole)
    followed = site.run("paceline", "follow", job.run_dir, timeout=80)
    assert followed.status not in (0, 75), followed
    ended = job.wait(timeout=20)
    assert ended["JobState"] in ("FAILED", "NODE_FAIL"), ended
    assert ended["Restarts"] == "0"
    text = followed.out + followed.err
    assert re.search(r"\[?(RUN\d+|JOB\d+)", text), text
    assert re.search(r"node2|node 1 \(", text), text
    assert "sinfo -R" in text or "agent-died" in text, text


def test_the_block_says_that_slurm_ends_the_job_because_of_a_node(site):
    up_and_wait = (
        "import os, time\nopen('up-' + os.environ['RANK'], 'w').write('1\\n')\ntime.sleep(99)"
    )
    (site.folder / "wait.py").write_text(up_and_wait)
    job = site.submit("--nodes", 2, "--on-node-loss", "fail", "wait.py")
    up(site)
    site.cluster.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
    assert job.wait()["JobState"] == "NODE_FAIL"
    assert "SIGTERM from Slurm (node failure)" in job.out.partition("── paceline")[2], job.out


@pytest.mark.timeout(150)
@LOSSES
def test_after_the_loss_of_a_node_the_rest_goes_on(site, uninterrupted, whole):
    job = site.submit("--nodes", "1-2", "--on-node-loss", "requeue", CURVE, EPOCHS, 1)
    up(site)
    lose(site, "node2", whole=whole)
    ended = site.wait_for_state(job.number, "COMPLETED", "FAILED", timeout=120)
    assert (ended["JobState"], ended["NumNodes"]) == ("COMPLETED", "1"), job.out
    assert int(ended["Restarts"]) >= 1
    assert_went_on(job, uninterrupted, again=30)
