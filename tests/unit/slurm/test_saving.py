"""At which signal a script saves, as its text shows; and what a job script makes of it."""

from __future__ import annotations

import pytest

from paceline.slurm import request, stop_signal
from paceline.slurm.profile import Profile

LIGHTNING = "import lightning as L\ntrainer = L.Trainer(max_epochs=3)\n"
PLUGIN = "from lightning.pytorch.plugins.environments import SLURMEnvironment\n"


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("print(1)", "SIGTERM"),
        ("import paceline\nsession = paceline.Session()", "SIGTERM"),
        (f"{PLUGIN}{LIGHTNING}e = SLURMEnvironment()", "SIGUSR1"),
        (f"{PLUGIN}{LIGHTNING}e = SLURMEnvironment(auto_requeue=True)", "SIGUSR1"),
        (f"{PLUGIN}import signal\ne = SLURMEnvironment(True, signal.SIGUSR2)", "SIGUSR2"),
        (f"{PLUGIN}import signal\ne = SLURMEnvironment(requeue_signal=signal.SIGTERM)", "SIGTERM"),
        (f"{PLUGIN}{LIGHTNING}e = SLURMEnvironment(auto_requeue=False)", "SIGTERM"),
        ("import signal\nsignal.signal(signal.SIGUSR1, save)", "SIGUSR1"),
        ("from signal import SIGUSR2, signal\nsignal(SIGUSR2, lambda *_: save())", "SIGUSR2"),
        (
            "import signal\nfor s in (signal.SIGUSR1, signal.SIGTERM):\n    signal.signal(s, save)",
            "SIGTERM",
        ),
        (
            "import signal\nsignal.signal(signal.SIGUSR1, dump)\nsignal.signal(signal.SIGTERM, save)",
            "SIGTERM",
        ),
        ("import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)", "SIGTERM"),
        ("import faulthandler, signal\nfaulthandler.register(signal.SIGUSR1)", "SIGTERM"),
        ("signal.signal(signal.SIGUSR1, save", "SIGTERM"),  # not Python
    ],
)
def test_a_script_is_stopped_by_the_signal_that_it_saves_at(text, signal):
    assert stop_signal.look(text, script="train.py").signal == signal


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LIGHTNING, 2),
        ("from pytorch_lightning import Trainer\n\n\nTrainer().fit(model)", 4),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(Net)", 2),
        (f"{LIGHTNING}# SIGTERM", 2),
    ],
)
def test_that_lightning_alone_saves_at_no_signal_is_said(text, line):
    finding = stop_signal.look(text, script="train.py").finding
    assert (finding.name, finding.severity, finding.where) == (
        "not-saved-at-stop",
        "warning",
        f"train.py:{line}",
    )


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "import paceline\npaceline.Trainer().fit(model)",
        "from transformers import Trainer\nTrainer(model)",
        "import lightning\nfabric = lightning.Fabric()",
        f"{PLUGIN}{LIGHTNING}e = SLURMEnvironment()",
        f"{LIGHTNING}from lightning.pytorch.callbacks import OnExceptionCheckpoint",
        f"{LIGHTNING}import lightning.pytorch.callbacks as c\nc.OnExceptionCheckpoint('x')",
        f"{LIGHTNING}import signal",
        f"{LIGHTNING}class Saves(L.Callback):\n    def on_exception(self, trainer, module, error): ...",
        f"{LIGHTNING}import paceline",
    ],
)
def test_of_others_nothing_is_said(text):
    assert stop_signal.look(text, script="train.py").finding is None


def parse(**typed):
    return request.parse("train.py", (), typed=typed, profile=Profile())


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_slurm_sends_what_is_handed_on(name):
    asked = parse().saving_at(f"SIG{name}")
    assert asked.signal == name
    assert dict(asked.forwarded)["signals_to_handle"] == f"SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{name}"
    assert parse(signals_to_handle=f"SIGTERM,SIG{name}").signal == name


def test_what_was_typed_counts():
    asked = parse(signals_to_handle="SIGTERM")
    assert asked.saving_at("SIGUSR1") is asked
    assert asked.signal == "TERM"
    assert parse().saving_at("SIGTERM").signal == parse().signal == "TERM"
