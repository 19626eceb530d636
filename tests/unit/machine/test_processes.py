"""Processes as the kernel shows them."""

import os
import types

import psutil
import pytest

from paceline.machine import processes


def test_this_process_is_described():
    assert processes.describe(os.getpid()).startswith(f"pid {os.getpid()} (")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            ["/usr/bin/python3", "/home/me/old_train.py", "--lr", "/data/x"],
            "pid 7 (python3 old_train.py --lr /data/x)",
        ),
        (["a" * 200], f"pid 7 ({'a' * 77}...)"),
        (["nginx: worker   ", "", ""], "pid 7 (nginx: worker)"),
        (
            ["python", "a.py", "--api-key=sk-1", "--hf_token", "hf_abc"],
            "pid 7 (python a.py --api-key=... --hf_token ...)",
        ),
    ],
)
def test_a_process_is_described_by_its_command(monkeypatch, command, text):
    monkeypatch.setattr(
        psutil, "Process", lambda pid: types.SimpleNamespace(cmdline=lambda: command)
    )
    assert processes.describe(7) == text


def test_a_process_that_has_gone_keeps_its_number(monkeypatch):
    def gone(pid):
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", gone)
    assert processes.describe(4242) == "pid 4242"


def test_the_status_of_this_process():
    fields = processes.status(os.getpid())
    assert fields["Pid"] == str(os.getpid())
    assert fields["State"][0] in "RS"
    assert processes.switches(fields) >= 0


def test_of_a_process_that_has_gone_nothing_is_known():
    assert processes.status(2**22 + 5) == {}
    assert processes.switches({}) == -1


def test_half_of_the_switches_is_not_their_number():
    half = processes.parse_status("Name:\tpython\nvoluntary_ctxt_switches:\t7\n")
    assert half == {"Name": "python", "voluntary_ctxt_switches": "7"}
    assert processes.switches(half) == -1
    assert processes.switches({**half, "nonvoluntary_ctxt_switches": "5"}) == 12
