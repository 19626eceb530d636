"""The command ``paceline report``: a text of 80 columns, a page in one file, data for a program."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

import report_runs
from paceline.errors import SetupError, UsageError
from paceline.measure.report import collect, command, text
from paceline.measure.report.sections import sections
from paceline.rundir import sweeps
from paceline.rundir.sweeps import SweepRecord
from printed_json import read_json
from refusals import refusal

NO_PACKAGE = "an HTML report needs jinja2 and plotly"


def run_of(*folders):
    return collect.collect([str(folder) for folder in folders])


def report(*folders, output=None, as_text=False, as_json=False, most_grown=None):
    names = [str(folder) for folder in folders]
    return command.report(
        names, output=output, as_text=as_text, as_json=as_json, most_grown=most_grown or {}
    )


def test_two_runs_are_compared_for_a_pipeline(tmp_path, capsys):
    before, after = (report_runs.write_run(tmp_path / name) for name in ("before", "after"))
    assert report(before, after, as_text=True, most_grown={"speed": 0.05}) == 0
    rows = after / "speed.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    slower = [{**line, "steps": line["steps"] // 2, "steps_per_s": 2.5} for line in lines]
    rows.write_text("".join(json.dumps(line) + "\n" for line in slower))
    capsys.readouterr()
    assert report(before, after, as_json=True, most_grown={"speed": 0.05}) == 1
    compared = read_json("report", capsys.readouterr().out)
    assert [each["name"] for each in compared["comparisons"]] == ["speed"]
    assert [each["name"] for each in compared["findings"]] == ["run-regressed"]
    assert report(before, after, as_text=True) == 0
    assert report(before, after, as_text=True, most_grown={"loss": 0.05}) == 0
    (after / "metrics.csv").unlink()
    assert report(before, after, as_text=True, most_grown={"loss": 0.05}) == 2
    assert "comparison-undecided" in capsys.readouterr().out
    found = refusal(UsageError, report, before, as_text=True, most_grown={"speed": 0.05})
    assert found.name == "option-invalid"


def test_the_text_of_a_run_fits_and_says_what_the_page_shows(tmp_path):
    printed = text.render(run_of(report_runs.write_run(tmp_path / "run")))
    assert max(map(len, printed.splitlines())) <= 80
    assert "run · succeeded · 2 ranks · 300 steps · 1 min 00 s" in printed
    assert re.search(r"^train/loss +2.5 +0.008333 +█▂▂▂▁", printed, re.M)
    assert re.search(r"^  waiting +4\d.\d ms +20%  ██████$", printed, re.M)
    assert "rank 1 on node-b takes 40 ms longer a step than the others: waiting for" in printed


def test_the_text_of_a_bench(tmp_path):
    printed = text.render(run_of(report_runs.write_bench(tmp_path / "bench")))
    assert max(map(len, printed.splitlines())) <= 80
    assert re.search(r"^ +4 +2\d\.\d ms +4,\d{3} +4,\d{3} to [45],\d{3} +79%$", printed, re.M)
    assert "From 2,500 ranks on, another one brings less than half of itself." in printed
    assert re.search(r"^ +256 MiB +40\d ms +1\.00 GB/s$", printed, re.M)


def test_a_bench_without_a_number_of_samples_says_so(tmp_path):
    worlds = {
        size: {**values, "samples_per_step": 0}
        for size, values in report_runs.bench()["worlds"].items()
    }
    (run,) = run_of(report_runs.write_bench(tmp_path / "bench", worlds=worlds))
    assert run.scaling == ()
    assert any("samples of a step are unknown" in note for note in run.notes)


def test_the_text_of_several_runs_begins_with_a_comparison_in_columns(tmp_path):
    metrics = "step,loss\n1,0.0003987\n2,0.0003987\n"
    folders = [
        report_runs.write_run(tmp_path / rate, command=("train.py", "--lr", rate), metrics=metrics)
        for rate in ("0.1", "0.5")
    ]
    one, two = run_of(*folders)
    two = replace(two, speed=[replace(point, samples_per_step=0) for point in two.speed])
    lines = text.render([one, two]).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split("  ")[0] for line in lines[:3]] == ["run", "--lr 0.1", "--lr 0.5"]
    assert lines[1].split()[-2:] == ["320", "0.0003987"]
    assert lines[2].endswith("  5.00 steps/s  0.0003987")


def test_an_interval_of_no_width_is_not_printed(tmp_path):
    worlds = {str(size): report_runs.world(size, rounds=1, steps=8) for size in (1, 2)}
    printed = text.render(run_of(report_runs.write_bench(tmp_path / "bench", worlds=worlds)))
    assert re.search(r"^ +2 +2\d\.\d ms +3,\d{3} +- +\d+%$", printed, re.M), printed
    assert re.search(r"2 ranks are [\d.]+x as fast as 1 rank: \d+% of ideal", printed)


def test_a_curve_in_one_line_marks_what_is_not_finite():
    from paceline.measure.report.facts import Series

    series = Series((0, 1, 2, 9), (8.0, 1.0, float("nan"), 4.0))
    assert text.sparkline(series, columns=10) == "█▁!      ▄"
    assert text.sparkline(series) == "█▁!      ▄"
    assert text.sparkline(Series((45, 90, 135, 180), (1.0, 2.0, 3.0, 4.0))) == "▁▃▆█"


def test_the_page_is_one_file_that_names_no_host(tmp_path, capsys):
    folder = report_runs.write_run(tmp_path / "run")
    report(folder)
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder / 'report.html'}"
    html = (folder / "report.html").read_text(encoding="utf-8")
    own = html[: html.index("plotly.js v")] + html[html.rindex("</script>\n<script>") :]
    assert not re.search(r"""(src|href)=["'](?!#)|url\(|https?://|@import""", own)
    assert "default-src 'none'" in own


