"""What a rank answers about where it is."""

from __future__ import annotations

import json
import sys
import threading
from types import SimpleNamespace

import pytest

from paceline.launcher import witness


def entry(number, *, group="0", retired=True, name="all_reduce", sizes=((4,),)):
    return {
        "collective_seq_id": number,
        "input_sizes": [list(size) for size in sizes],
        "is_p2p": False,
        "process_group": [group, "desc"],
        "profiling_name": f"gloo:{name}",
        "record_id": number - 1,
        "retired": retired,
        "timeout_ms": 1800000,
    }


@pytest.fixture
def recorder(monkeypatch):
    def fill(*entries):
        text = json.dumps({"entries": entries, "nccl_comm_state": {}}, separators=(",", ":")).encode()
        monkeypatch.setitem(
            sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=lambda *_: text)
        )

    return fill


@pytest.mark.parametrize("count", [1, 2, 256, 257, 2000])
def test_the_newest_entries_are_read_without_those_before(recorder, count):
    recorder(*(entry(number) for number in range(1, count + 1)))
    whole = witness.entries()
    assert len(whole) == count
    newest = witness.entries(last=256)
    assert newest == whole[-256:]


def test_what_has_not_come_back_is_pending(recorder):
    recorder(entry(1), entry(2, retired=False, sizes=((2, 3), (4,))))
    state = witness.state()
    assert state["pending"] == [["0", 2, "all_reduce", 10, 1]]
    assert [call[1] for call in state["recent"]] == [1, 2]
    assert state["whole"]
    assert state["recorded"]["flying"]


def test_a_group_that_was_made_again_has_no_past(recorder):
    recorder(entry(8), entry(9), entry(1, name="barrier"), entry(2))
    assert [call[1] for call in witness.state()["recent"]] == [1, 2]


def test_all_threads_are_seen_but_the_one_that_answers():
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait, name="mine")
    thread.start()
    try:
        names = {stack["name"]: stack for stack in witness.stacks()}
    finally:
        waiting.set()
        thread.join()
    assert names["mine"]["frames"][-1][2] == "wait"
    assert not names["mine"]["main"]
