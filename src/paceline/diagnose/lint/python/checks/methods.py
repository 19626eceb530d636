"""Check calls of methods that the object's class does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.diagnose.lint.python.checks import public_names
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
    "fabric": ("Fabric", public_names.FABRIC),
    "trainer": ("Lightning's Trainer", public_names.TRAINER),
    "accelerator": ("Accelerator", public_names.ACCELERATOR),
    "session": ("paceline.Session", public_names.SESSION),
    "paceline-trainer": ("paceline.Trainer", public_names.PACELINE_TRAINER),
}


_REMOVED = {
    "trainer": public_names.REMOVED_TRAINER,
    "accelerator": public_names.REMOVED_ACCELERATOR,
}


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
            if f"{owner}.{method}" in script.values or handles_missing(script, method, call):
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
        if method not in public_names.PRETRAINED_ONLY or not isinstance(call.func, ast.Attribute):
            continue
        title = _module_of(script, call, plain)
        if not title or handles_missing(script, method, call):
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


def handles_missing(script: Script, method: str, call: ast.Call) -> bool:
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
