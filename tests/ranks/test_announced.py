"""What a run says: nothing of a fault where results are equal, and its own cause where they would not be."""

import contextlib
import io
import re

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ranks import parity, test_draws, test_ecosystem_losses, test_ecosystem_methods
from ranks.parity import WIDTH, mse, net, rows

pytestmark = pytest.mark.ci

# What each run of its kind prints: facts, none of which is bad news.
FACTS = (
    r"launcher none \(.*\); 3 ranks over gloo; rank 0 on cpu",
    r"loader: batches of \d+, \d+( to \d+)? a rank(, \d of its batches are one training step)?"
    r"(; no workers a rank \(.*\))?",
)
LOOKED_AT = 32
SETUPS = test_draws.EQUAL + test_ecosystem_losses.SETUPS + test_ecosystem_methods.SETUPS


def printed(file, name, folder):
    """On a rank: return whether a set-up trains to its end, and the lines that it prints."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        result = parity.outcome(file, name, folder)
    return not isinstance(result, str), said.getvalue().splitlines()


def test_no_text_of_equal_set_ups_speaks_of_a_fault(ranks, tmp_path):
    lines = {}
    for setup in SETUPS[:LOOKED_AT]:
        folder = tmp_path / setup.__name__
        folder.mkdir()
        place = (setup.__code__.co_filename, setup.__name__, str(folder))
        outcomes = ranks.run(printed, *place, world_size=3)
        assert all(is_trained for is_trained, _ in outcomes), setup
        lines[setup.__name__] = [line for _, said in outcomes for line in said]
    assert len(lines) == LOOKED_AT
    assert all(any("loader: " in line for line in said) for said in lines.values()), "none is lost"
    fact = re.compile(f"paceline: ({'|'.join(FACTS)})")
    assert [line for said in lines.values() for line in said if not fact.fullmatch(line)] == []


# What trains apart, or on gradients that are not averaged


def loop(session, loss_of, optimizer, after_step=lambda: None):
    for batch in session.loader(TensorDataset(*rows()), parity.BATCH):
        session.backward(loss_of(batch))
        optimizer.step()
        optimizer.zero_grad()
        after_step()


class Scored(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = net(WIDTH), nn.Linear(WIDTH, 1)


def setup_forgotten(folder):
    model = net().double()
    optimizer = torch.optim.AdamW(model.parameters())
    loop(parity.session_of(folder), lambda batch: mse(model, batch), optimizer)


def head_outside(folder):
    session, whole = parity.session_of(folder), Scored().double()
    optimizer = torch.optim.AdamW(whole.parameters())
    body = session.setup(whole.body)
    loop(session, lambda batch: mse(lambda x: whole.head(body(x)), batch), optimizer)


def learnable_temperature(folder):
    """As CLIP's."""
    session, model, logit_scale = parity.session_of(folder), net(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*model.parameters(), logit_scale])
    model = session.setup(model)
    loop(session, lambda batch: mse(lambda x: logit_scale.exp() * model(x), batch), optimizer)


def group_added_later(folder):
    session, whole = parity.session_of(folder), Scored().double()
    optimizer = torch.optim.SGD(whole.body.parameters(), lr=0.1)
    body, optimizer = session.setup(whole.body, optimizer)

    def add_head():
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": whole.head.parameters()})

    loss_of = lambda batch: mse(lambda x: whole.head(body(x)), batch)  # noqa: E731
    loop(session, loss_of, optimizer, after_step=add_head)


def accumulated_with_the_result_ignored(folder):
    session = parity.session_of(folder, accumulate=4)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.1))
    loop(session, lambda batch: mse(model, batch), optimizer)


def gradients_by_hand(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in session.loader(TensorDataset(*rows()), parity.BATCH):
        gradients = torch.autograd.grad(mse(model, batch), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


REFUSED = {
    setup_forgotten: (".weight is trained", "session.setup("),
    head_outside: ("head.weight", "session.setup("),
    learnable_temperature: ("logit_scale", "session.setup("),
    group_added_later: ("head.weight", "session.setup("),
    accumulated_with_the_result_ignored: ("averaged", "if session.backward(loss):"),
    gradients_by_hand: ("0.weight", "session.backward(loss)"),
}


def refusal(file, name, folder):
    """On a rank: return the finding that a set-up ends with, as text."""
    with pytest.raises(parity.PacelineError) as caught:
        parity.module_of(file).__dict__[name](folder)
    return caught.value.finding.name, caught.value.finding.render()


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("setup", REFUSED, ids=lambda setup: setup.__name__)
def test_what_would_let_ranks_drift_apart_is_named_with_the_line_to_write(
    ranks, tmp_path, setup, world_size
):
    place = (setup.__code__.co_filename, setup.__name__, str(tmp_path))
    for name, text in ranks.run(refusal, *place, world_size=world_size):
        assert name == "gradients-not-averaged"
        assert [word for word in REFUSED[setup] if word not in text] == [], text


@pytest.mark.parametrize("setup", REFUSED, ids=lambda setup: setup.__name__)
def test_one_rank_trains_what_several_refuse(ranks, tmp_path, setup):
    (trained,) = parity.run(ranks, setup, tmp_path / "run", 1)
    assert trained is None
