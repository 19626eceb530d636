"""Evaluation loops over a rank's share of the samples: where they are, who made the share, whether it is padded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.meetings import several
from paceline.diagnose.lint.python.objects import argument, kinds, makes
from paceline.diagnose.lint.python.script import Function, Script, inside, keyword
from paceline.text.syntax import constant, dotted, last


@dataclass(frozen=True)
class Evaluation:
    """A loop that evaluates over a sharded loader.

    Attributes:
        loop: The loop.
        loader: The dotted name of what it runs over.
        padded: Whether the share of each rank may hold samples twice.
        by: What sharded the loader, for the reader.
        around: The nodes of the function (or the block) that evaluates, and of what it calls and what calls it.
    """

    loop: ast.For
    loader: str
    padded: bool
    by: str
    around: list[ast.AST]


def evaluations(script: Script) -> list[Evaluation]:
    """Return the evaluation loops over sharded loaders."""
    return script.ask("evaluations", lambda: list(_find(script))) or []


def _find(script: Script) -> Iterator[Evaluation]:
    shares = _shares(script)
    if not shares:
        return
    for loop in script.nodes:
        if not isinstance(loop, ast.For) or not (name := loaders.iterated(loop)):
            continue
        if loaders.learns(script, loop) or not is_evaluation(script, loop):
            continue
        told = _share_of(script, name, loop, shares)
        if told and loaders.runs_in_parallel(script, loop):
            yield Evaluation(loop, name, told[0], told[1], around_of(script, loop))


def _shares(script: Script) -> dict[str, tuple[bool, str]]:
    """Return the names of sharded loaders, with whether they are padded, and by what."""
    found: dict[str, tuple[bool, str]] = {}
    for call in loaders.data_loaders(script):
        given = loaders.sampler_of(script, call)
        sampler = loaders.sampler_call(script, given) if given is not None else None
        if sampler is None or constant(argument(sampler, "num_replicas", 1)) == 1:
            continue
        exact = constant(keyword(sampler, "drop_last")) is True or constant(keyword(call, "drop_last")) is True
        for name in loaders.targets(script, call):
            found[name] = (not exact, "DistributedSampler")
    for name, values in script.values.items():
        for value in values:
            told = _share_by_framework(script, value.value, value.at) or _share_by_factory(script, value.value)
            if told:
                found[name] = told
    return found


def _share_by_framework(script: Script, node: ast.expr, at: ast.AST) -> tuple[bool, str] | None:
    told = kinds(script, node, at)
    if "fabric-loader" in told and _fabric_shards(script, node):
        return (True, "Fabric's DistributedSampler")
    if "prepared" in told:
        return (False, "Accelerate")
    return (False, "the session") if "session-loader" in told else None


def _share_by_factory(script: Script, node: ast.expr) -> tuple[bool, str] | None:
    """A loader that a function of the file makes and returns."""
    functions = script.functions.get(last(node), []) if isinstance(node, ast.Call) else []
    for function in functions if len(functions) == 1 else []:
        for part in inside(function):
            made = part.value if isinstance(part, ast.Return) else None
            if made is not None and not isinstance(made, ast.Call) and dotted(made):
                made = next((v.value for v in script.assigned(dotted(made), part)), None)
            if isinstance(made, ast.Call) and loaders.is_sharded(script, made):
                return (constant(keyword(made, "drop_last")) is not True, "DistributedSampler")
    return None


def _fabric_shards(script: Script, call: ast.expr) -> bool:
    made = makes(script, "fabric")
    given = keyword(call, "use_distributed_sampler") if isinstance(call, ast.Call) else None
    return bool(made) and all(several(m) for m in made) and constant(given) is not False


def _share_of(script: Script, name: str, loop: ast.For, shares: dict[str, tuple[bool, str]]) -> tuple[bool, str] | None:
    """A loader by its own name, or by that of the parameter through which it is handed on."""
    function = script.function(loop)
    if function is None or name not in _parameter_places(function):
        return shares.get(name)
    place = _parameter_places(function)[name]
    told = []
    for call in script.calls_of(function.name):
        shift = 1 if isinstance(call.func, ast.Attribute) and script.owner(function) else 0
        handed = argument(call, name, place - shift)
        told.append(shares.get(dotted(handed)) if handed is not None else None)
    known = [one for one in told if one]
    return known[0] if known and len(known) == len(told) else None


def _parameter_places(function: Function) -> dict[str, int]:
    return {a.arg: place for place, a in enumerate([*function.args.posonlyargs, *function.args.args])}


def is_evaluation(script: Script, loop: ast.For) -> bool:
    """Say whether a loop runs with gradients off or the model in evaluation."""
    for parent in script.up(loop):
        if isinstance(parent, ast.With) and any(
            last(item.context_expr) in ("no_grad", "inference_mode", "eval_mode") for item in parent.items
        ):
            return True
        if isinstance(parent, Function):
            if any(last(d) in ("no_grad", "inference_mode") for d in parent.decorator_list):
                return True
            break
    scope = script.scope(loop)
    before = [n for n in inside(scope) if isinstance(n, ast.Call) and last(n) in ("eval", "train", "no_grad")]
    earlier = [n for n in before if n.lineno < loop.lineno and not (last(n) == "train" and n.args)]
    if earlier and last(earlier[-1]) == "eval":
        return True
    return any(isinstance(n, ast.With) and any(last(i.context_expr) in ("no_grad", "inference_mode") for i in n.items)
               for n in inside(loop))  # fmt: skip


def around_of(script: Script, loop: ast.For) -> list[ast.AST]:
    """Return the function of the loop (at module level: the block), what it calls, and the functions that call it."""
    function = script.function(loop)
    if function is None:
        return list(inside(script.tree))
    found: list[ast.AST] = []
    seen: set[ast.AST] = set()
    todo: list[tuple[ast.AST, int]] = [(function, 0)]
    callers = [script.function(call) or script.tree for call in script.calls_of(function.name)]
    todo += [(caller, 2) for caller in callers]
    while todo:
        top, depth = todo.pop(0)
        if top in seen:
            continue
        seen.add(top)
        for node in inside(top, functions=top is function):
            found.append(node)
            if isinstance(node, ast.Call) and depth < 3:
                todo += [(inner, depth + 1) for inner in script.functions.get(last(node), [])]
                owner = script.classes.get(last(node))
                if owner is not None:
                    todo += [(part, depth + 1) for part in owner.body if isinstance(part, Function)]
    return found
