"""The page of ``paceline report`` in a browser: nothing is fetched, empty, too wide or on top of other text."""

from __future__ import annotations

import pytest

import report_runs
from paceline.measure.report import collect, command, text

pytestmark = pytest.mark.browser

BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
HOSTILE = "<script>window.alerted = true</script>"


def page_of(*folders):
    runs = collect.collect([str(folder) for folder in folders])
    return command.render(runs, text=text.render(runs), now_s=0.0)


def complaints(measured):
    """What is wrong with a command, by width and theme."""
    listed = []
    for width, report in measured.items():
        assert report["inner"] == width
        for theme, background in BACKGROUNDS.items():
            look = report[theme]
            wrong = {
                name: look[name] for name in ("empty", "errors", "overlaps", "requests", "tooWide")
            }
            if look["background"] != background:
                wrong["background"] = look["background"]
            if look["width"] > width:
                wrong["width"] = look["width"]
            listed += [f"{width} {theme} {name}: {value}" for name, value in wrong.items() if value]
    return listed


def test_a_run(measure, tmp_path):
    folder = report_runs.write_run(tmp_path / "20261122-train-3f2a")
    measured = measure(page_of(folder))
    assert complaints(measured) == []
    assert measured[1280]["light"]["plots"] == 5
    assert measured[1280]["light"]["labels"] > 0  # names beside curves, and on a phone above them
    assert measured[390]["light"]["labels"] == 0
    assert "val/loss" in measured[1280]["hover"]


def test_runs_compared_with_names_that_are_code(measure, tmp_path):
    events = [
        report_runs.start(),
        report_runs.outcome(exit_status=1, findings=[report_runs.FINDING]),
    ]
    named = {"command": ("train.py", "--name", HOSTILE), "metrics": report_runs.table(factor=2.0)}
    folders = [
        report_runs.write_run(tmp_path / "one"),
        report_runs.write_run(tmp_path / HOSTILE.replace("/", "-"), **named),
        report_runs.write_run(
            tmp_path / "three", command=("train.py", "--lr", "0.5"), events=events
        ),
    ]
    measured = measure(page_of(*folders))
    assert complaints(measured) == []
    assert not any(report["alert"] for report in measured.values())


def test_a_bench_with_its_forecast(measure, tmp_path):
    measured = measure(page_of(report_runs.write_bench(tmp_path / "bench")))
    assert complaints(measured) == []
    assert measured[390]["dark"]["plots"] == 1


def test_what_is_looked_for_is_found(measure, tmp_path):
    whole = page_of(report_runs.write_run(tmp_path / "run"))
    wrong = (
        '<div style="width:2000px">wide</div>'
        '<div style="position:absolute;left:0;top:9px">upper</div>'
        '<div style="position:absolute;left:0;top:12px">lower</div>'
        '<div class="plot" id="blank"></div><img src="http://192.0.2.1/pixel.png">'
        "<script>console.error('broken')</script>"
    )
    measured = measure(whole.replace("</main>", f"{wrong}</main>"))
    found = "\n".join(complaints(measured))
    for expected in ("width: 2", "upper | lower", "'blank'", "broken", "refused: http"):
        assert expected in found
