"""Infer the kind of a script's objects: wrapped models, engines, trainers, loaders, samplers."""

from __future__ import annotations

import ast

from paceline.diagnose.lint.python.script import Assigned, Script, keyword, parameters, words_of
from paceline.text.syntax import dotted, last

LIGHTNING = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})
DOES_IT_ALL = LIGHTNING | words_of(
    "accelerate paceline ignite composer catalyst fastai ray mmengine"
)

# Kind of object by the top package and the last word of the class that creates it.
_MAKERS: dict[str, tuple[frozenset[str], str]] = {
    "DistributedDataParallel": (frozenset({"torch"}), "ddp"),
    "FullyShardedDataParallel": (frozenset({"torch"}), "fsdp"),
    "DistributedSampler": (frozenset({"torch"}), "sharding-sampler"),
    "DataLoader": (frozenset({"torch"}), "loader"),
    "Fabric": (LIGHTNING, "fabric"),
    "Trainer": (LIGHTNING | {"paceline"}, "trainer"),
    "Accelerator": (frozenset({"accelerate"}), "accelerator"),
    "Session": (frozenset({"paceline"}), "session"),
}
# The kind of object that a method of such an object returns.
_GIVES = {
    ("accelerator", "prepare"): "prepared",
    ("accelerator", "prepare_model"): "prepared",
    ("accelerator", "prepare_data_loader"): "prepared",
    ("accelerator", "prepare_scheduler"): "prepared",
    ("fabric", "setup"): "fabric-module",
    ("fabric", "setup_module"): "fabric-module",
    ("fabric", "setup_dataloaders"): "fabric-loader",
    ("session", "setup"): "session-module",
    ("session", "loader"): "session-loader",
}
_STARTS = (
    "torch.distributed.init_process_group",
    "horovod.torch.init",
    "deepspeed.init_distributed",
)
_THROUGH = frozenset({"to", "cuda", "cpu", "compile", "train", "eval", "float", "half", "bfloat16"})
_MAX_DEPTH = 6


def made_by(script: Script, call: ast.Call) -> str:
    """Return the kind of object that a call creates, else an empty string."""
    full = script.full(call.func) or _chosen(script, call)
    if full == "deepspeed.initialize":
        return "engine"
    root, name = full.partition(".")[0], full.rpartition(".")[2]
    roots, kind = _MAKERS.get(name, (frozenset(), ""))
    # A Trainer of the user's own or of transformers has other methods.
    if root not in roots:
        return ""
    return "paceline-trainer" if kind == "trainer" and root == "paceline" else kind


def _chosen(script: Script, call: ast.Call) -> str:
    """Return the full name of DistributedSampler, if a name such as ``Sampler`` stands for it.

    ``Sampler = RandomSampler if one_process else DistributedSampler``: what ranks get counts.
    """
    values = script.assigned(call.func.id, call) if isinstance(call.func, ast.Name) else []
    if len(values) != 1:
        return ""
    value = values[0].value
    choices = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    names = [script.full(choice) for choice in choices]
    samplers = [name for name in names if name.endswith(".DistributedSampler")]
    return samplers[0] if len(samplers) == 1 else ""


def kinds(script: Script, node: ast.AST, at: ast.AST | None = None, depth: int = 0) -> set[str]:
    """Return the possible kinds of an expression by all its assignments, empty if unknown.

    A name is looked up from ``at``, by default from the expression itself.
    """
    if depth > _MAX_DEPTH:
        return set()
    return script.cached(("kinds", node, at), lambda: _kinds(script, node, at, depth)) or set()


def _kinds(script: Script, node: ast.AST, at: ast.AST | None, depth: int) -> set[str]:
    if isinstance(node, ast.IfExp):
        return _of_conditional(script, node, at, depth)
    if isinstance(node, ast.Call):
        return _of_call(script, node, at or node, depth)
    name, place = dotted(node), at or node
    if not name:
        return set()
    result: set[str] = set()
    for value in _until(script, script.assigned(name, place), place):
        # `model = prepare(model)`: the assignment that is being resolved would lead back to itself.
        if value.value is not node and (value.at is not at or depth == 0):
            result |= _part(kinds(script, value.value, value.at, depth + 1), value)
    return (
        result or _by_annotation(script, node, place) or _by_same_name(script, node, place, depth)
    )