def test_each_figure_is_one_that_plotly_draws(tmp_path):
    go = pytest.importorskip("plotly.graph_objects")
    from paceline.measure.report import drawing

    runs = run_of(
        report_runs.write_run(tmp_path / "run"), report_runs.write_bench(tmp_path / "bench")
    )
    figures = [drawing.figure(plot) for section in sections(runs) for plot in section.plots]
    assert len(figures) > 5
    for figure in figures:
        painted = json.loads(re.sub(r'"@[a-z0-9-]+"', '"#123456"', json.dumps(figure)))
        go.Figure(painted)  # raises at a property that plotly does not know


def test_texts_of_users_are_escaped(tmp_path):
    hostile = "</script><script>alert(1)</script>"
    events = [
        report_runs.start(),
        report_runs.outcome(exit_status=1, findings=[report_runs.FINDING]),
    ]
    table = f'step,"{hostile}"\n1,2\n2,1\n'
    named = {"command": ("train.py", hostile), "events": events, "metrics": table}
    runs = run_of(report_runs.write_run(tmp_path / "<img src=x>", **named))
    html = command.render(runs, text=text.render(runs), now_s=0.0)
    assert "<script>alert" not in html
    assert "<img" not in html.replace(html[html.index("plotly.js v") : html.rindex("<script>")], "")


def test_several_runs_have_a_page_of_their_own(tmp_path, capsys):
    one, two = (report_runs.write_run(tmp_path / name) for name in ("one", "two"))
    report(one)
    report(one, two)
    assert {path.name for path in one.glob("*.html")} == {"report.html", "comparison.html"}
    report(two, output=tmp_path / "here.html")
    assert (tmp_path / "here.html").is_file()
    assert not list(two.glob("*.html"))


def test_text_and_data_need_no_further_package(tmp_path, monkeypatch, capsys):
    folder = report_runs.write_run(tmp_path / "run")
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    report(folder, as_text=True)
    assert "run · succeeded" in capsys.readouterr().out
    report(folder, as_json=True)
    (run,) = read_json("report", capsys.readouterr().out)["runs"]
    assert run["metrics"]["train/loss"] == {"step": 300, "last": pytest.approx(2.5 / 300)}
    assert sum(run["step"]["parts"].values()) == pytest.approx(run["step"]["seconds"])
    with pytest.raises(SetupError, match=NO_PACKAGE) as refused:
        report(folder)
    assert refused.value.finding.fix == 'pip install "paceline[report]"'
    assert not list(folder.glob("*.html"))


def test_data_are_json_though_a_loss_is_not_a_number(tmp_path, capsys):
    folder = report_runs.write_run(tmp_path / "run", metrics="step,loss\n1,2.0\n2,nan\n3,inf\n")
    report(folder, as_json=True)
    printed = capsys.readouterr().out
    assert "NaN" not in printed
    assert json.loads(printed)["runs"][0]["metrics"] == {"loss": {"step": 3, "last": 2.0}}


def test_a_page_with_a_loss_that_is_not_a_number_is_json(tmp_path):
    metrics = "step,loss\n1,2.0\n2,nan\n3,inf\n4,1.0\n"
    runs = run_of(report_runs.write_run(tmp_path / "run", metrics=metrics))
    html = command.render(runs, text="", now_s=0.0)
    figures = re.search(r'id="figures">(.*?)</script>', html, re.S)[1]
    assert "NaN" not in figures
    assert "Infinity" not in figures


