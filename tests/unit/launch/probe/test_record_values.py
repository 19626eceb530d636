"""What a rank records of its values: sums, masks, copies, and the calls of modules."""

import torch
from torch import nn

from paceline.launch.probe import record_masks, script_copies, value_sums
from paceline.launch.probe.record_masks import Masks
from paceline.launch.probe.record_values import ValueRecords
from paceline.measure.verify import recorded_values


class File:
    """Records in a list; an exception is not caught."""

    def __init__(self):
        self.records = []

    def write(self, kind, **values):
        self.records.append({"kind": kind, **values})

    def guarded(self, function):
        return function


def test_sums_are_of_numbers_powers_and_magnitudes(monkeypatch):
    monkeypatch.setattr(value_sums, "_CHUNK", 2)
    values = torch.tensor([[1.0, -2.0, 3.0], [0.0, float("nan"), -1.0]])
    assert value_sums.sums_of(values).tolist() == [6.0, 1.0, 7.0, 15.0, 19.0]


def test_tensors_are_found_in_containers():
    one, other = torch.ones(1), torch.zeros(2)
    assert len(list(value_sums.tensors_in({"a": [one, (other, 3)], "b": "text"}))) == 2


def test_a_dropout_passes_its_input_on_and_draws_its_mask(monkeypatch):
    functional = nn.functional
    for name in (*record_masks._FUNCTIONS, "scaled_dot_product_attention"):
        monkeypatch.setattr(functional, name, getattr(functional, name))
    masks = Masks(lambda: "drop")
    record_masks.neutralise(masks.note)
    values = torch.randn(4, 8)
    torch.manual_seed(3)
    assert torch.equal(nn.Dropout(0.5)(values), values)
    assert torch.equal(functional.dropout(values, 0.5, training=False), values)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    torch.dropout(torch.ones(4, 8), 0.5, True)
    assert torch.equal(torch.get_rng_state(), state)
    query = torch.randn(1, 2, 4, 8)
    attended = functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
    assert torch.equal(attended, functional.scaled_dot_product_attention(query, query, query))
    assert [(name, int(sums[0])) for name, sums, _ in masks.taken()] == [("drop", 32)] * 2


def test_copies_of_parameters_are_found():
    model = nn.Linear(2, 3)
    parameters = dict(model.named_parameters())
    average = {name: one.detach().clone() for name, one in parameters.items()}
    shadow = [one.detach().clone() for one in parameters.values()]
    rows = [torch.ones(2)] * 3  # of another length
    found = script_copies.copies_of(parameters, lambda path: path == __file__)
    assert {"average", "shadow"} <= {name for name, _, _ in found}
    assert len(average) == len(shadow) == len(rows) - 1


def recorded(monkeypatch, train):
    file = File()
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    monkeypatch.setattr(torch, "compile", torch.compile)
    values = ValueRecords(file, lambda: "train.py:7", lambda _: False)
    values.watch()
    try:
        train()
    finally:
        for handle in (*values._handles, *values._module_handles):
            handle.remove()
    return recorded_values.parse(file.records)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.head(self.body(x)) * self.scale


def trained(model, steps=2, noise=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):  # accumulates
            loss = model(torch.ones(5, 3)).sum()
            if noise:
                loss = loss + torch.randn(())
            loss.backward()
        optimizer.step()


def test_steps_are_recorded_with_their_forwards(monkeypatch):
    model = Net()
    periods = recorded(monkeypatch, lambda: trained(model))
    assert sorted(periods) == [1, 2]
    first = periods[1]
    assert [(call.name, call.parent) for call in first.calls] == [
        ("Net", ""),
        ("body", "Net"),
        ("body.0", "body"),
        ("body.1", "body"),
        ("head", "Net"),
    ]
    assert first.inputs["Net"][:2] == (30.0, 30.0)
    assert first.calls[-1].sums[0] == 10
    assert set(first.gradients) == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}
    assert (
        first.gradients["head.bias"] == first.raw["head.bias"] == (1.0, 10.0, 10.0, 100.0, 1000.0)
    )
    assert abs(first.updates["head.bias"][1] + 1.0) < 1e-6
    assert first.buffers == {"scale": (1.0, 1.0, 1.0, 1.0, 1.0)}
    assert first.rates == [0.1]
    assert not first.is_random
    assert not first.is_idle


def test_random_numbers_beside_dropout_are_seen(monkeypatch):
    assert recorded(monkeypatch, lambda: trained(Net(), noise=True))[1].is_random


def test_a_last_backward_without_effect_is_seen(monkeypatch):
    def train():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(5, 3)).sum().backward()
        torch.ones(1, requires_grad=True).sum().backward()
        optimizer.step()

    assert recorded(monkeypatch, train)[1].is_idle


def test_modules_are_left_alone_after_the_last_recorded_step(monkeypatch):
    model = Net()
    periods = recorded(monkeypatch, lambda: trained(model, steps=10))
    assert max(periods) == 8
    assert not model._forward_hooks


def test_compiled_modules_are_left_alone(monkeypatch):
    def train():
        trained(torch.compile(Net(), backend="eager", fullgraph=True))

    periods = recorded(monkeypatch, train)
    assert sorted(periods) == [1, 2]
    assert not periods[2].inputs
    assert periods[2].gradients