def _of_conditional(script: Script, node: ast.IfExp, at: ast.AST | None, depth: int) -> set[str]:
    """Return the kinds of both values of a conditional expression.

    ``model.module if distributed else model`` is the bare model in either case.
    """
    values = (node.body, node.orelse)
    if any(isinstance(value, ast.Attribute) and value.attr == "module" for value in values):
        return set()
    return {kind for value in values for kind in kinds(script, value, at, depth + 1)}


def _until(script: Script, values: list[Assigned], at: ast.AST) -> list[Assigned]:
    """Drop later assignments of a function: ``raw = model`` before ``model = DDP(model)``."""
    line = getattr(at, "lineno", 0)
    before = [
        v
        for v in values
        if getattr(v.at, "lineno", 0) <= line or script.scope(v.at) is not script.scope(at)
    ]
    # In a loop, an assignment further down comes first from the second iteration on.
    return before or values


def _of_call(script: Script, call: ast.Call, at: ast.AST, depth: int) -> set[str]:
    kind = made_by(script, call)
    if kind:
        return {kind}
    if isinstance(call.func, ast.Attribute):
        method = call.func.attr
        if script.full(call.func) == "torch.compile" and call.args:
            return kinds(script, call.args[0], at, depth + 1)
        owners = kinds(script, call.func.value, at, depth + 1)
        results = {result for owner in owners if (result := _GIVES.get((owner, method)))}
        if results:
            return results
        if method in _THROUGH:
            return owners
    return set()


def _part(value_kinds: set[str], value: Assigned) -> set[str]:
    # deepspeed.initialize returns the engine first, then its optimizer, loader and scheduler.
    if "engine" in value_kinds and value.place > 0:
        return {"deepspeed-other"}
    return value_kinds


def _by_annotation(script: Script, node: ast.AST, at: ast.AST) -> set[str]:
    if not isinstance(node, ast.Name):
        return set()
    scope: ast.AST = script.scope(at)
    while node.id not in parameters(scope):
        if scope is script.tree:
            return set()
        scope = script.scope(scope)
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    spec = scope.args
    for argument in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]:
        if argument.arg == node.id and argument.annotation is not None:
            full = script.full(argument.annotation)
            roots, kind = _MAKERS.get(full.rpartition(".")[2], (frozenset(), ""))
            return {kind} if full.partition(".")[0] in roots else set()
    return set()


def _by_same_name(script: Script, node: ast.AST, at: ast.AST, depth: int) -> set[str]:
    """Return the kind of the file's only ``fabric`` for an attribute or parameter so called."""
    word = last(node)
    if depth or word not in ("fabric", "accelerator", "session"):
        return set()

    def find() -> set[str]:
        candidates: set[str] = set()
        for name, values in script.values.items():
            if name == word or name.endswith("." + word):
                for value in values:
                    candidates |= kinds(script, value.value, value.at, depth + 1)
        return candidates

    candidates = script.cached(("called", word), find) or set()
    return candidates if len(candidates) == 1 else set()


def makes(script: Script, *wanted_kinds: str) -> list[ast.Call]:
    """Return the calls that create an object of one of the kinds."""
    constructors = script.cached(
        "made", lambda: [(call, made_by(script, call)) for call in script.calls]
    )
    return [call for call, kind in constructors if kind in wanted_kinds]


def is_sharded_run(script: Script) -> bool:
    """Return whether the file itself sets up distributed training."""
    if makes(script, "ddp", "fsdp", "engine"):
        return True
    return any(script.full(call.func) in _STARTS for call in script.calls)


def names_of(script: Script, *wanted_kinds: str) -> dict[str, list[Assigned]]:
    """Return the names to which objects of these kinds are assigned, with the assignments."""
    names: dict[str, list[Assigned]] = {}
    for name, values in script.values.items():
        assignments = [
            v for v in values if _part(kinds(script, v.value, v.at), v) & set(wanted_kinds)
        ]
        if assignments:
            names[name] = assignments
    return names


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """Return an argument by its name or its position, or None."""
    value = keyword(call, name)
    if value is not None or len(call.args) <= place:
        return value
    positional = call.args[: place + 1]
    return None if any(isinstance(arg, ast.Starred) for arg in positional) else positional[-1]
