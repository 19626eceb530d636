"""A sweep on a real cluster: an array, each element in its own folder, queued again and submitted again by itself."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from paceline.rundir import sweeps
from printed_json import read_json
from slurm import training

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def submit(site, *words):
    """Submit a sweep; return its folder and the number of its array."""
    ended = site.run("paceline", "submit", "--json", *words)
    assert ended.status == 0, ended.err
    values = read_json("submit", ended.out)
    return Path(values["sweep"]), values["job_id"]


def elements(site, folder):
    """What paceline jobs says of the elements of a sweep, by index."""
    listed = site.run("paceline", "jobs", "--json", folder)
    assert listed.status == 0, listed.err
    return {element["index"]: element for element in read_json("jobs", listed.out)}


def release_failed_launches(site):
    """Release jobs that Slurm holds: a launch may take longer than credentials of this cluster last."""
    for line in site.cluster.ask("squeue", "-h", "-r", "-t", "PD", "-o", "%i %r").splitlines():
        number, _, reason = line.partition(" ")
        if "launch failed" in reason:
            site.cluster.ask("scontrol", "release", number)


@pytest.fixture
def shared_cpus(site):
    """Let thirty jobs share a CPU, as many more than there are CPUs are to run at once."""
    site.cluster.ask("scontrol", "update", "PartitionName=main", "OverSubscribe=FORCE:30")
    yield
    site.cluster.ask("scontrol", "update", "PartitionName=main", "OverSubscribe=NO")


def wait_until_ended(site, folder, *, timeout=90.0):
    deadline = time.monotonic() + timeout
    while True:
        found = elements(site, folder)
        if not any(
            element["state"] in ("pending", "running", "completing") for element in found.values()
        ):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def wait_for_words(output, pattern):
    """Wait until an element has printed what matches the pattern."""
    deadline = time.monotonic() + 40
    while not re.search(pattern, output.read_text()):
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)


def test_elements_fail_and_succeed_by_themselves_and_those_that_failed_are_submitted_again(site):
    (site.folder / "train.py").write_text(
        "import sys\nif sys.argv[-1] == '2' and not __import__('os').path.exists('repaired'):\n"
        "    import no_such_module\nprint('trained with', sys.argv[1:])\n"
    )
    folder, array = submit(site, "--param", "lr=1,2,3", "--array", "%2", "--time", "5", "train.py")
    found = wait_until_ended(site, folder)
    assert {index: element["state"] for index, element in found.items()} == {
        0: "succeeded",
        1: "failed",
        2: "succeeded",
    }
    assert "trained with ['--lr', '3']" in (folder / "2" / "slurm.out").read_text()
    listed = site.run("paceline", "jobs", folder)
    assert "1 of 3 elements: module-not-found: rank 0 raised ModuleNotFoundError" in listed.err
    explained = site.run("paceline", "explain", folder / "1")
    assert "no_such_module" in explained.out
    (site.folder / "repaired").touch()
    submit(site, "--again", "failed", "--time", "6", array)
    found = wait_until_ended(site, folder)
    assert [element["state"] for element in found.values()] == ["succeeded"] * 3
    assert found[1]["job"] != f"{array}_1" and found[0]["job"] == f"{array}_0"
    row = read_json("jobs", site.run("paceline", "jobs", "--json").out)[0]
    assert row["state"] == "succeeded 3/3"


@pytest.mark.parametrize("allowed", ["requeue", "no requeue"])
def test_an_element_that_is_stopped_continues_and_leaves_the_others_alone(site, allowed):
    training.write(
        site.folder,
        "session",
        step="element = os.environ['SLURM_ARRAY_TASK_ID']\n"
        "if step == 1: leave(f'waits-{element}', 1)\n"
        "while step == 1 and not os.path.exists(f'go-{element}'): time.sleep(0.1)",
    )
    folder, array = submit(
        site, "--array", "0-1", "--time", "10", "--nproc-per-node", 1, "train.py"
    )
    for index in range(2):
        site.wait_for(site.folder / f"waits-{index}")
    if allowed == "no requeue":
        for index in range(2):
            site.cluster.ask("scontrol", "update", f"JobId={array}_{index}", "Requeue=0")
    site.cluster.ask("scancel", "--signal=TERM", f"{array}_1")
    output = folder / "1" / "slurm.out"
    wait_for_words(output, "SIGTERM from Slurm")
    (site.folder / "go-1").touch()
    wait_for_words(output, "queued again|submitted as job")
    (site.folder / "go-0").touch()
    found = wait_until_ended(site, folder)
    assert [element["state"] for element in found.values()] == ["succeeded"] * 2, found
    first, second = (json.loads((folder / str(index) / "job.json").read_text()) for index in (0, 1))
    assert not first["requeues"] and len(second["requeues"]) == 1
    assert (second["job_id"] == f"{array}_1") == (allowed == "requeue")
    assert second["job_id"].endswith("_1")


def test_cancel_ends_one_element_and_then_all(site):
    (site.folder / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    folder, array = submit(site, "--array", "0-5%2", "--time", "10", "train.py")
    for index in range(2):
        site.wait_for_state(f"{array}_{index}", "RUNNING")
    one = site.run("paceline", "cancel", folder / "0")
    assert one.status == 0, one.err
    site.wait_for_state(f"{array}_2", "RUNNING")  # its place is taken by the next
    ended = site.run("paceline", "cancel", array)
    assert "5 of 6 elements had not ended" in ended.err, ended
    found = wait_until_ended(site, folder)
    assert {element["state"] for element in found.values()} == {"cancelled"}
    assert site.survivors(within_s=15) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_elements_at_once_have_a_folder_each(site, shared_cpus):
    """Each waits until all have begun; the program in place of the run imports no torch."""
    program = site.folder / "element.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--run-dir') + 1])\n"
        "with (folder / 'mine').open('x') as file:\n"
        "    file.write(os.environ['SLURM_ARRAY_TASK_ID'] + ' ' + ' '.join(sys.argv[-2:]))\n"
        "while not os.path.exists('go'):\n"
        "    time.sleep(1)\n"
    )
    profile = site.folder / "plain.toml"
    words = json.dumps(["python3", "-S", str(program)])
    profile.write_text(f"[run]\nprefix = {words}\n")
    values = ",".join(str(number) for number in range(200))
    folder, array = submit(
        site, "--param", f"x={values}", "--profile", profile, "--time", "5", program
    )
    deadline = time.monotonic() + 400
    while (begun := len(list(folder.glob("*/mine")))) < 200:
        assert time.monotonic() < deadline, begun
        release_failed_launches(site)
        time.sleep(2)
    (site.folder / "go").touch()
    found = wait_until_ended(site, folder, timeout=100.0)
    assert {element["state"] for element in found.values()} == {"succeeded"}
    written = {path.parent.name: path.read_text() for path in folder.glob("*/mine")}
    assert written == {str(n): f"{n} --x {n}" for n in range(200)}
    jobs_of = {index: json.loads((folder / index / "job.json").read_text()) for index in written}
    assert {job["job_id"] for job in jobs_of.values()} == {f"{array}_{n}" for n in range(200)}
    assert len(sweeps.read(folder).elements) == 200
