"""CSV and TensorBoard: what was logged can be read again, also after a crash and a resume."""

import csv
import importlib.util

import pytest

from paceline.errors import SetupError
from paceline.train.logging import CSVLogger, TensorBoardLogger


def table(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.csv"


def test_a_row_for_each_call(path):
    logger = CSVLogger(path)
    logger.log({"loss": 0.1, "epoch": 0}, step=1)
    logger.log({"epoch": 0, "loss": float("nan")}, step=2)
    assert (
        path.read_text() == "step,loss,epoch\n1,0.1,0\n2,nan,0\n"
    )  # before close: a crash may come
    logger.close()


def test_nothing_is_written_before_the_first_number(path):
    CSVLogger(path).close()
    assert not path.parent.exists()


def test_columns_grow(path):
    logger = CSVLogger(path)
    logger.log({"loss": 1.5}, step=1)
    logger.log({"val/acc": 0.5}, step=1)
    logger.log({"loss": 2.5, "val/acc": 1.0}, step=2)
    logger.close()
    assert table(path) == [
        ["step", "loss", "val/acc"],
        ["1", "1.5", ""],
        ["1", "", "0.5"],
        ["2", "2.5", "1.0"],
    ]


def test_a_name_may_hold_anything(path):
    logger = CSVLogger(path)
    logger.log({'a,"b"\nc': 1.0}, step=1)
    logger.log({'a,"b"\nc': 2.0, "d": 3.0}, step=2)
    logger.close()
    assert table(path) == [["step", 'a,"b"\nc', "d"], ["1", "1.0", ""], ["2", "2.0", "3.0"]]


def test_a_resumed_run_appends(path):
    for step in (1, 2):
        logger = CSVLogger(path)
        logger.log({"loss": 1.0}, step=step)
        logger.close()
    logger.log({"acc": 2.0}, step=3)  # the same logger, after close, with a new name
    logger.close()
    assert table(path) == [
        ["step", "loss", "acc"],
        ["1", "1.0", ""],
        ["2", "1.0", ""],
        ["3", "", "2.0"],
    ]


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_a_line_that_a_crash_cut_off_is_left_out(path, cut):
    logger = CSVLogger(path)
    logger.log({"loss": 0.25}, step=1)
    logger.log({"loss": 0.125}, step=2)
    logger.close()
    path.write_text(path.read_text()[:-cut])
    logger = CSVLogger(path)
    logger.log({"loss": 0.5}, step=2)
    logger.close()
    assert table(path) == [["step", "loss"], ["1", "0.25"], ["2", "0.5"]]


def test_a_header_that_a_crash_cut_off(path):
    path.parent.mkdir()
    path.write_text("ste")
    logger = CSVLogger(path)
    logger.log({"loss": 0.5}, step=2)
    logger.close()
    assert table(path) == [["step", "loss"], ["2", "0.5"]]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path / "tb")
    logger.log({"loss": 0.5, "acc": 0.25}, step=3)
    logger.log({"loss": 0.125}, step=4)
    events = EventAccumulator(str(tmp_path / "tb")).Reload()  # before close: a crash may come
    assert sorted(events.Tags()["scalars"]) == ["acc", "loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 0.5), (4, 0.125)]
    logger.close()
    logger.close()


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError) as caught:
        TensorBoardLogger(tmp_path)
    assert caught.value.finding.name == "module-not-found"
    assert caught.value.finding.fix == 'pip install "paceline[tensorboard]"'
