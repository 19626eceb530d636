"""Every name of Lightning's Trainer, module, data module, callbacks and loggers is accounted for."""

import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest

import paceline
from paceline.errors import UsageError
from paceline.signatures.lightning_names import REFUSED, SAME, tables
from paceline.train.trainer.callback import OF_TASK
from refusals import refusal
from unit.train.trainer.training import Task, trainer

# Methods that a user writes; our base classes leave them out.
WRITTEN = {
    "configure_optimizers",
    "predict_dataloader",
    "test_dataloader",
    "test_step",
    "train_dataloader",
    "training_step",
    "val_dataloader",
    "validation_step",
}
# Parts of the table that Lightning 2 does not list.
BESIDE = ("imports", "removed arguments", "removed attributes", "removed hooks", "removed methods")
INSTALLED = """
import inspect, json, lightning, torch
import lightning.pytorch as L
from lightning.pytorch import callbacks, loggers

def public(names):
    return sorted(name for name in names if not name.startswith("_"))

made = L.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
print(json.dumps({
    "trainer arguments": public(set(inspect.signature(L.Trainer).parameters)),
    "trainer": public({*dir(L.Trainer), *vars(made)}),
    "module": public(set(dir(L.LightningModule)) - set(dir(torch.nn.Module))),
    "data": public(dir(L.LightningDataModule)),
    "hooks": public(dir(callbacks.Callback)),
    "callbacks": callbacks.__all__,
    "loggers": loggers.__all__,
    "package": lightning.__all__,
}))
"""


