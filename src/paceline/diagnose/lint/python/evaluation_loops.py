"""Find evaluation loops over sharded loaders: what shards the loader, and whether it pads the
shares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.collective_calls import several
from paceline.diagnose.lint.python.objects import argument, kinds, makes
from paceline.diagnose.lint.python.script import Function, Script, inside, keyword
from paceline.text.syntax import constant, dotted, last

_NO_GRADIENTS = ("no_grad", "inference_mode")


@dataclass(frozen=True)
class EvaluationLoop:
    """A loop that evaluates over a sharded loader."""

    loop: ast.For  # the loop
    loader: str  # the dotted name of its loader
    padded: bool  # whether the shares may contain samples twice
    by: str  # what shards the loader, as findings show it
    # the nodes of the evaluating function (or module), of the functions it calls, and of its
    # callers
    around: list[ast.AST]


def evaluations(script: Script) -> list[EvaluationLoop]:
    """Return the evaluation loops over sharded loaders."""
    return script.cached("evaluations", lambda: list(_find(script))) or []


def _find(script: Script) -> Iterator[EvaluationLoop]:
    shares = _shares(script)
    if not shares:
        return
    for loop in script.nodes:
        if not isinstance(loop, ast.For) or not (name := loaders.iterated(loop)):
            continue
        if loaders.learns(script, loop) or not is_evaluation(script, loop):
            continue
        share = _share_of(script, name, loop, shares)
        if share and loaders.runs_in_parallel(script, loop):
            yield EvaluationLoop(loop, name, share[0], share[1], around_of(script, loop))


def _shares(script: Script) -> dict[str, tuple[bool, str]]:
    """Return the names of sharded loaders, with whether they are padded, and by what."""
    shares: dict[str, tuple[bool, str]] = {}
    for call in loaders.data_loaders(script):
        sampler = loaders.sharding_sampler(script, call)
        if sampler is None or constant(argument(sampler, "num_replicas", 1)) == 1:
            continue
        for name in loaders.targets(script, call):
            shares[name] = (not _drops_rest(sampler, call), "DistributedSampler")
    for name, values in script.values.items():
        for value in values:
            share = _share_by_framework(script, value.value, value.at)
            share = share or _share_by_factory(script, value.value)
            if share:
                shares[name] = share
    return shares


def _drops_rest(sampler: ast.Call | None, loader: ast.Call) -> bool:
    """Return whether no sample is repeated at the end of a sampler's shares.

    drop_last of the loader cuts repeated samples too, unless the share is a multiple of the batch.
    """
    of_loader = argument(loader, "drop_last", 8)
    of_sampler = argument(sampler, "drop_last", 5) if sampler is not None else None
    return constant(of_loader) is True or constant(of_sampler) is True


def _share_by_framework(script: Script, node: ast.expr, at: ast.AST) -> tuple[bool, str] | None:
    loader_kinds = kinds(script, node, at)
    if "fabric-loader" in loader_kinds and _fabric_shards(script, node):
        return (True, "Fabric's DistributedSampler")
    # Accelerate repeats samples as well, but gather_for_metrics() removes them; the plain gather
    # has a check of its own.
    if "prepared" in loader_kinds:
        return (False, "Accelerate")
    return (False, "the session") if "session-loader" in loader_kinds else None


def _share_by_factory(script: Script, node: ast.expr) -> tuple[bool, str] | None:
    """Return the share of a loader that a function of the file creates and returns."""
    functions = script.functions.get(last(node), []) if isinstance(node, ast.Call) else []
    for function in functions if len(functions) == 1 else []:
        for part in inside(function):
            result = part.value if isinstance(part, ast.Return) else None
            if result is not None and not isinstance(result, ast.Call) and dotted(result):
                result = next((v.value for v in script.assigned(dotted(result), part)), None)
            if isinstance(result, ast.Call) and loaders.is_sharded(script, result):
                sampler = loaders.sharding_sampler(script, result)
                return (not _drops_rest(sampler, result), "DistributedSampler")
    return None


def _fabric_shards(script: Script, call: ast.expr) -> bool:
    # On one device setup_dataloaders leaves the sampler as it is, and a Fabric whose number of
    # devices is unknown may have one.
    constructors = makes(script, "fabric")
    own_sampler = keyword(call, "use_distributed_sampler") if isinstance(call, ast.Call) else None
    return (
        bool(constructors)
        and all(several(constructor) for constructor in constructors)
        and constant(own_sampler) is not False
    )


def _share_of(
    script: Script, name: str, loop: ast.For, shares: dict[str, tuple[bool, str]]
) -> tuple[bool, str] | None:
    """Return the share of a loader by its name, or through the parameter as which it is passed."""
    function = script.function(loop)
    if function is None or name not in _parameter_places(function):
        return shares.get(name)
    place = _parameter_places(function)[name]
    passed_shares = []
    for call in script.calls_of(function.name):
        # `self` has a place among the parameters, but none among the arguments.
        shift = 1 if isinstance(call.func, ast.Attribute) and script.owner(function) else 0
        value = argument(call, name, place - shift)
        passed_shares.append(shares.get(dotted(value)) if value is not None else None)
    # If one caller passes a loader that every rank reads as a whole, the loop is not wrong as such.
    return passed_shares[0] if passed_shares and all(passed_shares) else None


def _parameter_places(function: Function) -> dict[str, int]:
    return {
        a.arg: place for place, a in enumerate([*function.args.posonlyargs, *function.args.args])
    }


def is_evaluation(script: Script, loop: ast.For) -> bool:
    """Return whether a loop runs without gradients or with the model in evaluation mode."""
    if _runs_without_gradients(script, loop) or _follows_eval(script, loop):
        return True
    return any(_enters(node, _NO_GRADIENTS) for node in inside(loop))


def _runs_without_gradients(script: Script, loop: ast.For) -> bool:
    """Return whether a block around a loop, or a decorator of its function, disables gradients."""
    for parent in script.up(loop):
        if _enters(parent, (*_NO_GRADIENTS, "eval_mode")):
            return True
        if isinstance(parent, Function):
            return any(last(decorator) in _NO_GRADIENTS for decorator in parent.decorator_list)
    return False


def _follows_eval(script: Script, loop: ast.For) -> bool:
    """Return whether the last change of the model's mode before a loop is ``eval()``."""
    calls = [node for node in inside(script.scope(loop)) if isinstance(node, ast.Call)]
    before = [call for call in calls if call.lineno < loop.lineno]
    # train(loader) is a function of the script, model.train() a change of mode.
    modes = [last(call) for call in before if last(call) != "train" or not call.args]
    changes = [mode for mode in modes if mode in ("eval", "no_grad", "train")]
    return changes[-1:] == ["eval"]