def shown(*folders):
    """Everything that a report can be, of some folders; the page's data are read as a browser does."""
    runs = run_of(*folders)
    printed = text.render(runs)
    assert max(map(len, printed.splitlines())) <= 80
    json.dumps([command.to_json(run) for run in runs], allow_nan=False)
    html = command.render(runs, text=printed, now_s=0.0)
    figures = re.search(r'id="figures">(.*?)</script>', html, re.S)[1]
    json.loads(figures, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return runs


@pytest.mark.parametrize(
    "rows",
    [
        ("1,1",),
        ("1,nan", "2,nan"),
        ("1,1e308", "1,1e308", "2,1e308"),
        ("1,-1e308", "2,1e308"),
        ("1,0", "2,0"),
        ("-5,1", "0,2"),
        ("99999999999999999999,1", "1,2"),
        ("1,1e-300", "2,1e300"),
        ("1,5e-324", "2,1"),
    ],
)
def test_odd_numbers_are_shown(tmp_path, rows):
    table = "\n".join(("step,loss", *rows)) + "\n"
    shown(report_runs.write_run(tmp_path / "run", metrics=table))


@pytest.mark.parametrize(
    ("name", "value"),
    [("time_s", math.inf), ("samples_per_batch", math.nan), ("loss", math.nan), ("steps", 7)],
)
def test_odd_descriptions_of_the_speed_are_shown(tmp_path, name, value):
    folder = report_runs.write_run(tmp_path / "run", metrics="")
    lines = [report_runs.speed_line(number, **{name: value}) for number in range(1, 9)]
    report_runs.write_lines(folder / "speed.jsonl", lines)
    (run,) = shown(folder)
    is_unreadable = name in ("time_s", "samples_per_batch")
    assert ("speed.jsonl: 8 of 8 lines are not readable" in run.notes) == is_unreadable


@pytest.mark.parametrize(
    "values",
    [
        {"worlds": {}},
        {"worlds": {"1": report_runs.world(1)}},
        {"worlds": {"1": report_runs.world(1, step_us=0)}},
        {"network": None},
        {"network": {"points": [report_runs.network_point(1024)]}},
        {"network": {"points": [report_runs.network_point(0), report_runs.network_point(8)]}},
    ],
)
def test_odd_benches_are_shown(tmp_path, values):
    shown(report_runs.write_bench(tmp_path / "bench", **values))


@pytest.mark.parametrize("high", [math.nan, math.inf])
def test_a_forecast_without_bounds_is_not_shown(tmp_path, high):
    folder = report_runs.write_bench(tmp_path / "bench")
    point = {"world": 2, "samples_per_s": 1.0, "low": 0.5, "high": high}
    (folder / "forecast.json").write_text(json.dumps({"points": [point]}))
    (run,) = shown(folder)
    assert run.forecast is None
    assert run.notes[0].startswith("forecast.json has another form")


def test_a_forecast_alone_and_many_different_runs(tmp_path):
    forecast = report_runs.write_bench(tmp_path / "forecast")
    (forecast / "bench.json").unlink()
    runs = [
        report_runs.write_run(tmp_path / f"run-{number}", command=("train.py", "--lr", str(number)))
        for number in range(10)
    ]
    assert len(shown(forecast, *runs)) == 11


@pytest.mark.parametrize("wanted", [{"as_text": True}, {"as_json": True}])
def test_a_page_that_is_not_written_is_not_named(tmp_path, wanted):
    folder = report_runs.write_run(tmp_path / "run")
    with pytest.raises(UsageError, match="--output names a page"):
        report(folder, output=tmp_path / "page.html", **wanted)


def test_a_folder_that_is_missing_is_said(tmp_path, capsys):
    folder = report_runs.write_run(tmp_path / "run")
    with pytest.raises(SetupError, match="cannot be written"):
        report(folder, output=tmp_path / "missing" / "page.html")


def test_the_trials_of_verify_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trials = tmp_path / "paceline-runs" / "verify-train" / "trials"
    for name in ("1-rank", "2-ranks"):
        report_runs.write_run(trials / name)
    for names in ((), ("verify-train",)):
        report(*names)
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines[1:3]] == ["1-rank", "2-ranks"]
        assert lines[-1] == "report: paceline-runs/verify-train/trials/comparison.html"


def test_a_sweep_is_compared_by_the_values_of_its_elements(tmp_path, capsys):
    folder = tmp_path / "sweep"
    values = {index: {"lr": f"0.{index}"} for index in range(12)}
    for index in range(10):  # the last two have not started
        command = ("train.py", "--lr", f"0.{index}")
        report_runs.write_run(sweeps.folder_of(folder, index), command=command)
    sweeps.write(folder, SweepRecord(("12",), elements=values))
    report(folder)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:11]] == [f"--lr 0.{n}" for n in range(10)]
    assert lines[-1].endswith("sweep/comparison.html")
    assert len(lines) < 20 and max(map(len, lines[:-1])) <= 80
    assert (folder / "comparison.html").exists()
    sweeps.write(folder, SweepRecord(("12",), elements={11: {}}))
    assert "no element of the sweep" in refusal(SetupError, report, folder, as_text=True).what
