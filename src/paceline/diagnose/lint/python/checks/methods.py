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
    expects_error,
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


def method_does_not_exist(script: Script) -> Iterator[Finding]:
    """Find calls of methods that the object's class does not have: AttributeError on every rank.

    Only objects of a certain class are checked, and not those to which the file assigns such an
    attribute.
    """
    yield from _of_frameworks(script)
    yield from _of_modules(script)
    yield from _of_wrappers(script)


def _of_frameworks(script: Script) -> Iterator[Finding]:
    for kind, (title, methods) in _HAS.items():
        constructors = makes(script, kind)
        names = {name for call in constructors for name in _only_names(script, call)}
        for call in script.calls if names else ():
            owner, method = receiver(call), last(call)
            # A trainer that comes from elsewhere may be of a subclass.
            if owner not in names or not _lacks(script, call, kind):
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


def _of_wrappers(script: Script) -> Iterator[Finding]:
    """Find methods of a model called on DDP's wrapper, which has the model as ``module``."""
    for call in script.calls:
        owner, method = receiver(call), last(call)
        if not owner or method in public_names.MODULE or method.startswith("_"):
            continue
        if not isinstance(call.func, ast.Attribute) or not _is_wrapped(script, call):
            continue
        inner = f"{owner}.module.{method}"  # the file knows where the method is
        named = {dotted(node) for node in script.nodes if isinstance(node, ast.Attribute)}
        is_set = any(name.endswith(f".{method}") for name in script.values)
        if inner in named or is_set or handles_missing(script, method, call):
            continue
        yield script.finding(
            "method-does-not-exist",
            call,
            f"{owner} is the DDP wrapper here, which has no method {method}",
            why="the call ends with an AttributeError; a method beside forward also leaves DDP out",
            fix=(
                f"call {method} from the model's forward; {owner}.module.{method}(...) only where"
                " nothing is trained"
            ),
            severity="error",
        )


def _is_wrapped(script: Script, call: ast.Call) -> bool:
    """Return whether the last assignment to the object before a call wraps it in torch's DDP."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if not script.is_plain(owner, call) or "DDP" in script.classes:
        return False
    values = [value for value in script.assigned(dotted(owner), call) if _precedes(value, call)]
    values = [value for value in values if script.scope(value.at) is script.scope(call)]
    if not values:
        return False
    wrap = max(values, key=lambda value: getattr(value.at, "lineno", 0)).value
    if not isinstance(wrap, ast.Call) or made_by(script, wrap) != "ddp":
        return False
    around, above = set(script.up(wrap)), set(script.up(call))
    conditions = (ast.If, ast.IfExp, ast.Try)
    # Under a condition of its own the call may be for the other case.
    if any(isinstance(node, conditions) and node not in around for node in above):
        return False
    if not any(isinstance(node, conditions) and node not in above for node in around):
        return True
    # What is trained with is trained with in the runs that wrap it, too.
    loops = [node for node in above if isinstance(node, ast.For | ast.While)]
    return any(loop in script.up(other) for loop in loops for other in script.calls_of("backward"))


def _precedes(value: Assigned, call: ast.Call) -> bool:
    return getattr(value.at, "lineno", 0) < call.lineno


def _lacks(script: Script, call: ast.Call, kind: str) -> bool:
    """Return whether the object of a method call is of a kind that certainly lacks the method."""
    method = last(call)
    # A removed method of Trainer is left to `deprecated-name`, which says what replaces it.
    is_removed = kind == "trainer" and method in public_names.REMOVED_TRAINER
    if method in _HAS[kind][1] or is_removed or method.startswith("_"):
        return False
    if not isinstance(call.func, ast.Attribute) or kinds(script, call.func.value, call) != {kind}:
        return False
    # Scripts hang functions on a trainer, which makes the method exist.
    if f"{receiver(call)}.{method}" in script.values:
        return False
    return not handles_missing(script, method, call)


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
    """Find methods of Hugging Face's models called on a module that lacks them."""
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
    """Return a title for a class whose only base is LightningModule or nn.Module, or empty."""
    # A second base, such as PushToHubMixin of transformers, may have the method.
    if len(node.bases) != 1:
        return ""
    full = script.full(node.bases[0])
    root, name = full.partition(".")[0], full.rpartition(".")[2]
    is_lightning = root in LIGHTNING and name == "LightningModule"
    if not is_lightning and full not in ("torch.nn.Module", "torch.nn.modules.Module"):
        return ""
    members = {part.name for part in ast.walk(node) if isinstance(part, Function)}
    # Many wrappers forward what they lack to the model inside.
    if members & {"__getattr__", "__getattribute__"}:
        return ""
    return "a LightningModule" if name == "LightningModule" else "an nn.Module"


