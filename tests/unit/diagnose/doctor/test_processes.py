"""Processes: what an earlier run has left behind, and how they are described."""

import os
import time
from types import SimpleNamespace

import pytest

from paceline.diagnose.doctor.collectors import processes


class Process(SimpleNamespace):
    """A process as psutil shows it."""

    def oneshot(self):
        from contextlib import nullcontext

        return nullcontext()


def process(environ, name="python"):
    return Process(
        pid=4242,
        environ=lambda: environ,
        name=lambda: name,
        cmdline=lambda: ["/usr/bin/python", "/home/eva/train.py", "--lr", "0.1"],
        create_time=lambda: time.time() - 100,
        memory_info=lambda: SimpleNamespace(rss=1 << 30),
        net_connections=lambda kind: [],
    )


@pytest.mark.parametrize(
    ("environ", "name", "run"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "job-7"}, "python", "job-7"),
        (
            {"RANK": "0", "PACELINE_RUN_DIR": "runs/x", "TORCHELASTIC_RUN_ID": "y"},
            "python",
            "runs/x",
        ),
        ({}, "paceline-warm", ""),
        ({"RANK": "3"}, "python", None),
        ({"WORLD_SIZE": "4"}, "python", None),
        ({}, "python", None),
    ],
    ids=str,
)
def test_which_processes_are_of_a_run(environ, name, run):
    found = processes._leftover(process(environ, name))
    assert (None if found is None else found.run) == run
    if found is not None:
        assert (found.pid, found.command) == (4242, "python train.py --lr 0.1")
        assert 99 <= found.age_s <= 102


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["/sbin/init", "splash"], False),
        (["/usr/lib/systemd/systemd", "--switched-root"], False),
        (["/usr/bin/tini", "--", "sleep", "infinity"], False),
        (["bash"], False),
        (["/bin/bash", "-l"], False),
        (["/bin/bash", "/workspace/run.sh"], True),
        (["/bin/sh", "-c", "for i in 0 1; do RANK=$i ./a.out & done"], True),
        (["/opt/venv/bin/python", "train.py"], True),
        (["torchrun", "train.py"], True),
        ([], False),
    ],
    ids=str,
)
def test_a_first_process_that_starts_ranks_itself_has_no_orphans(words, starts):
    assert processes.starts_ranks(words) == starts


@pytest.mark.parametrize(
    ("environ", "lost"),
    [({}, True), ({"RANK": "0"}, False)],
    ids=["a container", "one that was told its rank"],
)
def test_who_has_lost_its_parent(environ, lost, monkeypatch):
    first = SimpleNamespace(
        cmdline=lambda: ["tini", "--", "./start"], environ=lambda: environ, name=lambda: "tini"
    )
    monkeypatch.setattr("psutil.Process", lambda pid: first)
    assert processes._has_lost_its_parent(Process(info={"pid": 77, "ppid": 1})) == lost


def test_commands_are_told_without_their_secrets():
    words = ["python", "train.py", "--hf_token", "hf_abc", "--api-key=sk-1", "--lr", "0.1"]
    told = processes._command(Process(cmdline=lambda: words, name=lambda: "python"))
    assert told == "python train.py --hf_token ... --api-key=... --lr 0.1"


def test_this_process_is_nobodys_leftover():
    left, _ = processes.gather_processes()
    assert os.getpid() not in [each.pid for each in left]
    assert processes.describe(os.getpid()).alive
    assert not processes.describe(2**22 + 5).alive
