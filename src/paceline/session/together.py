"""What all ranks do together beside training: rows gathered in order, work done once."""

from __future__ import annotations

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
    if isinstance(value, dict | list | tuple):
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


def do_once(fn: Callable[[], Any], scope: str, *, world: World, number: int) -> Any:
    """Run ``fn`` on one rank of the job or of each node; return its value on all.

    Args:
        fn: What to do.
        scope: One of ``SCOPES``.
        world: The ranks.
        number: The same on all ranks, and another one at each call.
    """
    if scope not in SCOPES:
        what = f"scope={scope!r} is neither 'job' nor 'node'"
        raise UsageError(Finding("option-invalid", what, where="session.once(...)", fix='scope="node"'))
    if world.world_size == 1:
        return fn()
    on_node = scope == "node"
    # Not by the node's rank alone: an adopted group may not know it.
    first = world.rank - world.local_rank if on_node else 0
    key = f"paceline/once/{number}/{first}"
    if world.rank == first:
        return once.perform(fn, runtime.store(), key)
    return once.await_end(runtime.store(), key, rank=first)