def _module_of(script: Script, call: ast.Call, plain: dict[str, str]) -> str:
    """Return the title of the object's class if it lacks the method that is called, or empty."""
    assert isinstance(call.func, ast.Attribute)
    owner, method = receiver(call), call.func.attr
    if owner == "self":
        return _own_class(script, call, plain)
    values = script.assigned(owner, call) if owner and "." not in owner else []
    is_certain = len(values) == 1 and values[0].place < 0
    if is_certain and owner not in parameters(script.scope(call)):
        node = _created_class(script, values[0].value)
        if node is not None and node.name in plain and not _has(node, method):
            return plain[node.name]
    return _wrapped(script, call, values)


def _own_class(script: Script, call: ast.Call, plain: dict[str, str]) -> str:
    """Return the title of the class around ``self.method()`` if the class lacks the method."""
    node = script.owner(call)
    if node is None or node.name not in plain or script.classes.get(node.name) is not node:
        return ""
    if _has(node, last(call)):
        return ""
    # `self` may be an object of a subclass that has the method.
    bases = [base for definition in script.classes.values() for base in definition.bases]
    has_subclass = any(last(base) == node.name for base in bases)
    return "" if has_subclass else plain[node.name]


def _created_class(script: Script, value: ast.expr) -> ast.ClassDef | None:
    """Return the class of the file that an expression creates an object of, or None."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return script.classes.get(last(value))
    return None


def _wrapped(script: Script, call: ast.Call, values: list[Assigned]) -> str:
    """Return the title of a DDP wrapper, which does not forward methods of the model inside."""
    if not isinstance(call.func, ast.Attribute) or kinds(script, call.func.value, call) != {"ddp"}:
        return ""
    # DDP is an nn.Module without a __getattr__ of its own, so `model.generate` of a wrapped model
    # is missing; the name must hold the wrapper at this line.
    before = [v for v in values if getattr(v.at, "lineno", 0) < call.lineno]
    if not before or script.scope(before[-1].at) is not script.scope(call):
        return ""
    if runs_alone(script, call) or not _always_before(script, before[-1].at, call):
        return ""
    value = before[-1].value
    is_ddp = isinstance(value, ast.Call) and made_by(script, value) == "ddp"
    return "DistributedDataParallel" if is_ddp else ""


def _always_before(script: Script, statement: ast.AST, call: ast.Call) -> bool:
    """Return whether every block around a statement is around the call that follows, too."""
    around = set(script.up(call))
    return all(
        parent in around
        for parent in script.up(statement)
        if isinstance(parent, ast.If | ast.Try | ast.For)
    )


def _has(node: ast.ClassDef, method: str) -> bool:
    """Return whether a class defines a method or sets an attribute of the name."""
    return any(_defines(part, method) for part in inside(node, functions=True))


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, Function):
        return node.name == name
    if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Store):
        return False
    return last(node) == name


def handles_missing(script: Script, method: str, call: ast.Call) -> bool:
    """Return whether the script handles a missing method, by its name or by a ``try``."""
    # hasattr and getattr take the name as a text, often in another function.
    if any(isinstance(node, ast.Constant) and node.value == method for node in script.nodes):
        return True
    return any(
        bool(parent.handlers) if isinstance(parent, ast.Try) else expects_error(parent)
        for parent in script.up(call)
    )