def _enters(node: ast.AST, contexts: tuple[str, ...]) -> bool:
    """Return whether a node is a ``with`` block of one of the contexts."""
    return isinstance(node, ast.With) and any(
        last(item.context_expr) in contexts for item in node.items
    )


def around_of(script: Script, loop: ast.For) -> list[ast.AST]:
    """Return the nodes of the loop's function, of the functions it calls, and of its callers."""
    function = script.function(loop)
    if function is None:
        return list(inside(script.tree))
    nodes: list[ast.AST] = []
    visited: set[ast.AST] = set()
    todo: list[tuple[ast.AST, int]] = [(function, 0)]
    # Callers start at depth 2: what they call may reduce the result, what that calls in turn is too
    # far away.
    callers = [script.function(call) or script.tree for call in script.calls_of(function.name)]
    todo += [(caller, 2) for caller in callers]
    while todo:
        top, depth = todo.pop(0)
        if top in visited:
            continue
        visited.add(top)
        for node in inside(top, functions=top is function):
            nodes.append(node)
            if isinstance(node, ast.Call) and depth < 3:
                todo += [(inner, depth + 1) for inner in script.functions.get(last(node), [])]
                owner = script.classes.get(last(node))
                if owner is not None:
                    todo += [(part, depth + 1) for part in owner.body if isinstance(part, Function)]
    return nodes
