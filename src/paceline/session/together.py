"""What all ranks do together beside training: rows gathered in order, work done once."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch

from paceline import once, runtime
from paceline.data import Iteration, in_order, rebuilt
from paceline.errors import Finding, UsageError
from paceline.world import World

SCOPES = ("job", "node")


def gather(value: Any, iteration: Iteration | None) -> Any:
    """Return the rows of all ranks, in the order of the loop that they come from if they fit it.

    Args:
        value: Tensors of shape ``[rows, ...]`` in dicts, lists and tuples.
        iteration: The loop.
    """
    if isinstance(value, dict):
        # Ranks may have filled their dicts in different orders.
        parts = {key: gather(value[key], iteration) for key in sorted(value, key=repr)}
        found = copy.copy(value)
        found.update(parts)
        return found
    if isinstance(value, list | tuple):
        return rebuilt(value, lambda part: gather(part, iteration))
    if not isinstance(value, torch.Tensor) or not value.dim():
        kind = "a tensor of shape []" if isinstance(value, torch.Tensor) else f"what is of type {type(value).__name__}"
        raise UsageError(
            Finding(
                "option-invalid",
                f"{kind} has no rows to gather",
                where="session.gather(...)",
                fix="hand gather tensors of shape [rows, ...]; session.reduce adds numbers up",
            )
        )
    rows, sizes = runtime.all_rows(value)
    spans = iteration.spans_of(sizes) if iteration is not None and len(sizes) > 1 else None
    return rows if spans is None else rows[torch.tensor(in_order(spans), dtype=torch.int64, device=rows.device)]


def do_once(fn: Callable[[], Any], scope: str, *, world: World) -> Any:
    """Run ``fn`` on one rank of the job or of each node; return its value on all.

    Args:
        fn: What to do.
        scope: One of ``SCOPES``.
        world: The ranks.
    """
    if scope not in SCOPES:
        what = f"scope={scope!r} is neither 'job' nor 'node'"
        raise UsageError(Finding("option-invalid", what, where="session.once(...)", fix='scope="node"'))
    if world.world_size == 1:
        return fn()
    store, on_node = runtime.store(), scope == "node"
    # Counted where the keys are: they outlive a session, and end with the store.
    number = store.add(f"paceline/once/calls/{world.rank}", 1)
    key = f"paceline/once/{number}/{_node(world) if on_node else 'job'}"
    if (world.local_rank if on_node else world.rank) == 0:
        store.set(f"{key}/rank", str(world.rank))
        return once.perform(fn, store, key)
    while not store.check([f"{key}/rank"]):  # which one it is follows from no number where ranks go round the nodes
        time.sleep(once.LOOK_S)
    return once.await_end(store, key, rank=int(store.get(f"{key}/rank")))


def _node(world: World) -> str:
    """Return a name that the ranks of a node share; not by its rank where the launcher tells of one node only."""
    return f"node {world.node_rank}" if world.num_nodes > 1 else f"node from {world.rank - world.local_rank}"
