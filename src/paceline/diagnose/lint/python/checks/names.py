"""Check names that libraries deprecated or removed, and names that this file does not show."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

from paceline.diagnose.lint.python.checks import public_names
from paceline.diagnose.lint.python.checks.methods import handles_missing
from paceline.diagnose.lint.python.objects import LIGHTNING, kinds, makes
from paceline.diagnose.lint.python.script import Function, Script, parameters, receiver
from paceline.errors import Finding
from paceline.signatures.lightning_names import tables
from paceline.text.syntax import dotted, last

_OLD_FUNCTIONS = {**public_names.OLD_TORCH, **public_names.GONE_FROM_TORCH}


def deprecated_name(script: Script) -> Iterator[Finding]:
    """Find names that are deprecated (a hint) or removed (a warning)."""
    # A module with relative imports belongs to a package, often a library for several releases.
    if any(full.startswith(".") for full in script.imports.values()):
        return
    yield from _old_arguments(script)
    yield from _old_methods(script)
    yield from _old_hooks(script)
    yield from _old_functions(script)


def _old_arguments(script: Script) -> Iterator[Finding]:
    of_trainer = {name: what.instead for name, what in tables()["removed arguments"].items()}
    of_accelerator = public_names.REMOVED_ACCELERATOR_ARGUMENTS
    for kind, title, removed, release in (
        ("trainer", "Trainer", of_trainer, "Lightning 2"),
        ("accelerator", "Accelerator", of_accelerator, "Accelerate 1"),
    ):
        for constructor in makes(script, kind):
            for keyword in constructor.keywords:
                if keyword.arg in removed:
                    what = f"{title}({keyword.arg}=...)"
                    yield _gone(script, keyword.value, what, removed[keyword.arg], release)


def _old_methods(script: Script) -> Iterator[Finding]:
    for call in script.calls:
        method = last(call)
        if not isinstance(call.func, ast.Attribute) or method not in public_names.REMOVED_TRAINER:
            continue
        today = public_names.REMOVED_TRAINER[method]
        full = script.full(call.func)
        if full.partition(".")[0] in LIGHTNING and full.endswith(f".Trainer.{method}"):
            yield _gone(script, call, f"Trainer.{method}", today, "Lightning 2")
        is_trainer = kinds(script, call.func.value, call) == {"trainer"}
        if is_trainer and not handles_missing(script, method, call):
            yield _gone(script, call, f"{dotted(call.func)}()", today, "Lightning 2")


def _old_hooks(script: Script) -> Iterator[Finding]:
    removed = tables()["removed hooks"] | tables()["removed methods"]
    for node in script.classes.values():
        for part in node.body if _has_hooks(script, node) else ():
            if not isinstance(part, Function) or part.name not in removed:
                continue
            # A method that the class calls itself is its own, whatever Lightning once called so.
            calls = script.calls_of(part.name)
            if not any(receiver(call) == "self" for call in calls):
                today = removed[part.name].instead
                yield _gone(script, part, f"the hook {part.name}", today, "Lightning 2")


def _has_hooks(script: Script, node: ast.ClassDef) -> bool:
    """Return whether a class is a LightningModule or a Callback of Lightning."""
    for full in map(script.full, node.bases):
        is_lightning = full.partition(".")[0] in LIGHTNING
        if is_lightning and full.endswith((".LightningModule", ".Callback")):
            return True
    return False


def _gone(script: Script, node: ast.AST, what: str, today: str, release: str) -> Finding:
    return script.finding(
        "deprecated-name",
        node,
        f"{what} was removed in {release}",
        why="later releases refuse it or never call it",
        fix=f"use {today}",
    )


def _old_functions(script: Script) -> Iterator[Finding]:
    # A file that neither trains nor runs as a program may keep old names for old releases of torch.
    is_program = any(_is_main_guard(node) for node in script.tree.body)
    if not is_program and not script.calls_of("backward"):
        return
    called = {script.full(call.func) for call in script.calls}
    reported: set[str] = set()
    functions = [function for named in script.functions.values() for function in named]
    decorators = [decorator for function in functions for decorator in function.decorator_list]
    for node in [*script.calls, *decorators]:
        full = script.full(node.func if isinstance(node, ast.Call) else node)
        if full in reported or full not in _OLD_FUNCTIONS:
            continue
        if f"torch.amp.{full.rpartition('.')[2]}" in called:
            continue  # the script uses both, depending on the version of torch
        reported.add(full)
        yield _old_function(script, node, full)


def _old_function(script: Script, node: ast.AST, full: str) -> Finding:
    state, severity = "is deprecated", "hint"
    why = "it warns today and may go in a later release"
    if full in public_names.GONE_FROM_TORCH:
        state, why, severity = "was removed", "current PyTorch does not have it", "warning"
    return script.finding(
        "deprecated-name",
        node,
        f"{full} {state}",
        why=why,
        fix=f"use {_OLD_FUNCTIONS[full]}",
        severity=severity,
    )


def names_not_judged(script: Script) -> Iterator[Finding]:
    """Report names that may come from ``import *``: their uses are not checked."""
    star = next((node for node in script.nodes if _imports_all(node)), None)
    if not isinstance(star, ast.ImportFrom):
        return
    bound = _bound_names(script)
    called = [call.func.id for call in script.calls if isinstance(call.func, ast.Name)]
    unknown = list(dict.fromkeys(name for name in called if name not in bound))
    if not unknown:
        return
    first = ", ".join(unknown[:3])
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    yield script.finding(
        "input-unreadable",
        star,
        f"not judged: {first}{more}, which may come from this import *",
        why="what a name stands for cannot be seen from this file",
        fix=f"from {'.' * star.level}{star.module or ''} import {first}",
        severity="hint",
    )


def _imports_all(node: ast.AST) -> bool:
    """Return whether a node is ``from module import *`` of a module outside Python itself."""
    if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
        return False
    # `from math import *` brings nothing that a check looks for.
    return (node.module or "").partition(".")[0] not in sys.stdlib_module_names


def _bound_names(script: Script) -> set[str]:
    """Return the names that the file binds anywhere, and Python's own."""
    bound = {*script.imports, *script.functions, *script.classes, *dir(builtins)}
    # Scopes are ignored: a name that is bound anywhere may be the one that is called.
    for node in script.nodes:
        bound |= parameters(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return bound


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and dotted(node.test.left) == "__name__"
    )
