"""Every name of Lightning's Trainer, module, data module, callbacks and loggers is accounted for."""

import inspect
import json
import subprocess
import sys

import pytest

import paceline
from paceline.errors import UsageError
from paceline.train.trainer.callback import OF_TASK
from paceline.train.trainer.lightning_names import REFUSED, SAME, tables
from unit.train.trainer.training import (  # noqa: F401  the fixtures are used by being here
    Task,
    finding,
    first_optimizer,
    no_signals,
    trainer,
    unlaunched,
)

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
    assert {part: sorted(names) for part, names in installed.items()} == listed


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
    with pytest.raises(UsageError) as caught:
        trainer(**{name: 1})
    assert finding(caught).fix == tables()["trainer arguments"][name].instead


@pytest.mark.parametrize("name", refused("callbacks"))
def test_a_refused_callback_says_what_to_write(name):
    theirs = type(name, (), {"__module__": "lightning.pytorch.callbacks"})
    with pytest.raises(UsageError) as caught:
        trainer(callbacks=[theirs()])
    assert finding(caught).fix == tables()["callbacks"][name].instead


def test_other_missing_attributes_are_plain_errors():
    with pytest.raises(AttributeError, match="'Trainer' object has no attribute 'zzz'"):
        trainer().zzz  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'zzz'"):
        Task().zzz  # noqa: B018
