"""A report shows what a run folder has, whatever state the folder is in, and says what is missing."""

from __future__ import annotations

import json
import os

import pytest

import report_runs
from paceline.errors import SetupError
from paceline.measure.report import collect
from paceline.rundir.files import RunDir


def read(folder):
    return collect.read(RunDir(folder))


def test_a_whole_run(tmp_path):
    run = read(report_runs.write_run(tmp_path / "run"))
    assert (run.name, run.state, run.world_size, run.steps) == ("run", "succeeded", 2, 300)
    assert run.command == ("train.py", "--lr", "0.1")
    assert run.seconds == 60.0  # from its start to its last description
    assert set(run.metrics) == {"train/loss", "val/loss", "val/accuracy", "lr"}
    assert run.split is not None
    assert run.split.parts["waiting"] == pytest.approx(0.2 * run.split.seconds)
    assert sum(run.split.parts.values()) == pytest.approx(run.split.seconds)
    assert run.split.late_rank == (
        "rank 1 on node-b takes 40 ms longer a step than the others: waiting for its DataLoader"
    )
    assert [(rank.rank, rank.own_s, rank.data_s) for rank in run.ranks] == [
        (0, 0.1, 0.02),
        (1, 0.14, 0.02),
    ]
    assert run.environment["threads of a rank"] == "1 (2 usable CPUs / 2 ranks)"
    assert run.environment["Python"] == "3.11.7"
    assert "NCCL" not in run.environment
    assert run.notes == ()


def test_threads_that_were_left_as_they_are(tmp_path):
    folder = report_runs.write_run(tmp_path / "run")
    plan = next(folder.rglob("plan*.json"))
    values = json.loads(plan.read_text())
    values["threads"] = {"value": None, "reason": "OMP_NUM_THREADS is set"}
    plan.write_text(json.dumps(values))
    assert "threads of a rank" not in read(folder).environment


def test_steps_of_an_unknown_number_of_samples_are_said(tmp_path):
    folder = report_runs.write_run(tmp_path / "run", lines=0)
    lines = [report_runs.speed_line(number, samples_per_batch=0) for number in range(1, 13)]
    report_runs.write_lines(folder / "speed.jsonl", lines)
    (note,) = read(folder).notes
    assert note.startswith("no samples/s: the samples of a step are unknown")


def test_a_run_that_failed_shows_its_findings(tmp_path):
    events = [
        report_runs.start(),
        report_runs.outcome(exit_status=1, findings=[report_runs.FINDING]),
    ]
    run = read(report_runs.write_run(tmp_path / "run", events=events))
    assert run.state == "failed"
    assert [finding.code for finding in run.findings] == ["RUN002"]


def test_a_run_in_progress_is_not_called_ended(tmp_path):
    run = read(
        report_runs.write_run(tmp_path / "run", events=[report_runs.start(host="elsewhere")])
    )
    assert run.state == "unknown"
    assert run.steps == 300


def test_a_resumed_run_adds_up_its_starts_without_the_pause(tmp_path):
    events = [
        report_runs.start(),
        report_runs.start(1, time_s=9000.0),
        report_runs.outcome(time_s=9100),
    ]
    folder = report_runs.write_run(tmp_path / "run", events=events)
    later = [report_runs.speed_line(n, attempt=1, start_s=9000.0) for n in range(1, 5)]
    with (folder / "speed.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in later)
    run = read(folder)
    assert [attempt.number for attempt in run.attempts] == [0, 1]
    assert run.seconds == 80.0


def test_a_run_without_metrics_and_speed_says_so(tmp_path):
    folder = report_runs.write_run(tmp_path / "run", metrics="")
    (folder / "speed.jsonl").unlink()
    (folder / "speed.json").unlink()
    run = read(folder)
    assert run.split is None
    assert run.ranks == ()
    assert [note.split(":")[0] for note in run.notes] == ["no metrics", "no speed over time"]


def test_the_split_of_a_short_run_is_that_of_its_end(tmp_path):
    summary = {"step": report_runs.described(0.5)}
    events = [report_runs.start(), report_runs.outcome(summary=summary)]
    folder = report_runs.write_run(tmp_path / "run", lines=0, events=events)
    assert read(folder).split.seconds == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["speed.jsonl", "speed.json", "events.jsonl", "plan.json"])
@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '"text"', "{}", '{"ranks": 1, "step": 3}', "[[[", "\x00\xff", "1\n2\n"],
)
def test_a_damaged_file_does_not_end_the_report(tmp_path, name, content):
    folder = report_runs.write_run(tmp_path / "run")
    (folder / name).write_text(content)
    run = read(folder)
    assert set(run.metrics) == {"train/loss", "val/loss", "val/accuracy", "lr"}
    if content == "{" and name != "plan.json":  # without the plan nothing measured is missing
        said = (
            "speed.json has another form than" if name == "speed.json" else f"{name}: 1 of 1 lines"
        )
        assert any(note.startswith(said) for note in run.notes)


def test_a_folder_in_the_place_of_a_file_does_not_end_the_report(tmp_path):
    folder = report_runs.write_run(tmp_path / "run")
    for name in ("metrics.csv", "speed.jsonl", "training.json"):
        (folder / name).unlink()
        (folder / name).mkdir()
    notes = read(folder).notes
    assert [note.split(" ")[0] for note in notes] == ["metrics.csv", "speed.jsonl"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"version": 2}, "version 2"),
        ({"worlds": None}, "AttributeError"),
        ({"worlds": {"x": 1}}, "x"),
    ],
)
def test_a_bench_of_another_form_is_not_shown(tmp_path, values, reason):
    run = read(report_runs.write_bench(tmp_path / "bench", **values))
    assert run.bench is None
    assert run.notes[-1].startswith("bench.json has another form")
    assert reason in run.notes[-1]


def test_a_bench_and_its_forecast(tmp_path):
    run = read(report_runs.write_bench(tmp_path / "bench"))
    assert [world.ranks for world in run.bench.worlds] == [1, 2, 4]
    assert run.forecast.half_worth_at == 2500
    assert len(run.bench.network) == 10
    assert run.command == ("train.py", "--lr", "0.1")
    assert run.notes == ()


def test_the_latest_run_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="no run in paceline-runs"):
        collect.collect([])
    report_runs.write_run(tmp_path / "paceline-runs" / "one")
    assert [run.name for run in collect.collect([])] == ["one"]
    assert [run.name for run in collect.collect(["one", "one"])] == ["one"]


def test_a_folder_that_holds_no_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(SetupError, match="holds no run"):
        collect.collect([str(tmp_path)])
    with pytest.raises(SetupError, match="there is no run folder"):
        collect.collect([str(tmp_path / "missing")])


def test_without_a_name_the_run_or_bench_that_wrote_last_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "paceline-runs"
    trained = report_runs.write_run(runs / "trained")
    benched = report_runs.write_bench(runs / "benched")
    os.utime(trained / "events.jsonl", (1000, 1000))
    os.utime(benched / "bench.json", (2000, 2000))
    assert [run.name for run in collect.collect([])] == ["benched"]
    os.utime(trained / "events.jsonl", (3000, 3000))
    assert [run.name for run in collect.collect([])] == ["trained"]
