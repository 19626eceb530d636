"""Choose which weights of a file belong to which keys of a model, and load them.

A file may name the same weights differently: under a wrapper (``module.``, ``_orig_mod.``), as an
attribute of something greater (``model.`` in a Lightning checkpoint), or as the inside of the
model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.errors import UsageError, option_invalid
from paceline.text.wording import few_lines
from paceline.train.checkpoint import foreign
from paceline.train.model import keys
from paceline.train.model.sharded import is_dtensor

_MOST = 8  # lines of evidence


@dataclass(frozen=True)
class WeightPlan:
    """Which weights to load."""

    names: dict[str, str]  # the model's key for each key of the file
    change: str  # how keys were changed, for a message; empty if they are equal
    missing: list[str]  # the model's keys that keep their values
    unused: list[str]  # the file's keys that are not loaded


def choose(
    shapes: Mapping[str, tuple[int, ...]],  # of the file's tensors, by key
    own: Mapping[str, tuple[int, ...]],  # of the model's tensors, by key
    *,
    prefix: str | None,  # what the file's keys begin with; None to find out
    where: str,  # the file, for the message
) -> WeightPlan:
    """Return which weights of a file to load into a model. Pure.

    Raises UsageError if two prefixes fit equally well.
    """
    prefixes = _prefixes(shapes, own) if prefix is None else [(prefix, "")]
    plans = [_with_prefix(shapes, own, *pair) for pair in prefixes]
    fits = [sum(shapes[key] == own[name] for key, name in plan.names.items()) for plan in plans]
    best = [plan for plan, fit in zip(plans, fits, strict=True) if fit == max(fits)]
    if len(best) > 1 and best[0].change and max(fits):
        raise _ambiguous([plan.change for plan in best], where)
    return best[0]


def _prefixes(shapes: Mapping[str, Any], own: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what could be dropped from the file's keys or put in front of them; nothing first."""
    pairs = [("", "")]
    by_core = {keys.without_wrappers(name) for name in own}
    for key in map(keys.without_wrappers, shapes):
        parts = key.split(".")
        starts = [".".join(parts[:depth]) + "." for depth in range(1, len(parts))]
        pairs += [(start, "") for start in starts if key.removeprefix(start) in by_core]
    for name in by_core:
        parts = name.split(".")
        starts = [".".join(parts[:depth]) + "." for depth in range(1, len(parts))]
        pairs += [("", start) for start in starts if name.removeprefix(start) in shapes]
    return list(dict.fromkeys(pairs))


def _with_prefix(
    shapes: Mapping[str, Any], own: Mapping[str, Any], dropped: str, added: str
) -> WeightPlan:
    """Return what is loaded if a prefix is dropped from the file's keys, or added."""
    stripped: dict[str, str] = {}
    for key in shapes:
        core = key if key.startswith(dropped) else keys.without_wrappers(key)
        if core.startswith(dropped):
            stripped[added + core.removeprefix(dropped)] = key
    wrapped = keys.match(stripped, own)
    names = {
        key: wrapped.get(name, name)
        for name, key in stripped.items()
        if name in own or name in wrapped
    }
    reached = set(names.values())
    return WeightPlan(
        names=names,
        change=_describe(dropped, added, is_wrapped=bool(wrapped)),
        missing=[name for name in own if name not in reached],
        unused=[key for key in shapes if key not in names],
    )


def _describe(dropped: str, added: str, *, is_wrapped: bool) -> str:
    if dropped:
        return f"keys without {dropped!r}"
    if added:
        return f"keys with {added!r} in front"
    return "keys without those of wrappers" if is_wrapped else ""


def check(
    plan: WeightPlan,
    shapes: Mapping[str, tuple[int, ...]],
    own: Mapping[str, tuple[int, ...]],
    *,
    strict: bool,
    where: str,
) -> None:
    """Refuse weights of another model. Pure.

    Raises UsageError if nothing fits, shapes differ, or with ``strict``, keys are missing or
    unused.
    """
    lines = [
        f"{name} is {list(own[name])} here and {list(shapes[key])} in the file"
        for key, name in plan.names.items()
        if own[name] != shapes[key]
    ]
    if strict or not plan.names:
        lines += [f"{name} is not in the file" for name in plan.missing]
        lines += [f"{key} is in the file only" for key in plan.unused]
    if lines:
        raise _other_model(lines, where)


