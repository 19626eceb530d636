"""The events of a run folder: their schema, and what they say of the run."""

import json
import os
import time

import pytest

from paceline.errors import Finding
from paceline.rundir.events import (
    EVENTS,
    History,
    Outcome,
    append,
    history_of,
    paths,
    read,
    read_history,
)

RAISED = Finding(
    "script-error-on-one-rank", "rank 1 raised ValueError: bad label 12", where="rank 1 on node-a"
)


def test_events_come_back_in_order(tmp_path):
    path = tmp_path / "events.jsonl"
    before = time.time_ns()
    append(
        path,
        node=1,
        kind="start",
        attempt=0,
        ranks=[2, 3],
        pids=[10, 11],
        world_size=4,
        host="node-a",
        launcher=9,
    )
    append(path, node=1, kind="outcome", exit_status=0, findings=[], summary={"größe": 1})
    first, second = read(path)
    assert (first["version"], first["node"], first["kind"], first["ranks"]) == (
        1,
        1,
        "start",
        [2, 3],
    )
    assert before <= first["time_ns"] <= second["time_ns"] <= time.time_ns()
    assert second["summary"] == {"größe": 1}


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_every_kind_takes_its_fields_and_no_others(tmp_path, kind):
    path = tmp_path / "events.jsonl"
    fields = {name: [] if name in ("ends", "findings") else 0 for name in EVENTS[kind]}
    append(path, node=0, kind=kind, **fields)
    for wrong in ({**fields, "more": 1}, dict(list(fields.items())[1:])):
        with pytest.raises(ValueError, match=kind):
            append(path, node=0, kind=kind, **wrong)
    assert len(read(path)) == 1


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="party"):
        append(tmp_path / "events.jsonl", node=0, kind="party")


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path, cut):
    path = tmp_path / "events.jsonl"
    for attempt in range(2):
        append(path, node=0, kind="end", attempt=attempt, ends=[])
    content = path.read_bytes()
    path.write_bytes(content[: -1 - cut])
    assert [event["attempt"] for event in read(path)] == [0]


def test_a_line_is_one_event_also_with_line_feeds_inside(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, node=0, kind="restart", attempt=1, why={"what": "one\ntwo\u2028three"})
    assert len(path.read_text().splitlines()) == 1
    assert json.loads(path.read_text())["why"]["what"] == "one\ntwo\u2028three"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"kind": "outcome", "exit_status": "1"}',
        '{"kind": "outcome", "findings": {}}',
        '{"kind": "end", "ends": [{"steps": "3"}]}',
        '{"kind": "start", "attempt": null}',
        "[" * 100_000,
    ],
    ids=lambda line: line[:40],
)
def test_a_line_that_is_no_event_hides_no_other(tmp_path, line):
    path = tmp_path / "events.jsonl"
    append(path, node=0, kind="end", attempt=0, ends=[])
    path.write_text(path.read_text() + line + "\n")
    append(path, node=0, kind="end", attempt=1, ends=[])
    assert [event["attempt"] for event in read(path)] == [0, 1]


def test_only_the_end_of_a_long_file_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    for attempt in range(100):
        append(path, node=0, kind="end", attempt=attempt, ends=[])
    assert [event["attempt"] for event in read(path, tail_bytes=200)] == [98, 99]


def test_the_files_of_all_nodes_are_found_the_heads_first(tmp_path):
    for name in (
        "events.node-002.jsonl",
        "events.jsonl",
        "events.node-010.jsonl",
        "events.jsonl.swp",
        "eventsjsonl",
    ):
        (tmp_path / name).touch()
    assert [path.name for path in paths(tmp_path)] == [
        "events.jsonl",
        "events.node-002.jsonl",
        "events.node-010.jsonl",
    ]


def start(attempt, time_ns=0):
    return {"kind": "start", "attempt": attempt, "time_ns": time_ns, "host": "a", "launcher": 9}


def outcome(status, *findings, time_ns=0):
    return {
        "kind": "outcome",
        "exit_status": status,
        "findings": list(findings),
        "time_ns": time_ns,
    }


def end(*steps):
    return {"kind": "end", "ends": [{"steps": count} for count in steps]}


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ([], None),
        ([[outcome(1)]], 1),
        ([[start(0), outcome(1), start(1), outcome(0)]], 0),
        ([[start(0), outcome(1), start(1)]], None),
        ([[start(0), outcome(1), outcome(75)]], 75),
        ([[start(0), outcome(1)], [start(0), outcome(2, time_ns=9)]], 1),
        ([[start(0)], [start(0), outcome(2)]], 2),
        ([[start(0), outcome(1)], [start(0), start(1), outcome(2)]], 2),
    ],
)
def test_the_outcome_is_that_of_the_last_start(files, status):
    last = history_of(files).outcome
    assert (last.exit_status if last else None) == status


def test_an_outcome_from_before_the_job_was_queued_again_does_not_count():
    files = [[start(0), end(30), outcome(1, time_ns=5)]]
    assert history_of(files, since_ns=6) == History(launchers=(("a", 9),), nodes=1)
    assert history_of(files, since_ns=5).outcome == Outcome(1, (), 5)


@pytest.mark.parametrize(
    ("files", "steps"),
    [
        ([[start(0)]], None),
        ([[start(0), {"kind": "end"}]], 0),
        ([[start(0), end(3, 7)], [start(0), end(9)]], 9),
        ([[start(0), end(30), start(1), end(4)]], 4),
        ([[start(0), end(30)], [start(1), end(4)]], 4),
    ],
)
def test_the_steps_are_those_of_the_last_start(files, steps):
    assert history_of(files).steps == steps


def test_a_finding_that_is_not_understood_hides_no_other():
    assert history_of([[outcome(1, "odd", {"code": 1}, RAISED.to_json())]]).outcome == Outcome(
        1, (RAISED,)
    )


def test_what_cannot_be_read_says_nothing(tmp_path):
    assert read_history(tmp_path / "nowhere") == History()
    os.mkfifo(tmp_path / "events.jsonl")  # opened for reading, it would wait for a writer
    assert read_history(tmp_path) == History()
