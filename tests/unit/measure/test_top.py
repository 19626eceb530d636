"""What ``paceline top`` shows of the speed that a launcher has written."""

from __future__ import annotations

import json

import pytest

from paceline.errors import SetupError
from paceline.measure import top
from paceline.rundir.files import RunDir

STEP = {
    "seconds": 0.2,
    "stages": {"optimizer": 0.01, "other": 0.0, "data": 0.04, "forward": 0.03, "backward": 0.06},
    "exchange": 0.02,
    "waiting": 0.04,
    "waited_for": {"1": 1.0},
    "named": {"rank": 1, "host": "node-b", "stage": "data", "seconds": 0.04, "errors": 50.0},
    "suspects": [],
    "timed_steps": 64,
}


def rank(number, *, own_s=10.0, host="node-a", **values):
    counts = {"steps": 101, "batches": 101, "seconds": 20.0, "data_s": 2.0, "own_s": own_s}
    loop = {"loops": 2, "open_batches": 100, "loop_length": 500}
    return {"rank": number, "host": host, **counts, **loop, "loss": 0.5, **values}


def speed(**values):
    return {
        "time_s": 1000.0,
        "attempt": 0,
        "steps": 101,
        "steps_per_s": 5.0,
        "loss": 0.5,
        "samples_per_batch": 64,
        "tokens_per_batch": 0,
        "batches_per_step": 1.0,
        "step": STEP,
        "ranks": [rank(0), rank(1, own_s=14.0, host="node-b")],
        "gpus": [],
        **values,
    }


def lines(**values):
    return top.render(top.figures(speed(**values), now_s=1003.0), name="run-1")


def test_progress_rates_and_the_rest_of_the_loop():
    assert lines()[:2] == [
        "run-1 · attempt 0",
        "101 steps · 5 steps/s · 320 samples/s · loss 0.5 · loop 3: 100 of 500 batches, 80 s left",
    ]


def test_gradient_accumulation_counts_all_micro_batches():
    figures = top.figures(speed(batches_per_step=4.0, tokens_per_batch=1024), now_s=1003.0)
    assert figures["samples_per_s"] == 64 * 20
    assert figures["tokens_per_s"] == 1024 * 20
    assert figures["epoch_left_s"] == pytest.approx(20)


def test_a_step_is_shown_in_parts_with_the_late_rank():
    text = "\n".join(lines())
    assert "step 200 ms" in text
    assert "  data            20%  ████" in text
    assert "  waiting         20%  ████" in text
    assert "rank 1 on node-b takes 40 ms longer in data than the others" in text


def test_the_rank_with_most_work_of_its_own_is_first():
    table = [line.split()[:2] for line in lines() if line.endswith(" ms") and "node-" in line]
    assert table == [["1", "node-b"], ["0", "node-a"]]


def test_of_many_ranks_ten_are_shown():
    text = "\n".join(lines(ranks=[rank(number) for number in range(64)]))
    assert "and 54 more, which need less" in text


def test_an_old_description_says_its_age():
    shown = top.figures(speed(), now_s=1000.0 + 300)
    assert top.render(shown, name="run-1")[0] == "run-1 · attempt 0 · written 5 min ago"


def test_gpus_are_listed():
    gpu = {"host": "node-a", "index": 3, "utilization": 0.97}
    text = "\n".join(lines(gpus=[{**gpu, "memory_used": 61.2e9, "memory_total": 80e9}]))
    assert "97%" in text
    assert "61.2 of 80.0 GB" in text


def test_lines_fit_into_80_columns():
    assert max(map(len, lines(gpus=[]))) <= 100


def test_the_run_that_wrote_last_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("older", "newer")):
        folder = tmp_path / "paceline-runs" / name
        folder.mkdir(parents=True)
        (folder / "speed.json").write_text(json.dumps(speed()))
        import os

        os.utime(folder / "speed.json", (1000 + age, 1000 + age))
    assert top.find("").root.name == "newer"
    assert top.find("older").root.name == "older"
    assert top.read(top.find("older"))["steps"] == 101


@pytest.mark.parametrize("content", [None, "{", "\x00"])
def test_without_a_description_it_says_where_it_looked(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="no run in paceline-runs"):
        top.find("")
    with pytest.raises(SetupError, match="there is no run folder other"):
        top.find("other")
    if content is not None:
        (tmp_path / "speed.json").write_text(content)
    with pytest.raises(SetupError, match=r"speed\.json"):
        top.read(RunDir(tmp_path))
