"""The process that starts jobs on this machine: what it says when it cannot continue."""

import time

from paceline.functions import by_machine
from paceline.rundir.files import RunDir


def wait_for_end(job):
    deadline_s = time.monotonic() + 50
    while (end := by_machine.end(job)) is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return end


def test_a_job_that_cannot_be_started_fails_alone(tmp_path):
    jobs = [RunDir(tmp_path / name) for name in "01"]
    for job in jobs:
        job.create()
    queue = by_machine.new_queue(
        [job.root for job in jobs], parallel=1, command=("no-such-command",)
    )
    by_machine.start(tmp_path, queue)
    for job in jobs:
        assert wait_for_end(job).word != by_machine.KILLED
        assert "cannot be started: FileNotFoundError" in job.local_output.read_text()


def test_an_error_of_the_queue_is_in_its_output(tmp_path):
    job = RunDir(tmp_path / "0")
    job.create()
    queue = by_machine.new_queue([job.root], parallel=1, command=("no\0command",))
    by_machine.start(tmp_path, queue)
    assert wait_for_end(job).word == by_machine.KILLED
    assert "ValueError" in (tmp_path / "queue.out").read_text()
