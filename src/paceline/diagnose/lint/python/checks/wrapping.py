"""Check the order in which a model is sharded, made tensor parallel, and given to an optimizer.

Reported is what torch 2.13 does in silence. It refuses other orders itself, such as a model that is
sharded before its blocks. Both statements have to be in one function, and the second is reached
whenever the first was.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.diagnose.lint.python.objects import DOES_IT_ALL, makes
from paceline.diagnose.lint.python.script import Script
from paceline.errors import Finding
from paceline.text.syntax import dotted, last

_SHARDS = "fully_shard"
_CUTS = "parallelize_module"
_MOVES = "to_empty"
# Layers of torch that have parameters of their own.
_LAYERS = ("Linear", "Embedding", "LayerNorm", "RMSNorm", "Conv1d", "Conv2d", "Conv3d", "Parameter")


def wrapping_order(script: Script) -> Iterator[Finding]:
    """Find optimizers of replaced parameters, and blocks that are sharded without their model.

    Nothing is reported where a library may replace the parameters of optimizers itself.
    """
    if script.roots & DOES_IT_ALL:
        return
    calls = [*_calls(script, _SHARDS), *_calls(script, _CUTS), *_calls(script, _MOVES)]
    yield from _optimizers_too_early(script, calls)
    yield from _model_left_out(script)


def _calls(script: Script, name: str) -> list[ast.Call]:
    if name == _MOVES:
        return [call for call in script.calls_of(name) if isinstance(call.func, ast.Attribute)]
    return [
        call
        for call in script.calls_of(name)
        if script.full(call.func).startswith("torch.distributed.") and call.args
    ]


def _modules(script: Script, call: ast.Call) -> list[str]:
    """Return the dotted name of the module that a call changes, then those of what it is a part of.

    A loop variable stands for a part of what the loop goes over.
    """
    if last(call) == _MOVES and isinstance(call.func, ast.Attribute):
        module: ast.expr = call.func.value
    else:
        module = call.args[0]
    name = dotted(module)
    for parent in script.up(call):
        if isinstance(parent, ast.For) and name in [dotted(n) for n in ast.walk(parent.target)]:
            chains = [dotted(node) for node in ast.walk(parent.iter)]
            return ["", *_chain(max(chains, key=len))]
    return _chain(name)


def _chain(name: str) -> list[str]:
    """Return a dotted name and what is before each of its dots."""
    parts = name.split(".") if name else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _follows(script: Script, node: ast.AST, earlier: ast.AST) -> bool:
    """Return whether a node is in the block of an earlier statement, or in one inside it."""
    if script.scope(node) is not script.scope(earlier):
        return False
    place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    if place <= (getattr(earlier, "lineno", 0), getattr(earlier, "col_offset", 0)):
        return False
    statement = next(one for one in (earlier, *script.up(earlier)) if isinstance(one, ast.stmt))
    around = script.parents[statement]
    blocks = [getattr(around, name, None) for name in ("body", "orelse", "finalbody")]
    block = next((one for one in blocks if isinstance(one, list) and statement in one), [])
    return any(one in block for one in (node, *script.up(node)) if isinstance(one, ast.stmt))


def _optimizers_too_early(script: Script, calls: list[ast.Call]) -> Iterator[Finding]:
    for name, values in script.values.items():
        optimizer = values[0].value
        # Made twice, the second may hold the new parameters.
        if len(values) > 1 or not _is_optimizer(script, optimizer):
            continue
        models = [
            dotted(call.func.value)
            for call in ast.walk(optimizer)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("parameters", "named_parameters")
        ]
        for call in calls:
            model = next((one for one in models if one in _modules(script, call)), "")
            if not model or not _follows(script, call, optimizer):
                continue
            if _is_renewed(script, model, optimizer):
                continue
            yield script.finding(
                "wrapping-order",
                optimizer,
                f"{name} is made before {last(call)} (line {call.lineno}), which replaces the"
                f" parameters of {model}",
                why="it updates the old ones: the model is not trained, and nothing fails",
                fix=f"make {name} after line {call.lineno}",
            )
            break


def _is_optimizer(script: Script, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    package, _, kind = script.full(value.func).rpartition(".")
    return package in ("torch.optim", "torch.optim.adamw") and kind[:1].isupper()


def _is_renewed(script: Script, model: str, made: ast.expr) -> bool:
    """Return whether the optimizer gets new parameters later, or the model is another one then."""
    texts = (node for node in script.nodes if isinstance(node, ast.Attribute))
    if any(node.attr in ("param_groups", "add_param_group") for node in texts):
        return True
    later = (value.value for value in script.assigned(model, made))
    others = [value for value in later if value.lineno > made.lineno]
    return any(last(value) not in (_SHARDS, _CUTS, _MOVES) for value in others)


def _model_left_out(script: Script) -> Iterator[Finding]:
    """Find a model of which only blocks are sharded, and which has parameters outside of them."""
    calls = _calls(script, _SHARDS)
    parts = [call for call in calls if _modules(script, call)[:1] == [""]]
    others = [call for call in script.calls_of("all_reduce") if ".grad" in ast.unparse(call)]
    if len(parts) != 1 or len(calls) > 1 or others or makes(script, "ddp"):
        return
    blocks, model, *further = [*_modules(script, parts[0])[1:], "", ""]
    values = script.assigned(model, parts[0]) if model and not any(further) else []
    kinds = [
        script.classes[node.id]
        for value in values
        for node in ast.walk(value.value)
        if isinstance(node, ast.Name) and node.id in script.classes
    ]
    if len(values) != 1 or len(kinds) != 1:
        return
    left_out = _layer_outside(kinds[0], blocks.rpartition(".")[2])
    if left_out and not _is_passed_on(script, model, parts[0]):
        yield script.finding(
            "wrapping-order",
            parts[0],
            f"only {blocks} are sharded: fully_shard({model}) is missing",
            why=f"nothing averages the gradients of {left_out}, and ranks drift apart",
            fix=f"fully_shard({model}) after this loop",
        )


def _layer_outside(kind: ast.ClassDef, blocks: str) -> str:
    """Return an attribute of a class that is a layer with parameters, and is not its blocks."""
    for node in ast.walk(kind):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            owner, _, name = dotted(node.targets[0]).rpartition(".")
            if owner == "self" and name != blocks and last(node.value) in _LAYERS:
                return name
    return ""


def _is_passed_on(script: Script, model: str, after: ast.AST) -> bool:
    """Return whether a function of the file gets the model afterwards, and may shard it."""
    return any(
        last(call) in script.functions
        and call.lineno > getattr(after, "lineno", 0)
        and model in [dotted(argument) for argument in call.args]
        for call in script.calls
    )
