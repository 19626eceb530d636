"""A script that changes how its rank finds the others: what is told, when, and when not."""

from __future__ import annotations

import os
import time

import pytest

from paceline.launch.in_rank.meeting import Meeting, Meetings, open_changes

SET = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000", "WORLD_SIZE": "2", "RANK": "1"}


@pytest.fixture
def entries(monkeypatch):
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    return []


@pytest.fixture
def meeting(entries):
    return Meeting(SET, entries.append, is_users=lambda file: file == __file__)


def test_a_script_that_changes_nothing_reports_nothing(meeting, entries):
    meeting.note("MASTER_PORT", "4000", "4000")
    meeting.begin()
    meeting.end()
    assert entries == []


def test_what_differs_is_told_with_its_line_until_the_group_is_made(meeting, entries):
    meeting.note("MASTER_PORT", "4000", "4001")
    os.environ.update(MASTER_PORT="4001", WORLD_SIZE="3")
    meeting.begin()
    port, size = open_changes(entries)["1"]["changes"]
    assert port.startswith(f"MASTER_PORT=4001 ({__file__}:")
    assert port.endswith("; the launcher set 4000")
    assert size == "WORLD_SIZE=3; the launcher set 2"
    meeting.end()
    assert open_changes(entries) == {}


@pytest.mark.parametrize(
    ("since_s", "is_made", "is_printed"),
    [(1, False, False), (4, False, True), (4, True, False)],
)
def test_a_notice_comes_once_if_the_rank_still_waits(since_s, is_made, is_printed):
    changed = {
        "rank": "1",
        "time_ns": time.time_ns() - since_s * 10**9,
        "changes": ["MASTER_PORT=4001; the launcher set 4000"],
    }
    made = {"rank": "1", "time_ns": 0, "changes": []}
    printed = []
    for _ in range(2):
        meetings = Meetings(lambda: iter([changed, made] if is_made else [changed]), printed.append)
        meetings.tick()
        meetings.tick()
    assert [it.details for it in printed] == [tuple(changed["changes"])] * 2 * is_printed
