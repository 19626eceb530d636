"""State by name, in a world of one: what is filled in place, and what modules and objects are handed."""

import copy
from collections import Counter, OrderedDict, defaultdict

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from paceline.errors import UsageError
from paceline.train.checkpoint import Checkpoints, portable
from paceline.world import World
from refusals import refusal

CPU = torch.device("cpu")


@pytest.fixture
def here(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints", world=World(), device=CPU)
    yield made
    made.close()


def save(here, *models, own=None):
    state = portable.snapshot(models, [], own or {}, None, rank=0)
    here.save(state, step=1, epoch=0, wait=True)


def load(here, *models):
    return portable.load(here, here.find("latest"), models, [])["session"]


# Models


class Counting(nn.Module):
    """Keeps a history of any length, as a tensor in its extra state."""

    def __init__(self, *history):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.history = torch.tensor(history)

    def get_extra_state(self):
        return self.history.clone()

    def set_extra_state(self, state):
        self.history = state


class Metric(nn.Module):
    """Keeps states that are no buffers, as torchmetrics does: copies in state_dict, replaced at loading."""

    def __init__(self, total, seen):
        super().__init__()
        self.total, self.seen = torch.tensor(total), [torch.tensor(each) for each in seen]

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        for name in ("total", "seen"):
            state[f"{kwargs.get('prefix', '')}{name}"] = copy.deepcopy(getattr(self, name))
        return state

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in ("total", "seen"):
            setattr(self, name, state_dict.pop(f"{prefix}{name}"))
        super()._load_from_state_dict(state_dict, prefix, *args)


def cloned():
    """A module whose hook puts copies into its state_dict."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_state_dict_post_hook(
        lambda _, state, *__: state.update({k: v.clone() for k, v in state.items()})
    )
    return model


def renamed():
    """A module whose hooks give its parameters other names outside, and copies at that."""
    model = nn.Linear(2, 2)

    def outside(_, state, *__):
        state["kernel"] = state.pop("weight").t().contiguous()

    def inside(_, state, *__):
        state["weight"] = state.pop("kernel").t()

    model.register_state_dict_post_hook(outside)
    model.register_load_state_dict_pre_hook(inside)
    return model


def tied():
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "other": nn.Linear(2, 2), "count": Counting(1)})
    model["other"].weight = model["one"].weight
    return model


def plain(model):
    state = model.state_dict()
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: Counting(1, 2, 3), lambda: Counting(0)),
        (lambda: Counting(1, 2, 3), lambda: Counting(0, 0, 0)),
        (
            lambda: nn.Sequential(nn.Linear(1, 1), Metric(3.0, [1.0, 2.0])),
            lambda: nn.Sequential(nn.Linear(1, 1), Metric(0.0, [])),
        ),
        (cloned, cloned),
        (renamed, renamed),
        (tied, tied),
    ],
    ids=["shape", "values", "metric", "cloned", "renamed", "tied"],
)
def test_a_model_gets_back_what_its_state_dict_gave(here, make, other):
    model, fresh = make(), other()
    expected, pointers = plain(model), [each.data_ptr() for each in fresh.parameters()]
    save(here, nn.Linear(1, 1), model)
    load(here, nn.Linear(1, 1), fresh)
    assert str(plain(fresh)) == str(expected)
    assert [each.data_ptr() for each in fresh.parameters()] == pointers


def test_a_model_that_leaves_parameters_out_gets_the_others(here):
    def make():
        model = cloned()
        model.register_state_dict_post_hook(lambda _, state, *__: state.__delitem__("0.weight"))
        return model

    model, fresh = make(), make()
    weight = fresh[0].weight.tolist()
    save(here, model)
    load(here, fresh)
    assert plain(fresh) == plain(model)
    assert fresh[0].weight.tolist() == weight


def finding(here, *models):
    finding = refusal(UsageError, load, here, *models)
    assert finding.name == "checkpoint-other-model"
    return finding


def test_another_model_is_named_before_anything_is_overwritten(here):
    save(here, nn.ModuleDict({"count": Counting(1)}), nn.Linear(1, 1))
    fresh = nn.ModuleDict({"count": Counting(0), "metric": Metric(0.0, [])})
    before = plain(fresh)
    lines = finding(here, fresh, nn.Linear(1, 1, bias=False)).evidence
    assert lines == (
        "model/metric.seen is not in the checkpoint",
        "model/metric.total is not in the checkpoint",
        "model.1/bias [1] is in the checkpoint only",
    )
    lines = finding(here, nn.ModuleDict({"count": nn.Sequential()}), nn.Linear(1, 1)).evidence
    assert "model/count._extra_state [1] is in the checkpoint only" in lines
    lines = finding(here, nn.ModuleDict({"count": Counting(0)})).evidence
    assert lines == (
        "model.1/bias [1] is in the checkpoint only",
        "model.1/weight [1, 1] is in the checkpoint only",
    )
    assert plain(fresh) == before


def test_what_a_model_does_not_take_back_is_named(here):
    model = nn.Linear(1, 1)
    model.register_state_dict_post_hook(lambda _, state, *__: state.update(version=3))
    save(here, model)
    assert (
        "does not accept 1 of the entries of its own state_dict, version first"
        in finding(here, model).what
    )


def test_versions_of_modules_reach_them(here):
    model = nn.ModuleList([Counting(1)])
    seen = []
    model.register_load_state_dict_pre_hook(
        lambda _, __, ___, metadata, *____: seen.append(metadata.get("version"))
    )
    save(here, model)
    load(here, model)
    assert seen == [1]


# Everything else


def test_nested_state_comes_back_as_it_was(here):
    inner = OrderedDict(b=torch.ones(2), a=1)
    inner._metadata = {"": {"version": 2}}
    counts = defaultdict(list, {"x": [torch.zeros(1)]})
    own = {
        "inner": inner,
        "counts": counts,
        "kinds": Counter(a=2),
        "both": {1: torch.tensor(1), "1": torch.tensor(2)},
    }
    save(here, own=own)
    found = load(here)
    assert str(found) == str(own)
    assert found["inner"]._metadata == inner._metadata
    assert found["counts"]["new"] == []
    assert inner["b"].tolist() == [1, 1], "what was saved is as it was"


def test_an_averaged_model_is_kept_as_tensors(here):
    averaged = AveragedModel(nn.Linear(2, 1))
    save(here, own={"average": averaged.state_dict()})
    saved = here.find("latest")
    assert "session/average/module.weight" in saved.tensors
    fresh = AveragedModel(nn.Linear(2, 1))
    fresh.load_state_dict(load(here)["average"])
    assert plain(fresh) == plain(averaged)


def test_an_object_of_a_gpu_that_is_not_here_is_loaded(here, monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:3")
    save(here, own={"set": {(torch.arange(3),)}})
    monkeypatch.undo()
    ((found,),) = load(here)["set"]
    assert (found.tolist(), found.device) == ([0, 1, 2], CPU)
