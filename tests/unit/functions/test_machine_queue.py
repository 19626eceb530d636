"""The process that starts jobs on this machine: what it says when it cannot continue."""

from __future__ import annotations

import time

from paceline.functions import by_machine
from paceline.rundir.files import RunDir


def test_an_error_of_the_queue_is_in_its_output(tmp_path):
    job = RunDir(tmp_path / "0")
    job.create()
    queue = by_machine.new_queue([job.root], parallel=1, command=("no-such-command",))
    by_machine.start(tmp_path, queue)
    deadline_s = time.monotonic() + 50
    while (end := by_machine.end(job)) is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert end.word == by_machine.KILLED
    assert "FileNotFoundError" in (tmp_path / "queue.out").read_text()
