"""Check names that a library does not have, or no longer has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.diagnose.lint.python.checks import public_names
from paceline.diagnose.lint.python.objects import LIGHTNING, kind_of, makes
from paceline.diagnose.lint.python.script import Function, Script, parameters, receiver
from paceline.errors import Finding, closest
from paceline.signatures.lightning_names import tables
from paceline.text.syntax import last

_HAS = {
    "fabric": ("Fabric", public_names.FABRIC),
    "trainer": ("Lightning's Trainer", public_names.TRAINER),
    "accelerator": ("Accelerator", public_names.ACCELERATOR),
    "session": ("paceline.Session", public_names.SESSION),
    "paceline-trainer": ("paceline.Trainer", public_names.PACELINE_TRAINER),
}


def method_does_not_exist(script: Script) -> Iterator[Finding]:
    """Find calls of methods that the object's class does not have: AttributeError on every rank.

    The object is a name to which the file only assigns calls of the class, or ``self`` in a class
    whose only base is LightningModule or nn.Module.
    """
    for call in script.calls:
        owner, method = receiver(call), last(call)
        if not owner or method.startswith("_") or _is_handled(script, call):
            continue
        title, methods = _HAS.get(kind_of(script.made(owner)), ("", frozenset()))
        # A removed method of Trainer is left to `deprecated-name`, which says what replaces it.
        is_removed = "Lightning" in title and method in public_names.REMOVED_TRAINER
        if title and method not in methods and not is_removed:
            near = closest(method, methods)
            fix = f"{owner}.{near}(...)" if near else f"see the methods of {title}"
            yield _missing(script, call, f"{title} has no method {method}", fix)
        own = ""
        if method in public_names.PRETRAINED_ONLY:
            node = script.owner(call) if owner == "self" else _made_class(script, call)
            own = _title_without(script, node, method)
        if own:
            yield _missing(
                script,
                call,
                f"{own} has no method {method}: Hugging Face's models have it",
                f"call {method}() of the Hugging Face model inside, for example self.model",
            )


def _missing(script: Script, call: ast.Call, what: str, fix: str) -> Finding:
    return script.finding(
        "method-does-not-exist",
        call,
        what,
        why="the call ends with an AttributeError on every rank",
        fix=fix,
        severity="error",
    )


def _is_handled(script: Script, call: ast.Call) -> bool:
    """Return whether the script handles a missing method: it asks, assigns, or catches."""
    method = last(call)
    # hasattr and getattr take the name as a text, often in another function.
    if any(isinstance(node, ast.Constant) and node.value == method for node in script.nodes):
        return True
    if f"{receiver(call)}.{method}" in script.values:
        return True
    for parent in script.up(call):
        if isinstance(parent, ast.Try) and parent.handlers:
            return True
        items = parent.items if isinstance(parent, ast.With) else []
        if any("aises" in last(item.context_expr) for item in items):
            return True
    return False


def _made_class(script: Script, call: ast.Call) -> ast.ClassDef | None:
    """Return the class of the file that the only value of the method's object calls, or None."""
    name = receiver(call)
    values = script.values.get(name, [])
    if len(values) != 1 or name in parameters(script.scopes[call]):
        return None
    value = values[0].value
    is_plain = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    return script.classes.get(last(value)) if is_plain else None


def _title_without(script: Script, node: ast.ClassDef | None, method: str) -> str:
    """Return a title of a LightningModule or nn.Module that lacks a method, or empty."""
    # A second base, such as PushToHubMixin of transformers, may have the method.
    if node is None or len(node.bases) != 1:
        return ""
    package, _, base = script.full(node.bases[0]).partition(".")
    is_lightning = package in LIGHTNING and base.endswith("LightningModule")
    if not is_lightning and (package, base) != ("torch", "nn.Module"):
        return ""
    members = {part.name for part in ast.walk(node) if isinstance(part, Function)}
    # Many wrappers forward what they lack to the model inside.
    if members & {method, "__getattr__", "__getattribute__"}:
        return ""
    # An object may be of a subclass that has the method.
    if any(last(base) == node.name for other in script.classes.values() for base in other.bases):
        return ""
    return "a LightningModule" if is_lightning else "an nn.Module"


def deprecated_name(script: Script) -> Iterator[Finding]:
    """Find names that Lightning, Accelerate or torch has removed."""
    # A module with relative imports belongs to a package, often a library for several releases.
    if any(full.startswith(".") for full in script.imports.values()):
        return
    yield from _removed_arguments(script)
    yield from _removed_methods(script)
    yield from _removed_hooks(script)
    for call in script.calls:
        full = script.full(call)
        if full in public_names.GONE_FROM_TORCH:
            yield _gone(script, call, full, public_names.GONE_FROM_TORCH[full], "PyTorch 2")


def _removed_arguments(script: Script) -> Iterator[Finding]:
    of_trainer = {name: what.instead for name, what in tables()["removed arguments"].items()}
    of_accelerator = public_names.REMOVED_ACCELERATOR_ARGUMENTS
    for kind, title, removed, release in (
        ("trainer", "Trainer", of_trainer, "Lightning 2"),
        ("accelerator", "Accelerator", of_accelerator, "Accelerate 1"),
    ):
        for keyword in [each for call in makes(script, kind) for each in call.keywords]:
            if keyword.arg in removed:
                what = f"{title}({keyword.arg}=...)"
                yield _gone(script, keyword.value, what, removed[keyword.arg], release)


def _removed_methods(script: Script) -> Iterator[Finding]:
    for call in script.calls:
        method, owner = last(call), receiver(call)
        if not owner or method not in public_names.REMOVED_TRAINER:
            continue
        full = script.full(call)
        is_of_class = full.partition(".")[0] in LIGHTNING and full.endswith(f".Trainer.{method}")
        is_of_object = kind_of(script.made(owner)) == "trainer" and not _is_handled(script, call)
        if is_of_class or is_of_object:
            today = public_names.REMOVED_TRAINER[method]
            yield _gone(script, call, f"{owner}.{method}()", today, "Lightning 2")


def _removed_hooks(script: Script) -> Iterator[Finding]:
    removed = tables()["removed hooks"] | tables()["removed methods"]
    for node in script.classes.values():
        bases = [script.full(base) for base in node.bases]
        of_lightning = [base for base in bases if base.partition(".")[0] in LIGHTNING]
        if not any(base.endswith((".LightningModule", ".Callback")) for base in of_lightning):
            continue
        for part in node.body:
            if not isinstance(part, Function) or part.name not in removed:
                continue
            # A method that the class calls itself is its own, whatever Lightning once called so.
            if not any(receiver(call) == "self" for call in script.calls_of(part.name)):
                today = removed[part.name].instead
                yield _gone(script, part, f"the hook {part.name}", today, "Lightning 2")


def _gone(script: Script, node: ast.AST, what: str, today: str, release: str) -> Finding:
    return script.finding(
        "deprecated-name",
        node,
        f"{what} was removed in {release}",
        why="later releases refuse it or never call it",
        fix=f"use {today}",
    )
