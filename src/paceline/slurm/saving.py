"""Find out at which signal a training script saves a checkpoint, from its text. Pure.

Frameworks differ: a Session saves at SIGTERM, Lightning's auto-requeue at SIGUSR1, Lightning's
Trainer alone at none.
A module that the script imports may save too, so only the known behaviour of a framework is
reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import Finding
from paceline.text.syntax import tree_of

_NOTICES = ("SIGUSR1", "SIGUSR2")
_LIGHTNING = ("lightning", "pytorch_lightning")
_TRAINERS = ("Trainer", "LightningCLI")
# Names in a script which show that it saves when it is stopped, or that its author considered it.
_SAVES = {
    "SIGTERM",
    "OnExceptionCheckpoint",
    "SIGTERMException",
    "on_exception",
    "SLURMEnvironment",
}


@dataclass(frozen=True)
class Saving:
    """How a script reacts to a stop signal.

    Attributes:
        signal: The signal to send: ``"SIGTERM"``, ``"SIGUSR1"`` or ``"SIGUSR2"``.
        finding: Why nothing will be saved, None if that is unknown.
    """

    signal: str = "SIGTERM"
    finding: Finding | None = None


def look(text: str, *, script: str) -> Saving:
    """Return how a script reacts to a stop signal.

    Args:
        text: Text of the script.
        script: Name of the script, for messages.
    """
    tree = tree_of(text)
    if tree is None:
        return Saving()
    nodes = list(ast.walk(tree))
    names = {_name(node) for node in nodes} | set(_imported(nodes))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    requeues = next((call for call in calls if _name(call.func) == "SLURMEnvironment"), None)
    if requeues is not None and _is_on(requeues):
        return Saving(_requeue_signal(requeues))
    if "SIGTERM" not in names:
        handled = next((number for call in calls if (number := _handled(call))), "")
        if handled:
            return Saving(handled)
    trainer = next((call for call in calls if _name(call.func) in _TRAINERS), None)
    modules = {module.partition(".")[0] for module in _modules(nodes)}
    silent = names & _SAVES or modules & {"paceline", "signal"} or not modules & set(_LIGHTNING)
    if trainer is None or silent:
        return Saving()
    return Saving(finding=_not_saved(f"{script}:{trainer.lineno}"))


def _name(node: ast.AST) -> str:
    """Return the last part of a dotted name or the name of a function, and an empty text for other
    nodes.
    """
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return node.name if isinstance(node, ast.FunctionDef) else ""


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _modules(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def _is_on(environment: ast.Call) -> bool:
    values = [
        keyword.value for keyword in environment.keywords if keyword.arg == "auto_requeue"
    ] + environment.args[:1]
    return not any(isinstance(value, ast.Constant) and value.value is False for value in values)


def _requeue_signal(environment: ast.Call) -> str:
    values = [
        keyword.value for keyword in environment.keywords if keyword.arg == "requeue_signal"
    ] + environment.args[1:2]
    signal_name = next((_name(value) for value in values), "")
    return signal_name if signal_name in (*_NOTICES, "SIGTERM") else "SIGUSR1"


def _handled(call: ast.Call) -> str:
    """Return SIGUSR1 or SIGUSR2 if a call of ``signal.signal`` installs a handler for it, else an
    empty text.
    """
    if _name(call.func) not in ("signal", "add_signal_handler") or len(call.args) < 2:
        return ""
    number = _name(call.args[0])
    return (
        number if number in _NOTICES and _name(call.args[1]) not in ("SIG_IGN", "SIG_DFL") else ""
    )


def _not_saved(where: str) -> Finding:
    return Finding(
        "not-saved-at-stop",
        "Lightning's Trainer saves nothing when Slurm stops this job: it will end with status 143,"
        " not queued again",
        where=where,
        why=(
            "its auto-requeue is for ranks that srun starts; here it gets SIGTERM, ends its epoch"
            " and exits"
        ),
        fix=(
            "callbacks=[OnExceptionCheckpoint(folder)], and sys.exit(75) at SIGTERMException; or"
            " --no-requeue"
        ),
        severity="warning",
    )