@pytest.mark.peers
def test_no_name_of_the_installed_lightning_is_forgotten():
    pytest.importorskip("lightning_utilities", reason="Lightning is not installed")
    command = [sys.executable, "-W", "ignore", "-c", INSTALLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    installed = json.loads(done.stdout.splitlines()[-1])
    listed = {part: sorted(names) for part, names in tables().items()}
    beside = {part: listed.pop(part) for part in BESIDE}
    beside.pop("imports")  # plugins is a module there and an argument
    attributes = beside.pop("removed attributes")  # may be called as an argument is
    assert set(attributes).isdisjoint(installed["trainer"])
    removed = {name for names in beside.values() for name in names}
    assert {part: sorted(names) for part, names in installed.items()} == listed
    assert removed.isdisjoint({*installed["hooks"], *installed["trainer arguments"]})


def kept(part):
    return sorted(name for name, what in tables()[part].items() if what.kind != REFUSED)


def refused(part):
    return sorted(name for name, what in tables()[part].items() if what.kind == REFUSED)


def test_each_line_has_what_its_kind_needs():
    lines = {
        f"{part}: {name}": what for part, names in tables().items() for name, what in names.items()
    }
    for line, (kind, text, instead) in lines.items():
        assert (bool(text), bool(instead)) == (kind != SAME, kind == REFUSED), line


def test_what_is_kept_of_the_trainer_is_there():
    made = trainer()
    assert [name for name in kept("trainer") if not hasattr(made, name)] == []
    parameters = inspect.signature(paceline.Trainer).parameters
    assert [name for name in kept("trainer arguments") if name not in parameters] == []


@pytest.mark.parametrize(
    ("part", "kind"), [("module", paceline.Module), ("data", paceline.DataModule)]
)
def test_what_is_kept_of_modules_is_there(part, kind):
    missing = [name for name in kept(part) if not hasattr(kind, name) and name not in OF_TASK]
    assert set(missing) <= WRITTEN


def test_what_is_kept_of_callbacks_loggers_and_the_package_is_there():
    assert [name for name in kept("hooks") if not hasattr(paceline.Callback, name)] == []
    assert sorted(paceline.callbacks.__all__) == kept("callbacks")
    same = [
        name for name in kept("loggers") if "Lightning's own" not in tables()["loggers"][name].text
    ]
    assert sorted(paceline.loggers.__all__) == same
    assert [name for name in kept("package") if not hasattr(paceline, name)] == []


@pytest.mark.parametrize("name", refused("trainer"))
def test_a_refused_attribute_of_the_trainer_says_what_to_write(name):
    with pytest.raises(AttributeError) as caught:
        getattr(trainer(), name)
    assert tables()["trainer"][name].instead in str(caught.value)


@pytest.mark.parametrize("name", refused("module"))
def test_a_refused_attribute_of_a_module_says_what_to_write(name):
    with pytest.raises(AttributeError) as caught:
        getattr(Task(), name)
    assert tables()["module"][name].instead in str(caught.value)


@pytest.mark.parametrize("name", refused("data"))
def test_a_refused_attribute_of_a_data_object_says_what_to_write(name):
    with pytest.raises(AttributeError) as caught:
        getattr(paceline.DataModule(), name)
    assert tables()["data"][name].instead in str(caught.value)


@pytest.mark.parametrize("name", refused("trainer arguments"))
def test_a_refused_argument_says_what_to_write(name):
    finding = refusal(UsageError, trainer, **{name: 1})
    assert finding.fix == tables()["trainer arguments"][name].instead


@pytest.mark.parametrize("name", refused("callbacks"))
def test_a_refused_callback_says_what_to_write(name):
    theirs = type(name, (), {"__module__": "lightning.pytorch.callbacks"})
    finding = refusal(UsageError, trainer, callbacks=[theirs()])
    assert finding.fix == tables()["callbacks"][name].instead


@pytest.mark.parametrize(
    "statement",
    [
        *(f"from paceline.callbacks import {name}" for name in refused("callbacks")),
        *(f"from paceline.loggers import {name}" for name in refused("loggers")),
        *(f"from paceline import {name}" for name in (*refused("package"), "LightningCLI")),
        "from paceline.cli import LightningCLI",
        "from paceline.tuner import Tuner",
        "from paceline.trainer import Fabric",
        *(
            f"from paceline.{module} import Something"
            for module in ("plugins", "profilers", "strategies", "utilities", "utilities.types")
        ),
    ],
)
def test_a_refused_import_says_what_to_write(statement):
    module, name = re.fullmatch("from paceline(.*) import (.*)", statement).groups()
    parts = [tables()[part] for part in ("callbacks", "loggers", "package", "imports")]
    known = {key: what for part in parts for key, what in part.items()}
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert (known.get(name) or known[module.split(".")[1]]).instead in str(caught.value)


@pytest.mark.parametrize("module", ["callbacks", "loggers", "strategies", "trainer", "utilities"])
def test_a_module_that_refuses_names_is_a_module_all_the_same(module):
    made = importlib.import_module(f"paceline.{module}")
    assert not hasattr(made, "__wrapped__")
    assert not hasattr(made, "_private")
    assert inspect.getmembers(made)
    if module in ("callbacks", "loggers", "trainer"):
        with pytest.raises(
            ImportError, match=rf"^cannot import name 'Typo' from 'paceline.{module}'"
        ):
            exec(f"from paceline.{module} import Typo")


def test_rank_zero_only_asks_the_rank_of_this_process(monkeypatch):
    from paceline.utilities.rank_zero import rank_zero_only

    said = rank_zero_only(lambda text: text, default="nothing")
    assert paceline.utilities.rank_zero_only is rank_zero_only
    assert said("first") == "first"
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert said("second") == "nothing"


@pytest.mark.parametrize("name", tables()["removed hooks"])
def test_a_removed_hook_is_refused_with_the_one_that_takes_its_place(name):
    today = tables()["removed hooks"][name].instead
    with pytest.raises(UsageError) as caught:
        trainer().fit(type("Old", (Task,), {name: lambda self, *_: None})(), None)
    assert caught.value.finding.fix == today
    if name.startswith("on_"):
        with pytest.raises(UsageError) as caught:
            trainer(callbacks=[type("Old", (), {name: lambda self, *_: None})()])
        assert caught.value.finding.fix == f"def {today}(self, trainer, task): ..."


@pytest.mark.parametrize("name", tables()["removed arguments"])
def test_a_removed_argument_says_what_to_write(name):
    finding = refusal(UsageError, trainer, **{name: 1})
    assert finding.fix == tables()["removed arguments"][name].instead


def test_other_missing_attributes_are_plain_errors():
    with pytest.raises(AttributeError, match="'Trainer' object has no attribute 'zzz'"):
        trainer().zzz  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'zzz'"):
        Task().zzz  # noqa: B018
