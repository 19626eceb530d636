"""Gather rows from all ranks in order, and run a function once for all ranks."""

from __future__ import annotations

import copy
import json
import pickle
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import option_invalid
from paceline.train import runtime
from paceline.train.data import Iteration, in_order, rebuilt
from paceline.train.session import gathering, once
from paceline.world import World

SCOPES = ("job", "node")


def gather(value: Any, iteration: Iteration | None, *, gradients: bool = False) -> Any:
    """Return the rows of all ranks, in the order of the loop if their number fits it.

    ``value`` holds tensors of shape ``[rows, ...]`` in dicts, lists and tuples. ``gradients``: a
    backward continues through the rows. Raises UsageError if a value has no rows.
    """
    if isinstance(value, dict):
        # Ranks may have filled their dicts in different orders.
        parts = {
            key: gather(value[key], iteration, gradients=gradients)
            for key in sorted(value, key=repr)
        }
        gathered = copy.copy(value)
        for key, part in parts.items():  # model outputs of transformers refuse update
            gathered[key] = part
        return gathered
    if isinstance(value, list | tuple):
        return rebuilt(value, lambda part: gather(part, iteration, gradients=gradients))
    if not isinstance(value, torch.Tensor) or not value.dim():
        is_tensor = isinstance(value, torch.Tensor)
        kind = "a tensor of shape []" if is_tensor else f"an object of type {type(value).__name__}"
        raise option_invalid(
            f"{kind} has no rows to gather",
            where="session.gather(...)",
            fix="pass tensors of shape [rows, ...]; session.reduce adds up numbers",
        )
    own = None if iteration is None else iteration.own_of(len(value))
    if own is not None:  # a borrowed row is gathered from the rank that owns it
        value = value[torch.tensor(own, dtype=torch.int64, device=value.device)]
    if gradients:
        rows, sizes = gathering.rows_of_all(value, has_weight=own is None)
    else:
        rows, sizes = runtime.all_rows(value)
    spans = iteration.spans_of(sizes) if iteration is not None and len(sizes) > 1 else None
    if spans is None:
        return rows
    return rows[torch.tensor(in_order(spans), dtype=torch.int64, device=rows.device)]


def as_the_others(value: Any) -> Any:
    """Return numbers in the other ranks' types: a rank without a step still has its initial 0.

    A collective. Dicts, lists and tuples are converted recursively.
    """
    kinds: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(kinds, _kinds(value))
    return _converted(value, kinds)


def _kinds(value: Any) -> Any:
    """Return the types of nested numbers: an empty tensor and its shape, a float or an int."""
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype), list(value.shape)
    if isinstance(value, dict):
        return {key: _kinds(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_kinds(part) for part in value]
    return 0.0 if isinstance(value, float) else 0


def _converted(value: Any, kinds: list[Any]) -> Any:
    """Return nested numbers in the types that the ranks have in their places."""
    if isinstance(value, dict):
        dicts = [kind for kind in kinds if isinstance(kind, dict)]
        return {
            key: _converted(part, [kind[key] for kind in dicts if key in kind])
            for key, part in value.items()
        }
    if isinstance(value, list):
        lists = [kind for kind in kinds if isinstance(kind, list)]
        return [
            _converted(part, [kind[place] for kind in lists if place < len(kind)])
            for place, part in enumerate(value)
        ]
    return _converted_number(value, kinds) if isinstance(value, int | float) else value


def _converted_number(value: float, kinds: list[Any]) -> Any:
    """Return a number as the tensor or float that another rank has in its place."""
    tensors = [kind for kind in kinds if isinstance(kind, tuple)]
    if tensors:
        like, shape = tensors[0]
        return torch.full(shape, value, dtype=like.dtype)
    return float(value) if any(isinstance(kind, float) for kind in kinds) else value


def do_once(fn: Callable[[], Any], scope: str, *, world: World) -> Any:
    """Run ``fn`` on one rank of the job or of each node; return its value on all ranks.

    ``fn`` takes no argument and returns what can be pickled; ``scope`` is one of ``SCOPES``. Raises
    UsageError if it is unknown, RunError if ``fn`` failed on another rank, or that rank has ended.
    """
    if scope not in SCOPES:
        what = f"scope={scope!r} is neither 'job' nor 'node'"
        raise option_invalid(what, where="session.once(...)", fix='scope="node"')
    if world.world_size == 1:
        return fn()
    store, on_node = runtime.store(), scope == "node"
    key = f"paceline/once/{runtime.number_of_call('once')}"
    works = (world.local_rank if on_node else world.rank) == 0
    own = _node(world) if on_node else "job"
    # With ranks assigned round-robin to nodes, no formula says which ranks do the work.
    store.set(f"{key}/at/{world.rank}", json.dumps([own, works]))
    once.arrive(store, key)
    value, data = once.perform(fn, store, f"{key}/{world.rank}") if works else (None, b"")
    workers = _workers(store, key, world) if on_node else {own: 0}
    for rank in sorted({*workers.values()} - {world.rank}):
        once.await_end(store, f"{key}/{rank}", rank=rank)
    once.await_all(store, key, world_size=world.world_size)
    pickles = {rank: runtime.bytes_of(rank, data) for rank in sorted(workers.values())}
    return value if works else pickle.loads(pickles[workers[own]])


def _workers(store: Any, key: str, world: World) -> dict[str, int]:
    """Return the working rank of each node, after all ranks have arrived."""
    once.await_all(store, key, world_size=world.world_size)
    places = [json.loads(store.get(f"{key}/at/{rank}")) for rank in range(world.world_size)]
    return {node: rank for rank, (node, works) in enumerate(places) if works}


def _node(world: World) -> str:
    """Return a name that the ranks of a node share, even if the launcher reports only one node."""
    if world.launcher == "mpi":  # which may give nodes different numbers of tasks, in any order
        return f"host {socket.gethostname()}"
    return (
        f"node {world.node_rank}"
        if world.num_nodes > 1
        else f"node from {world.rank - world.local_rank}"
    )
