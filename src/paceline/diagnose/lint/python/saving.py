"""How checkpoints are written: by one rank, and with the model's own keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import argument, kinds, makes
from paceline.diagnose.lint.python.ranks import is_partial, mentions_rank, runs_alone
from paceline.diagnose.lint.python.script import Script, inside
from paceline.errors import Finding
from paceline.text.syntax import dotted, last, words

_NOT_A_FILE = re.compile(r"BytesIO|(^|_)(buf|buffer|bio|stream|memory)(_|$)|io$", re.I)
_DEPTH = 4


def save_on_every_rank(script: Script) -> Iterator[Finding]:
    """Every rank writes the same file with torch.save: they overwrite each other while one may be reading.

    Silent where the path holds the rank, where the code or all callers of its function stand behind a rank condition,
    and where the file does not itself set up several ranks.
    """
    if not makes(script, "ddp", "fsdp", "engine") and "horovod" not in script.roots:
        return
    for call in script.calls:
        if script.full(call.func) != "torch.save":
            continue
        path = argument(call, "f", 1)
        if path is None or is_partial(script, call) or not loaders.runs_in_parallel(script, call):
            continue
        if _is_of_the_rank(script, path, call, 0) or _is_uncalled(script, call) or _is_tested(script, call):
            continue
        if not _saves_training(script, call):
            continue
        yield script.finding(
            "save-on-every-rank",
            call,
            "every rank writes this file",
            why="several processes write it at once, and what is left may be damaged",
            fix="if dist.get_rank() == 0: torch.save(...)",
        )


def _is_of_the_rank(script: Script, node: ast.expr, at: ast.AST, depth: int) -> bool:
    if depth > _DEPTH:
        return True
    if mentions_rank(node) or any(_NOT_A_FILE.search(word) for word in words(node)):
        return True
    for part in ast.walk(node):
        name = dotted(part) if isinstance(part, ast.Name | ast.Attribute) else ""
        for value in script.assigned(name, at) if name else []:
            if value.value is not node and _is_of_the_rank(script, value.value, value.at, depth + 1):
                return True
    return False


def _is_uncalled(script: Script, node: ast.AST) -> bool:
    """A function that the file defines and never calls may well be called on one rank elsewhere."""
    function = script.function(node)
    while function is not None:
        if function.name in ("main", "__init__"):
            return False
        if not script.calls_of(function.name) and not any(
            isinstance(n, ast.Name | ast.Attribute) and last(n) == function.name for n in script.nodes
        ):
            return True
        function = script.function(function)
    return False


def _is_tested(script: Script, node: ast.AST) -> bool:
    owner = script.owner(node)
    function = script.function(node)
    return (owner is not None and "Test" in owner.name) or (function is not None and function.name.startswith("test_"))


def _saves_training(script: Script, call: ast.Call) -> bool:
    """Say whether what is saved comes from the training: a state_dict, a model, a checkpoint."""
    saved = argument(call, "obj", 0)
    if saved is None:
        return False
    parts = [saved, *(v.value for v in (script.assigned(dotted(saved), saved) if dotted(saved) else []))]
    if any(isinstance(n, ast.Call) and last(n) == "state_dict" for part in parts for n in ast.walk(part)):
        return True
    return bool(re.search(r"state|ckpt|checkpoint|model|net", last(saved), re.I))


def save_wrapped_model(script: Script) -> Iterator[Finding]:
    """The state_dict of the DDP wrapper is saved: all its keys begin with ``module.``.

    A hint where the file loads into the wrapper as well, which works as long as the model is always wrapped.
    """
    loads = [c for c in script.calls_of("load_state_dict") if isinstance(c.func, ast.Attribute)]
    loads = [c for c in loads if isinstance(c.func, ast.Attribute) and "ddp" in kinds(script, c.func.value, c)]
    for call in script.calls_of("state_dict"):
        if not isinstance(call.func, ast.Attribute) or not (name := dotted(call.func.value)):
            continue
        if kinds(script, call.func.value, call) != {"ddp"} or not _is_saved(script, call):
            continue
        if _is_unwrapped_before(script, name, call) or _knows_the_module(script, name, call):
            continue
        if runs_alone(script, call):
            continue
        yield script.finding(
            "save-wrapped-model",
            call,
            f"{name} is the DDP wrapper here: all keys that are saved begin with module.",
            why="the plain model, or a run on one GPU, cannot load them as they are",
            fix=f"{name}.module.state_dict()",
            severity="hint" if loads else "warning",
        )


def _is_saved(script: Script, call: ast.Call) -> bool:
    for parent in script.up(call):
        if (
            isinstance(parent, ast.Call)
            and parent is not call
            and last(parent) in ("save", "save_checkpoint", "save_model")
        ):
            return True
        if isinstance(parent, ast.Call) and last(parent) not in ("dict", "deepcopy"):
            return False
        if isinstance(parent, ast.Assign):
            names = {dotted(target) for target in parent.targets}
            scope = script.scope(parent)
            return any(
                isinstance(node, ast.Call) and last(node) in ("save", "save_checkpoint", "save_model")
                and any(dotted(a) in names for a in node.args)
                for node in inside(scope)
            )  # fmt: skip
        if isinstance(parent, ast.stmt):
            return False
    return False


def _knows_the_module(script: Script, name: str, call: ast.Call) -> bool:
    """Say whether the function takes ``.module`` of this object, too, and so tells the wrapper from the model."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "module" and dotted(node.value) == name
        for node in inside(script.scope(call))
    ) or any(isinstance(n, ast.Call) and last(n) == "hasattr" and n.args and dotted(n.args[0]) == name
             for n in inside(script.scope(call)))  # fmt: skip


def _is_unwrapped_before(script: Script, name: str, call: ast.Call) -> bool:
    """Say whether the name also stands for the model itself, by assignments that end in ``.module``."""
    return any(
        isinstance(value.value, ast.Attribute) and value.value.attr in ("module", "_orig_mod")
        for value in script.assigned(name, call)
    ) or any(last(n) == "consume_prefix_in_state_dict_if_present" for n in script.calls)
