"""How the set-ups of the ecosystem suite are run and compared: one rank's losses and weights, or a finding.

A set-up is a function of a run folder that trains as a user of some library would, in float64, and returns its losses
and weights. The loss is that of the whole data after each step, which every rank computes for itself: it depends on
nothing but the weights, so that a wrong gradient of any step shows in it.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline import Session
from paceline.errors import PacelineError

LENGTH, BATCH, WIDTH = 43, 5, 4  # nothing divides 43; rank 3 of 4 has none of the last batch
WORLDS = (2, 3, 4)
TOLERANCE = 1e-10
WAITED = "waited for a rank that had ended"


def rows():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    return x, x.square().mean(1, keepdim=True)


def net(out=1, width=WIDTH):
    return nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, out))


def mse(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def session_of(folder, **options):
    """Return a session in float64."""
    return Session(precision="64-true", seed=3, run_dir=folder, loggers=(), **options)


def train(
    session,
    model,  # what ``setup`` returned
    optimizer,
    loader,  # of the session
    loss_of,  # returns the loss of a model and a batch, or a pair of it and its weight
    *,
    watch,  # returns the loss of the user's own module over the whole data
    epochs=2,
    after_step=None,
    before_step=None,
):
    """Train; return the losses after each step, and the weights."""
    losses, own = [], session.unwrap(model)
    for _ in session.epochs(epochs):
        for batch in loader:
            found = loss_of(model, batch)
            loss, weight = found if isinstance(found, tuple) else (found, None)
            if session.backward(loss, weight):
                if before_step:
                    before_step()
                optimizer.step()
                optimizer.zero_grad()
                if after_step:
                    after_step()
                losses.append(watched(watch, own))
    return losses, weights_of(own)


@torch.no_grad()
def watched(watch, model):
    """Return what ``watch`` returns of a model in evaluation mode."""
    mode = model.training
    model.eval()
    value = float(watch(model))
    model.train(mode)
    return value


def weights_of(*models):
    """Return whole weights and buffers, as plain lists by name."""
    return {
        f"{number}.{name}": (
            value.full_tensor() if hasattr(value, "full_tensor") else value
        ).tolist()
        for number, model in enumerate(models)
        for name, value in model.state_dict().items()
    }


def module_of(file):
    """On a rank: return the module of a set-up, with torch's generator as each set-up begins."""
    module = f"setups_{Path(file).stem}"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, file)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    torch.manual_seed(5)
    return sys.modules[module]


def outcome(file, name, folder):
    """On a rank: return the losses and weights of a set-up, or the name of the finding that it ends with."""
    try:
        return getattr(module_of(file), name)(folder)
    except PacelineError as error:
        return error.finding.name
    except RuntimeError as error:  # another rank ended with a finding, for which this one waited
        if "gloo" in str(error):
            return WAITED
        raise


def run(ranks, setup, folder, world_size):
    """Return what a set-up comes to on each rank."""
    folder.mkdir(exist_ok=True)
    return ranks.run(
        outcome, setup.__code__.co_filename, setup.__name__, str(folder), world_size=world_size
    )


def cases(setups):
    """Return each set-up, a function, with each number of ranks, as parameters of a test."""
    return [
        pytest.param(setup, world_size, id=f"{setup.__name__}-{world_size}")
        for setup in setups
        for world_size in WORLDS
    ]


def names_of(results):
    """Return the names of the findings that ranks ended with; where one has trained to its end, "none"."""
    return {result if isinstance(result, str) else "none" for result in results} - {WAITED}


class Alone:
    """What set-ups come to on one rank; each is run once."""

    def __init__(self, ranks, folder):
        self._ranks, self._folder, self._known = ranks, folder, {}

    def __call__(self, setup):
        """Return the losses and the weights of a set-up."""
        if setup not in self._known:
            (self._known[setup],) = run(self._ranks, setup, self._folder / setup.__name__, 1)
        return self._known[setup]


def check(results, expected, tolerance=TOLERANCE):
    """Compare the losses and weights of all ranks with those of one."""
    losses, weights = expected
    assert len(losses) > 1
    assert abs(losses[0] - losses[-1]) > 1e-4, (
        "a training that changes nothing would agree with any other"
    )
    for found, theirs in results:
        assert found == pytest.approx(losses, abs=tolerance, rel=0)
        assert theirs.keys() == weights.keys()
        for name, values in weights.items():
            difference = torch.tensor(theirs[name], dtype=torch.float64) - torch.tensor(
                values, dtype=torch.float64
            )
            assert difference.abs().max() <= tolerance, name
