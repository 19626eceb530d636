"""Numbers that a script logged, read back from its table or TensorBoard's files."""

from __future__ import annotations

import pytest

from paceline.measure.report import metrics
from paceline.measure.report.facts import Series
from paceline.rundir.files import RunDir
from paceline.train.logging import CSVLogger, TensorBoardLogger


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("time,loss\n1,2\n", {}),  # a table of somebody else
        ("step,loss\n1,2.5\n2,\n", {"loss": {1: 2.5}}),
        ("step,loss\n1,2.5\n2,1.5\n1,9\n", {"loss": {1: 9.0, 2: 1.5}}),  # resumed after step 1
        ("step,loss\n1,2.5\n2,1.", {"loss": {1: 2.5, 2: 1.0}}),
        ("step,loss\none,2.5\n1.5,3\n2\n\n3,x,4\n", {"loss": {}}),
        ("step,loss\nnan,1\n4,inf\n", {"loss": {4: float("inf")}}),
        ("step,a,b\n1,2,3\n", {"a": {1: 2.0}, "b": {1: 3.0}}),
    ],
)
def test_a_table_by_name_and_step(text, expected):
    assert metrics.parse(text.splitlines(keepends=True)) == expected


def test_what_our_logger_writes_is_read(tmp_path):
    logger = CSVLogger(tmp_path / "metrics.csv")
    logger.log({"loss": 0.5}, 1)
    logger.log({"accuracy, held out": 0.75, "loss": float("nan")}, 2)
    logger.close()
    numbers, notes = metrics.read(RunDir(tmp_path))
    assert numbers["accuracy, held out"] == Series((2,), (0.75,))
    assert numbers["loss"].steps == (1, 2)
    assert metrics.last_finite(numbers["loss"]) == 0.5
    assert notes == []


def test_what_tensorboard_wrote_is_read(tmp_path):
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(tmp_path / "tensorboard")
    for step in range(3):
        logger.log({"train/loss": 1.0 / (step + 1)}, step)
    logger.close()
    numbers, notes = metrics.read(RunDir(tmp_path))
    assert numbers["train/loss"].steps == (0, 1, 2)
    assert numbers["train/loss"].values[1] == 0.5
    assert notes == []


def test_without_tensorboard_its_files_are_mentioned(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
    assert metrics.read(RunDir(tmp_path)) == (
        {},
        ['tensorboard/ is not shown: pip install "paceline[tensorboard]" to read its files'],
    )


def test_a_series_that_is_nowhere_finite_has_no_last_value():
    assert metrics.last_finite(Series((1, 2), (float("nan"), float("inf")))) is None
