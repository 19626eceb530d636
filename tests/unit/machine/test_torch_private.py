"""Each private name of torch that paceline uses exists in the torch that is installed."""

import ast
import inspect
import textwrap
from importlib import import_module

import pytest
import torch
from torch.distributed.fsdp import _common_utils as fsdp
from torch.nn.functional import cross_entropy
from torch.nn.parallel import distributed as ddp

from paceline.machine.torch_private import OF_RESULTS, OPTIONAL, PRIVATE


def resolve(path):
    """Return a module, or what is in one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        return getattr(resolve(parent), name)


def assigned(kind):
    """Names that the methods of a class give to its objects."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch."):
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    yield node.attr
                elif isinstance(node, ast.AnnAssign | ast.Assign):
                    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                    yield from (target.id for target in targets if isinstance(target, ast.Name))


def has(owner, name):
    if hasattr(owner, name):
        return True
    return inspect.isclass(owner) and name in set(assigned(owner))


@pytest.mark.parametrize("path", sorted(PRIVATE))
def test_the_installed_torch_has_each_private_name(path):
    owner = resolve(path)
    assert [name for name in PRIVATE[path] if not has(owner, name)] == []


@pytest.mark.parametrize("path", sorted(OPTIONAL))
def test_what_is_optional_has_its_private_names_where_it_is(path):
    if "nccl" in str(OPTIONAL[path]) and not torch.distributed.is_nccl_available():
        pytest.skip("a build without NCCL")
    try:
        owner = resolve(path)
    except AttributeError:
        pytest.skip("this version does not have it")
    assert [name for name in OPTIONAL[path] if not has(owner, name)] == []


def test_what_functions_return_has_each_private_name():
    loss = cross_entropy(
        torch.ones(2, 3, requires_grad=True), torch.tensor([0, 1]), reduction="sum"
    )
    total = torch.ones(2, requires_grad=True).sum()
    results = {
        "torch.compiler.disable": vars(torch.compiler.disable(lambda: None)),
        "torch.distributed.fsdp.FullyShardedDataParallel": [fsdp.FSDP_FLATTENED],
        "torch.nn.functional.cross_entropy": dir(loss.grad_fn),
        "torch.nn.parallel.DistributedDataParallel": [f"{ddp._DDPSink.__name__}Backward"],
        "torch.sum": dir(total.grad_fn),
    }
    assert set(results) == set(OF_RESULTS)
    assert [
        (path, name)
        for path, names in OF_RESULTS.items()
        for name in names
        if name not in results[path]
    ] == []
