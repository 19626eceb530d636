"""Check methods that a class does not have, and names that libraries deprecated or removed."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

from paceline.diagnose.lint.python import surfaces
from paceline.diagnose.lint.python.objects import LIGHTNING, kinds, made_by, makes
from paceline.diagnose.lint.python.ranks import runs_alone
from paceline.diagnose.lint.python.script import (
    Assigned,
    Function,
    Script,
    inside,
    parameters,
    receiver,
)
from paceline.errors import Finding, closest
from paceline.text.syntax import dotted, last

_HAS = {
    "fabric": ("Fabric", surfaces.FABRIC),
    "trainer": ("Lightning's Trainer", surfaces.TRAINER),
    "accelerator": ("Accelerator", surfaces.ACCELERATOR),
    "session": ("paceline.Session", surfaces.SESSION),
    "paceline-trainer": ("paceline.Trainer", surfaces.PACELINE_TRAINER),
}
_REMOVED = {"trainer": surfaces.REMOVED_TRAINER, "accelerator": surfaces.REMOVED_ACCELERATOR}


def method_does_not_exist(script: Script) -> Iterator[Finding]:
    """Find calls of methods that the object's class does not have: AttributeError on every rank.

    Only objects of a certain class are checked, and not those to which the file assigns such an
    attribute.
    """
    yield from _of_frameworks(script)
    yield from _of_modules(script)


def _of_frameworks(script: Script) -> Iterator[Finding]:
    for kind, (title, methods) in _HAS.items():
        constructors = makes(script, kind)
        names = {name for call in constructors for name in _only_names(script, call)}
        for call in script.calls if names else ():
            owner = receiver(call)
            if owner not in names or kinds(script, call.func.value, call) != {kind}:  # type: ignore[attr-defined]
                continue
            method = last(call)
            if method in methods or method in _REMOVED.get(kind, {}) or method.startswith("_"):
                continue
            if f"{owner}.{method}" in script.values or _is_guarded(script, method, call):
                continue
            near = closest(method, methods)
            yield script.finding(
                "method-does-not-exist",
                call,
                f"{title} has no method {method}",
                why="the call ends with an AttributeError on every rank",
                fix=f"{owner}.{near}(...)" if near else f"see the methods of {title}",
                severity="error",
            )


def _only_names(script: Script, constructor: ast.Call) -> Iterator[str]:
    """Yield the name of this object, if the file assigns nothing else to it."""
    parent = script.parents.get(constructor)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return
    name = dotted(parent.targets[0])
    values = script.values.get(name, [])
    kind = made_by(script, constructor)
    if name and all(
        isinstance(v.value, ast.Call) and made_by(script, v.value) == kind for v in values
    ):
        yield name


def _is_guarded(script: Script, method: str, call: ast.Call) -> bool:
    """Return whether the script handles a missing method: ``hasattr(trainer, "tune")``, or a
    try.
    """
    if any(isinstance(n, ast.Constant) and n.value == method for n in script.nodes):
        return True
    return any(
        (isinstance(parent, ast.Try) and parent.handlers)
        or (
            isinstance(parent, ast.With)
            and any("aises" in last(i.context_expr) for i in parent.items)
        )
        for parent in script.up(call)
    )


def _of_modules(script: Script) -> Iterator[Finding]:
    """Find methods of Hugging Face's models called on a LightningModule or nn.Module that lacks
    them.
    """
    plain = {
        name: title
        for name, node in script.classes.items()
        if (title := _plain_module(script, node))
    }
    for call in script.calls:
        method = last(call)
        if method not in surfaces.PRETRAINED_ONLY or not isinstance(call.func, ast.Attribute):
            continue
        title = _module_of(script, call, plain)
        if not title or _is_guarded(script, method, call):
            continue
        inner = (
            "the Hugging Face model inside, for example self.model"
            if receiver(call) == "self"
            else "the model inside"
        )
        yield script.finding(
            "method-does-not-exist",
            call,
            f"{title} has no method {method}: Hugging Face's models have it",
            why="the call ends with an AttributeError on every rank",
            fix=f"call {method}() of {inner}",
            severity="error",
        )


def _plain_module(script: Script, node: ast.ClassDef) -> str:
    """Return a title for a class whose only base is LightningModule or nn.Module, if it forwards no
    attributes.
    """
    if len(node.bases) != 1:
        return ""
    full = script.full(node.bases[0])
    root, name = full.partition(".")[0], full.rpartition(".")[2]
    is_lightning = root in LIGHTNING and name == "LightningModule"
    if not is_lightning and full not in ("torch.nn.Module", "torch.nn.modules.Module"):
        return ""
    members = {part.name for part in ast.walk(node) if isinstance(part, Function)}
    if members & {"__getattr__", "__getattribute__"}:
        return ""
    return "a LightningModule" if name == "LightningModule" else "an nn.Module"


def _module_of(script: Script, call: ast.Call, plain: dict[str, str]) -> str:
    assert isinstance(call.func, ast.Attribute)
    owner, method = receiver(call), call.func.attr
    if owner == "self":
        node = script.owner(call)
        if node is None or node.name not in plain or script.classes.get(node.name) is not node:
            return ""
        if _has(node, method):
            return ""
        has_subclass = any(
            last(base) == node.name for c in script.classes.values() for base in c.bases
        )
        return "" if has_subclass else plain[node.name]
    values = script.assigned(owner, call) if owner and "." not in owner else []
    if len(values) != 1 or values[0].place >= 0 or owner in parameters(script.scope(call)):
        return _wrapped(script, call, values)
    value = values[0].value
    node = (
        script.classes.get(last(value))
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
        else None
    )
    if node is not None and node.name in plain and not _has(node, method):
        return plain[node.name]
    return _wrapped(script, call, values)


def _wrapped(script: Script, call: ast.Call, values: list[Assigned]) -> str:
    """Return the title of a DDP wrapper, which does not forward methods of the model inside."""
    if not isinstance(call.func, ast.Attribute) or kinds(script, call.func.value, call) != {"ddp"}:
        return ""
    before = [v for v in values if getattr(v.at, "lineno", 0) < call.lineno]
    if not before or script.scope(before[-1].at) is not script.scope(call):
        return ""
    if runs_alone(script, call) or not _always_before(script, before[-1].at, call):
        return ""
    return "DistributedDataParallel" if made_by_ddp(script, before[-1].value) else ""


def _always_before(script: Script, statement: ast.AST, call: ast.Call) -> bool:
    """Return whether a call always follows a statement: every block around the statement is around
    the call.
    """
    around = set(script.up(call))
    return all(
        parent in around
        for parent in script.up(statement)
        if isinstance(parent, ast.If | ast.Try | ast.For)
    )


def made_by_ddp(script: Script, node: ast.expr) -> bool:
    """Return whether an expression is a call of DDP itself."""
    return isinstance(node, ast.Call) and made_by(script, node) == "ddp"


def _has(node: ast.ClassDef, method: str) -> bool:
    """Return whether a class defines a method or sets an attribute of the name."""
    for part in inside(node, functions=True):
        if isinstance(part, Function) and part.name == method:
            return True
        if (
            isinstance(part, ast.Attribute)
            and part.attr == method
            and isinstance(part.ctx, ast.Store)
        ):
            return True
        if isinstance(part, ast.Name) and part.id == method and isinstance(part.ctx, ast.Store):
            return True
    return False


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
    tables = (("trainer", "Trainer", surfaces.REMOVED_TRAINER_ARGUMENTS, "Lightning 2"),
              ("accelerator", "Accelerator", surfaces.REMOVED_ACCELERATOR_ARGUMENTS, "Accelerate 1"))  # fmt: skip
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
        if not isinstance(call.func, ast.Attribute) or last(call) not in surfaces.REMOVED_TRAINER:
            continue
        full = script.full(call.func)
        if full.partition(".")[0] in LIGHTNING and full.endswith(f".Trainer.{last(call)}"):
            yield _gone(
                script,
                call,
                f"Trainer.{last(call)}",
                surfaces.REMOVED_TRAINER[last(call)],
                "Lightning 2",
            )
        if kinds(script, call.func.value, call) == {"trainer"} and not _is_guarded(
            script, last(call), call
        ):
            yield _gone(
                script,
                call,
                f"{dotted(call.func)}()",
                surfaces.REMOVED_TRAINER[last(call)],
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
            if isinstance(part, Function) and part.name in surfaces.REMOVED_HOOKS:
                called = any(last(c) == part.name and receiver(c) == "self" for c in script.calls)
                if not called:
                    yield _gone(
                        script,
                        part,
                        f"the hook {part.name}",
                        surfaces.REMOVED_HOOKS[part.name],
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
            full not in surfaces.OLD_TORCH and full not in surfaces.GONE_FROM_TORCH
        ):
            continue
        if f"torch.amp.{full.rpartition('.')[2]}" in {script.full(c.func) for c in script.calls}:
            continue  # the script uses both, depending on the version of torch
        reported.add(full)
        today = surfaces.OLD_TORCH.get(full) or surfaces.GONE_FROM_TORCH[full]
        gone = full in surfaces.GONE_FROM_TORCH
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
