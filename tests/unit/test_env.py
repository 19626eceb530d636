"""The one door to the environment: what is declared can be read and set, what is not is refused."""

import os

import pytest

from paceline import env


def test_read_gives_the_value(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert env.read(env.OMP_THREADS) == "3"


@pytest.mark.parametrize("value", [None, ""])
def test_unset_and_empty_read_as_nothing(monkeypatch, value):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert env.read(env.OMP_THREADS) is None


@pytest.mark.parametrize(
    "action", [env.read, env.take, lambda name: env.put(name, "1")], ids=["read", "take", "put"]
)
def test_an_undeclared_variable_is_refused(action):
    with pytest.raises(KeyError, match="PATH is not declared"):
        action("PATH")


def test_put_sets_and_take_removes(monkeypatch):
    monkeypatch.delenv("PACELINE_TASK", raising=False)
    env.put(env.TASK, "{}")
    assert os.environ["PACELINE_TASK"] == "{}"
    assert env.take(env.TASK) == "{}"
    assert "PACELINE_TASK" not in os.environ
    assert env.take(env.TASK) is None


def test_update_sets_several(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("NOT_DECLARED", "0")
    env.update({"RANK": "3", "NOT_DECLARED": "4"})
    assert (os.environ["RANK"], os.environ["NOT_DECLARED"]) == ("3", "4")


def test_snapshot_is_a_copy(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    copy = env.snapshot()
    assert copy["RANK"] == "7"
    copy["RANK"] = "8"
    assert os.environ["RANK"] == "7"


def test_torchruns_variables_come_by_option_name(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_RDZV_BACKEND", "")
    monkeypatch.setenv("XPET_NNODES", "2")
    assert env.torchrun_defaults() == {"nproc_per_node": "2"}


def test_variables_come_in_the_order_of_the_file():
    names = [variable.name for variable in env.variables()]
    assert names[0] == "PACELINE_LAUNCHER"
    assert names.index("RANK") < names.index("OMP_NUM_THREADS") < names.index("SLURM_STEP_ID")
