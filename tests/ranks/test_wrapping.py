"""An optimizer that was made before a model's parameters were replaced is named at setup, and no other is."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from paceline import Session
from paceline.errors import PacelineError

pytestmark = pytest.mark.ci


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def after_sharding(model):
    fully_shard(model)
    return model, sgd(model)


def before_sharding(model):
    optimizer = sgd(model)
    return fully_shard(model), optimizer


def before_tensor_parallel(model):
    optimizer = sgd(model)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return parallelize_module(model, mesh, ColwiseParallel()), optimizer


def between_both(model):
    mesh = init_device_mesh(
        "cpu", (1, torch.distributed.get_world_size()), mesh_dim_names=("d", "t")
    )
    parallelize_module(model, mesh["t"], ColwiseParallel())
    optimizer = sgd(model)
    return fully_shard(model, mesh=mesh["d"]), optimizer


def before_memory(model):
    model = copy.deepcopy(model).to("meta")
    optimizer = sgd(model)
    return model.to_empty(device="cpu"), optimizer


def of_a_copy(model):
    return model, sgd(copy.deepcopy(model))


def of_other_shape(model):
    return fully_shard(model), sgd(nn.Linear(3, 5))


ORDERS = {
    order.__name__: order
    for order in (
        *(after_sharding, before_sharding, before_tensor_parallel, between_both),
        *(before_memory, of_a_copy, of_other_shape),
    )
}


def set_up(name):
    torch.manual_seed(5)
    model, optimizer = ORDERS[name](nn.Linear(4, 4))
    try:
        Session().setup(model, optimizer)
    except PacelineError as error:
        return error.finding.name, error.finding.what
    return None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("before_sharding", "fully_shard or parallelize_module"),
        ("before_tensor_parallel", "fully_shard or parallelize_module"),
        ("between_both", "fully_shard or parallelize_module"),
        ("before_memory", "model.to_empty"),
    ],
)
def test_an_optimizer_that_was_made_too_early_is_refused(ranks, name, step):
    what = f"SGD was made before {step}, which has replaced 2 of its parameters"
    assert ranks.run(set_up, name, world_size=2) == [("wrapping-order", what)] * 2


@pytest.mark.parametrize("name", ["of_a_copy", "of_other_shape"])
def test_an_optimizer_of_another_model_is_no_matter_of_order(ranks, name):
    for found in ranks.run(set_up, name, world_size=2):
        assert found[0] == "optimizer-of-other-model"


def test_an_optimizer_that_was_made_last_is_right(ranks):
    for found in ranks.run(set_up, "after_sharding", world_size=2):
        assert found is None or found[0] == "option-contradicted"  # which mesh has the data?
