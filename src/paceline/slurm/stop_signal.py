"""Find the signal at which a script saves a checkpoint, from its text. Pure.

Frameworks differ: a Session saves at SIGTERM, Lightning's auto-requeue at SIGUSR1, Lightning's
Trainer alone at none. A module that the script imports may save too, so only the known behaviour of
a framework is reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
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
class SignalSaving:
    """How a script reacts to a stop signal."""

    signal: str = "SIGTERM"  # the signal to send: ``"SIGTERM"``, ``"SIGUSR1"`` or ``"SIGUSR2"``
    finding: Finding | None = None  # why nothing will be saved, None if that is unknown


def look(text: str, *, script: str) -> SignalSaving:
    """Return how a script reacts to a stop signal."""
    tree = tree_of(text)
    if tree is None:
        return SignalSaving()
    nodes = list(ast.walk(tree))
    names = {_name(node) for node in nodes} | set(_imported(nodes))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    signal = _signal_of_auto_requeue(calls)
    if not signal and "SIGTERM" not in names:  # a script that names it may save at it
        signal = next(filter(None, map(_handled, calls)), "")
    if signal:
        return SignalSaving(signal)
    trainer = next((call for call in calls if _name(call.func) in _TRAINERS), None)
    if trainer is None or _may_save(nodes, names):
        return SignalSaving()
    return SignalSaving(finding=_not_saved(f"{script}:{trainer.lineno}"))


def _signal_of_auto_requeue(calls: Iterable[ast.Call]) -> str:
    """Return the signal at which Lightning's plug-in for Slurm saves; empty if it is not used."""
    environment = next((call for call in calls if _name(call.func) == "SLURMEnvironment"), None)
    if environment is None or not _is_on(environment):
        return ""
    signal = next(map(_name, _values(environment, "requeue_signal", 1)), "")
    # SIGUSR1 is Lightning's default, and the likely value of an expression that cannot be read.
    return signal if signal in (*_NOTICES, "SIGTERM") else "SIGUSR1"


def _may_save(nodes: list[ast.AST], names: Set[str]) -> bool:
    """Return whether a script may save when it is stopped: only Lightning's default is known."""
    modules = {module.partition(".")[0] for module in _modules(nodes)}
    is_lightning = bool(modules & set(_LIGHTNING))
    handles_stops = bool(names & _SAVES or modules & {"paceline", "signal"})
    return handles_stops or not is_lightning


def _name(node: ast.AST) -> str:
    """Return the last part of a name or the name of a function; empty for other nodes."""
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
    # Only a literal False: a value that the script computes may be True in the job.
    values = _values(environment, "auto_requeue", 0)
    return not any(isinstance(value, ast.Constant) and value.value is False for value in values)


def _values(call: ast.Call, name: str, place: int) -> list[ast.expr]:
    """Return the value of an argument that is passed by name or at a place; empty without it."""
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return by_name + call.args[place : place + 1]


def _handled(call: ast.Call) -> str:
    """Return SIGUSR1 or SIGUSR2 if a call installs a handler for it, else an empty text."""
    if _name(call.func) not in ("signal", "add_signal_handler") or len(call.args) < 2:
        return ""
    number, handler = _name(call.args[0]), _name(call.args[1])
    is_handled = number in _NOTICES and handler not in ("SIG_IGN", "SIG_DFL")
    return number if is_handled else ""


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