def fitting(
    plan: WeightPlan, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, tuple[int, ...]]
) -> WeightPlan:
    """Return a plan that leaves out weights of another shape, such as those of a new head. Pure."""
    names = {key: name for key, name in plan.names.items() if own[name] == shapes[key]}
    others = {key: name for key, name in plan.names.items() if key not in names}
    missing, unused = [*plan.missing, *others.values()], [*plan.unused, *others]
    return WeightPlan(names, plan.change, missing, unused)


def read(
    # a file or folder, or what was loaded from one
    source: str | os.PathLike[str] | Mapping[str, Any],
    model: nn.Module,
    *,
    prefix: str | None,  # what the file's keys begin with; None to find out
    strict: bool,  # every key must be on both sides
    trust: bool,  # unpickle any class
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the weights for a model by its own keys, and the line that reports them.

    Raises UsageError if the source holds no weights, or they are of another model; RunError if the
    file cannot be read.
    """
    if isinstance(source, Mapping):
        where = "the given weights"
        weights = foreign.weights_in(source, where)
    elif not isinstance(source, str | os.PathLike):
        raise _no_source(source)
    else:
        where = os.fspath(source)
        weights = foreign.read_weights(Path(source), trust=trust)
    state = weights.tensors
    shapes, own = shapes_of(state), shapes_of(model.state_dict())
    plan = without_ties(model, choose(shapes, own, prefix=prefix, where=where))
    if not strict:
        plan = fitting(plan, shapes, own)
    check(plan, shapes, own, strict=strict, where=where)
    values = {name: state[key] for key, name in plan.names.items()}
    return values, describe(plan, where, weights.choice)


def load(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Load tensors into some of a model's entries, also into shards."""
    if not any(map(is_dtensor, model.parameters())):
        model.load_state_dict(state, strict=False)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, strict=False)
    values: dict[str, Any] = dict(state)
    set_model_state_dict(model, values, options=options)


def shapes_of(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a state; of a sharded one, the global shape."""
    return {
        key: tuple(value.shape) for key, value in state.items() if isinstance(value, torch.Tensor)
    }


def without_ties(model: nn.Module, plan: WeightPlan) -> WeightPlan:
    """Return a plan without keys that are missing because they are another name of a loaded one."""
    named = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(named[name]) for name in plan.names.values() if name in named}
    missing = [name for name in plan.missing if id(named.get(name)) not in loaded]
    return WeightPlan(plan.names, plan.change, missing, plan.unused)


def describe(plan: WeightPlan, where: str, choice: str = "") -> str:
    """Return the line that reports what was loaded. Pure."""
    parts = [f"loaded {len(plan.names)} tensors from {where}"]
    if choice:
        parts.append(choice)
    if plan.change:
        parts.append(plan.change)
    if plan.missing:
        parts.append(f"kept as they are: {_few(plan.missing)}")
    if plan.unused:
        parts.append(f"not used: {_few(plan.unused)}")
    return "; ".join(parts)


def _few(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def _no_source(source: Any) -> UsageError:
    is_module = isinstance(source, nn.Module)
    return option_invalid(
        f"weights come from a file, a folder or a dict, and not from a {type(source).__name__}",
        where="session.load(...)",
        fix=f"session.load({'other.state_dict()' if is_module else 'FILE'})",
    )


def _ambiguous(changes: list[str], where: str) -> UsageError:
    return option_invalid(
        f"several weights in the file fit the model: {'; '.join(changes[:4])}",
        where=where,
        fix='session.load(FILE, prefix="teacher."): what the keys of the right ones begin with',
    )


def _other_model(lines: list[str], where: str) -> UsageError:
    return UsageError.of(
        "checkpoint-other-model",
        f"the weights are of another model: {len(lines)} "
        f"difference{'s' if len(lines) > 1 else ''} in keys or shapes",
        where=where,
        evidence=few_lines(lines, _MOST),
        why="nothing was loaded: the model is as it was",
        fix="session.load(FILE, strict=False) loads the keys that are in both",
    )
