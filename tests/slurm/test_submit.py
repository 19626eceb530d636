"""`paceline submit` on a real cluster: from a script to a queue, and what comes back."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from slurm import training

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]
DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


def accuracies(text):
    return dict(re.findall(r"epoch (\d+): 360 samples, accuracy (\S+) %", text))


def test_the_example_trains_on_two_nodes_as_on_one(site):
    here = site.run("paceline", "run", DIGITS, "--epochs", 3)
    assert here.status == 0, here.err
    job = site.submit("--nodes", 2, DIGITS, "--epochs", 3)
    assert job.wait()["JobState"] == "COMPLETED", job.out
    assert "2 ranks" in job.out or "2 nodes" in job.out
    assert accuracies(job.out) == accuracies(here.out)
    assert set(accuracies(job.out)) == {"1", "2", "3"}


@pytest.mark.parametrize("kind", ["raw", "fabric", "lightning", "accelerate"])
def test_scripts_of_other_frameworks(site, kind):
    training.write(site.folder, kind)
    job = site.submit("--nodes", 2, "train.py")
    assert job.wait()["JobState"] == "COMPLETED", job.out
    training.assert_trained(site.folder, ranks=2)
    assert len(re.findall("^paceline: run folder", job.out, re.M)) == 1, (
        "the head alone tells the end"
    )


def test_follow_streams_and_ends_as_the_run_does(site):
    training.write(
        site.folder,
        "raw",
        step="if step == 3 and rank == 1: raise KeyError('no such column')",
        epochs=6,
    )
    ended = site.run("paceline", "submit", "--nodes", 2, "--follow", "train.py")
    assert ended.status == 1, ended
    assert (ended.out + ended.err).count("cause: rank 1 raised KeyError") == 1, ended
    training.write(site.folder, "session")
    ended = site.run("paceline", "submit", "--nodes", 2, "--follow", "train.py")
    assert ended.status == 0, ended
    assert "trained by 2 ranks" in ended.out


def test_what_is_printed_can_be_typed(site):
    training.write(site.folder, "session")
    ended = site.run("paceline", "submit", "train.py")
    assert ended.status == 0, ended.err
    follow = re.search(r"(paceline follow .*)$", ended.out, re.M)
    followed = site.bash(follow[1])
    assert followed.status == 0, followed
    assert "trained by 1 ranks" in followed.out
    listed = site.run("paceline", "jobs")
    assert re.search(r"\bsucceeded\b", listed.out), listed


def test_scancel_leaves_no_process(site):
    training.write(site.folder, "raw", step="if step == 3: time.sleep(600)", epochs=6)
    job = site.submit("--nodes", 2, "train.py")
    for rank in range(2):
        site.wait_for(site.folder / f"up-{rank}")
    site.cluster.ask("scancel", job.number)
    assert site.survivors(within_s=10) == []
    assert job.wait()["JobState"] == "CANCELLED"


def test_a_printed_script_can_be_submitted_by_sbatch_once_at_a_time(site):
    training.write(
        site.folder, "session", step="while rank == 0 and not os.path.exists('go'): time.sleep(0.1)"
    )
    ended = site.bash("paceline submit --dry-run --nodes 1 train.py > job.sh")
    assert ended.status == 0, ended.err
    assert not (site.folder / "paceline-runs").exists()
    (command,) = re.findall(r"^#   (sbatch .*)$", (site.folder / "job.sh").read_text(), re.M)
    first = site.bash(command).out.split()[-1]
    while not list(site.folder.glob("paceline-runs/*/lease.json")):
        time.sleep(0.1)
    second = site.bash(command).out.split()[-1]
    refused = site.wait_for_state(second)
    assert refused["ExitCode"] == "2:0"
    assert f"is in use by job {first}" in site.said(refused)
    assert f" {first}  running" in site.run("paceline", "jobs").out
    (site.folder / "go").touch()
    followed = site.run("paceline", "follow", first)
    assert followed.status == 0, followed
    assert "trained by 1 ranks" in followed.out
    training.assert_trained(site.folder, ranks=1)
    (run_dir,) = (site.folder / "paceline-runs").iterdir()
    assert (run_dir / "job.sh").read_text() == (site.folder / "job.sh").read_text()


def test_what_ranks_are_told_of_their_time_is_what_slurm_leaves_them(site):
    """KillWait is 5 s on this cluster, and --grace-s 60 is longer."""
    stays = "signal.signal(signal.SIGTERM, lambda *_: None)\nif step == 3: leave(f'up-{rank}', 1); time.sleep(600)"
    training.write(site.folder, "raw", settings="import signal", step=stays, epochs=6)
    job = site.submit("--nodes", 2, "--grace-s", 60, "train.py")
    for rank in range(2):
        site.wait_for(site.folder / f"up-{rank}")
    at = time.monotonic()
    site.cluster.ask("scancel", job.number)
    assert job.wait()["JobState"] == "CANCELLED"
    assert "ranks have at least 5 s (Slurm's KillWait) to end;" in job.out, job.out
    assert time.monotonic() - at > 4


@pytest.mark.parametrize(
    "options",
    [
        ["--gpus-per-node", "3"],
        ["--partition", "short", "--time", "10m"],
        ["--partition", "nosuch"],
        ["--nodes", "3"],
        ["--partition", "one", "--nodes", "2"],
    ],
    ids=" ".join,
)
def test_what_the_cluster_cannot_give_is_refused_before(site, options):
    training.write(site.folder, "session")
    ended = site.run("paceline", "submit", *options, "train.py")
    assert ended.status == 2, ended
    assert "slurm-request-impossible" in ended.err, ended.err
    assert not (site.folder / "paceline-runs").exists()


def test_gpus_are_given_as_asked_for(site):
    (site.folder / "train.py").write_text(
        "import os, paceline\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'], os.environ['WORLD_SIZE'], flush=True)\n"
    )
    job = site.submit("--gpus-per-node", 2, "--nproc-per-node", 1, "train.py")
    assert job.wait()["JobState"] == "COMPLETED", job.out
    assert "sees 0,1 1" in job.out


NASTY = [
    "two words",
    "it's",
    'a "quote"',
    "Zürich",
    "$(touch broken-out)",
    "`touch broken-out`",
    "; touch broken-out #",
    "back\\slash",
    "$HOME",
    "--dashes",
    "%j",
    "",
]


def test_arguments_arrive_as_typed(site):
    report = "import json, sys\nopen('arguments.json', 'w').write(json.dumps(sys.argv[1:]))\n"
    folder = site.folder / "täglich $(touch broken-out) 'x'"
    folder.mkdir()
    (folder / 'tr"ain 1.py').write_text(report)
    job = site.submit(
        "--job-name", "n'a\"m e $(touch broken-out) ü #", folder.name + '/tr"ain 1.py', *NASTY
    )
    assert job.wait()["JobState"] == "COMPLETED", job.out
    assert json.loads((site.folder / "arguments.json").read_text()) == NASTY
    assert not list(site.folder.rglob("broken-out"))
    named = site.cluster.ask("squeue", "-h", "--states=all", "-j", job.number, "-o", "%j").strip()
    assert named == "n'a\"m e $(touch broken-out) ü #"


def test_a_folder_whose_name_needs_quotes(site):
    folder = site.folder / "my $(touch broken-out) 'project' ü"
    folder.mkdir()
    training.write(folder, "session")
    ended = site.bash(
        f'cd "{str(folder).replace("$", chr(92) + "$")}" && paceline submit --json --nodes 2 train.py'
    )
    assert ended.status == 0, ended.err
    told = json.loads(ended.out)
    job = site.wait_for_state(told["job_id"])
    assert job["JobState"] == "COMPLETED", Path(told["output"]).read_text()
    training.assert_trained(folder, ranks=2)
    assert Path(told["output"]).is_file()
    assert not list(site.folder.rglob("broken-out"))
