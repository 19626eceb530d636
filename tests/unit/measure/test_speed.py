"""Which run's speed is read, and what is said about a folder without one."""

import json
import os
import time

import pytest

import run_events
from paceline.errors import SetupError
from paceline.measure import speed
from paceline.rundir.files import RunDir

DESCRIPTION = {
    "version": 1,
    "time_s": 1000.0,
    "steps_per_s": 2.0,
    "batches_per_step": 1.0,
    "samples_per_batch": 8,
    "tokens_per_batch": 0,
    "steps": 60,
    "step": None,
    "ranks": [{"host": "node-a", "loop_length": 100, "open_batches": 60}],
}


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "speed.json").write_text(json.dumps(DESCRIPTION))
    return RunDir(tmp_path)


def test_the_run_that_wrote_last_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for written_s, name in ((1000, "older"), (1001, "newer")):
        folder = tmp_path / "paceline-runs" / name
        folder.mkdir(parents=True)
        (folder / "speed.json").write_text(json.dumps(DESCRIPTION))
        os.utime(folder / "speed.json", (written_s, written_s))
    assert speed.find("").root.name == "newer"
    assert speed.find("older").root.name == "older"
    assert speed.find(str(tmp_path / "paceline-runs" / "older")).root.name == "older"


def test_rates_follow_from_the_description(run_dir):
    figures = speed.read(run_dir)
    assert figures["samples_per_s"] == 16.0
    assert figures["loop_left_s"] == 20.0
    assert figures["outcome"] == ""


def test_a_run_that_has_ended_says_how(run_dir):
    description = {**DESCRIPTION, "time_s": time.time() - 1}
    run_dir.speed.write_text(json.dumps(description))
    run_events.outcome(run_dir.events(0), 1)
    assert speed.read(run_dir)["outcome"] == "failed"


def test_the_end_of_an_earlier_start_does_not_count(run_dir):
    run_events.outcome(run_dir.events(0), 1)
    description = {**DESCRIPTION, "time_s": time.time() + 60}
    run_dir.speed.write_text(json.dumps(description))
    assert speed.read(run_dir)["outcome"] == ""


def test_without_a_run_it_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="no run in paceline-runs"):
        speed.find("")
    with pytest.raises(SetupError, match="there is no run folder other") as refused:
        speed.find("other")
    assert "a launcher writes speed.json" in refused.value.finding.evidence[-1]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "\x00",
        "[]",
        "{}",
        '{"version": 99}',
        '{"version": 1}',
        json.dumps({**DESCRIPTION, "ranks": []}),
        json.dumps({**DESCRIPTION, "time_s": "yesterday"}),
    ],
)
def test_a_damaged_description_is_a_finding(run_dir, content):
    run_dir.speed.write_text(content)
    with pytest.raises(SetupError, match=r"speed\.json cannot be read"):
        speed.read(run_dir)


def test_a_folder_without_a_description_is_a_finding(tmp_path):
    with pytest.raises(SetupError, match=r"holds no speed\.json"):
        speed.read(RunDir(tmp_path))
