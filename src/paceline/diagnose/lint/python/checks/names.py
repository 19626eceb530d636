"""Check names that libraries deprecated or removed, and names that this file does not show."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

from paceline.diagnose.lint.python.checks import public_names
from paceline.diagnose.lint.python.checks.methods import handles_missing
from paceline.diagnose.lint.python.objects import LIGHTNING, kinds, makes
from paceline.diagnose.lint.python.script import (
    Function,
    Script,
    parameters,
    receiver,
)
from paceline.errors import Finding
from paceline.text.syntax import dotted, last


def deprecated_name(script: Script) -> Iterator[Finding]:
    """Find names that are deprecated (a hint) or removed (a warning); files with relative imports
    are skipped.
    """
    if any(full.startswith(".") for full in script.imports.values()):
        return
    yield from _old_arguments(script)
    yield from _old_hooks(script)
    yield from _old_functions(script)


def _old_arguments(script: Script) -> Iterator[Finding]:
    tables = (("trainer", "Trainer", public_names.REMOVED_TRAINER_ARGUMENTS, "Lightning 2"),
              ("accelerator", "Accelerator", public_names.REMOVED_ACCELERATOR_ARGUMENTS, "Accelerate 1"))  # fmt: skip
    for kind, title, removed, release in tables:
        for constructor in makes(script, kind):
            for keyword in constructor.keywords:
                if keyword.arg in removed:
                    yield _gone(
                        script,
                        keyword.value,
                        f"{title}({keyword.arg}=...)",
                        removed[keyword.arg],
                        release,
                    )
    for call in script.calls:
        if (
            not isinstance(call.func, ast.Attribute)
            or last(call) not in public_names.REMOVED_TRAINER
        ):
            continue
        full = script.full(call.func)
        if full.partition(".")[0] in LIGHTNING and full.endswith(f".Trainer.{last(call)}"):
            yield _gone(
                script,
                call,
                f"Trainer.{last(call)}",
                public_names.REMOVED_TRAINER[last(call)],
                "Lightning 2",
            )
        if kinds(script, call.func.value, call) == {"trainer"} and not handles_missing(
            script, last(call), call
        ):
            yield _gone(
                script,
                call,
                f"{dotted(call.func)}()",
                public_names.REMOVED_TRAINER[last(call)],
                "Lightning 2",
            )


def _old_hooks(script: Script) -> Iterator[Finding]:
    for node in script.classes.values():
        bases = [script.full(base) for base in node.bases]
        is_lightning = any(
            b.partition(".")[0] in LIGHTNING and b.endswith((".LightningModule", ".Callback"))
            for b in bases
        )
        for part in node.body if is_lightning else ():
            if isinstance(part, Function) and part.name in public_names.REMOVED_HOOKS:
                called = any(last(c) == part.name and receiver(c) == "self" for c in script.calls)
                if not called:
                    yield _gone(
                        script,
                        part,
                        f"the hook {part.name}",
                        public_names.REMOVED_HOOKS[part.name],
                        "Lightning 2",
                    )


def _gone(script: Script, node: ast.AST, what: str, today: str, release: str) -> Finding:
    return script.finding(
        "deprecated-name",
        node,
        f"{what} was removed in {release}",
        why="later releases refuse it or never call it",
        fix=f"use {today}",
    )


def _old_functions(script: Script) -> Iterator[Finding]:
    if not script.calls_of("backward") and not any(
        _is_main_guard(node) for node in script.tree.body
    ):
        return
    reported: set[str] = set()
    for call in [
        *script.calls,
        *(d for fs in script.functions.values() for f in fs for d in f.decorator_list),
    ]:
        full = script.full(call.func if isinstance(call, ast.Call) else call)
        if full in reported or (
            full not in public_names.OLD_TORCH and full not in public_names.GONE_FROM_TORCH
        ):
            continue
        if f"torch.amp.{full.rpartition('.')[2]}" in {script.full(c.func) for c in script.calls}:
            continue  # the script uses both, depending on the version of torch
        reported.add(full)
        today = public_names.OLD_TORCH.get(full) or public_names.GONE_FROM_TORCH[full]
        gone = full in public_names.GONE_FROM_TORCH
        yield script.finding(
            "deprecated-name",
            call,
            f"{full} {'was removed' if gone else 'is deprecated'}",
            why=(
                "current PyTorch does not have it"
                if gone
                else "it warns today and may go in a later release"
            ),
            fix=f"use {today}",
            severity="warning" if gone else "hint",
        )


def names_not_judged(script: Script) -> Iterator[Finding]:
    """Report names that may come from ``import *``: they are unknown, so their uses are not
    checked.
    """
    stars = [
        node
        for node in script.nodes
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]
    foreign = [
        node
        for node in stars
        if (node.module or "").partition(".")[0] not in sys.stdlib_module_names
    ]
    if not foreign:
        return
    bound = {*script.imports, *script.functions, *script.classes, *dir(builtins)}
    for node in script.nodes:
        bound |= parameters(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    called = [call.func.id for call in script.calls if isinstance(call.func, ast.Name)]
    unknown = list(dict.fromkeys(name for name in called if name not in bound))
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        yield script.finding(
            "input-unreadable",
            foreign[0],
            f"not judged: {', '.join(unknown[:3])}{more}, which may come from this import *",
            why="what a name stands for cannot be seen from this file",
            fix=(
                f"from {'.' * foreign[0].level}{foreign[0].module or ''} import"
                f" {', '.join(unknown[:3])}"
            ),
            severity="hint",
        )


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and dotted(node.test.left) == "__name__"
    )
