"""State by name with ddp and fsdp: what modules keep as they like, at any world size."""

import pytest
import torch
from torch import nn

from paceline import Session
from paceline.errors import UsageError
from paceline.train.model import strategy


class Odd(nn.Module):
    """Has what is restored in three ways: parameters as they are, copies of them, and a history of any length."""

    def __init__(self, *history):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 3), nn.BatchNorm1d(3)])
        self.layers[1].register_state_dict_post_hook(
            lambda _, state, prefix, __: state.update(
                {f"{prefix}weight": state[f"{prefix}weight"].clone()}
            )
        )
        self.history = torch.tensor(history)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def get_extra_state(self):
        return self.history.clone()

    def set_extra_state(self, state):
        self.history = state


def whole(model):
    state = model.state_dict()
    return {
        name: getattr(each, "full_tensor", lambda each=each: each)().tolist()
        for name, each in state.items()
    }


def step(session, model, optimizer):
    session.backward(model(torch.ones(4, 3)).square().sum())
    optimizer.step()
    optimizer.zero_grad()


def save(folder, options):
    torch.manual_seed(1)
    session, model = Session(run_dir=folder, **options), Odd(1, 2, 3)
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters()))
    step(session, model, optimizer)
    session.save(wait=True)
    return whole(session.unwrap(model))


def load(folder, options):
    torch.manual_seed(2)
    session, model = Session(run_dir=folder, **options), Odd(0)
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters()))
    assert session.restore("latest")
    found = whole(session.unwrap(model))
    step(session, model, optimizer)
    return found


DDP, FSDP = {"strategy": "ddp"}, {"strategy": "fsdp"}


@pytest.mark.parametrize(
    ("writers", "readers"),
    [((2, FSDP), (3, FSDP)), ((2, FSDP), (1, DDP)), ((1, DDP), (3, FSDP)), ((2, DDP), (3, DDP))],
)
def test_a_model_gets_back_what_its_state_dict_gave(ranks, tmp_path, writers, readers):
    (num_writers, how), (num_readers, then) = writers, readers
    expected = ranks.run(save, str(tmp_path), how, world_size=num_writers)[0]
    assert expected["_extra_state"] == [1, 2, 3]
    assert ranks.run(load, str(tmp_path), then, world_size=num_readers) == [expected] * num_readers


def check_shards():
    model = Odd(0)
    strategy.check_whole(model)
    Session(strategy="fsdp").setup(model)
    with pytest.raises(UsageError) as caught:
        strategy.check_whole(model)
    return caught.value.finding.what


def test_a_model_is_sharded_once(ranks):
    told = "6 parameters of the model are sharded already, layers.0.weight first"
    assert ranks.run(check_shards, world_size=2) == [told] * 2
