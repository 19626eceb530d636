"""Resolve where a number of a script comes from: a literal, an argument, an environment variable,
the machine.
"""

from __future__ import annotations

import ast

from paceline.diagnose.lint.program import ALL_CPUS, ALL_GPUS, ARGUMENT, CONSTANT, VARIABLE, Number
from paceline.diagnose.lint.python.script import Script, keyword
from paceline.text.syntax import constant, dotted, last

_DEPTH = 4
_COUNTS = {
    "torch.cuda.device_count": ALL_GPUS,
    "os.cpu_count": ALL_CPUS,
    "multiprocessing.cpu_count": ALL_CPUS,
    "torch.multiprocessing.cpu_count": ALL_CPUS,
    "psutil.cpu_count": ALL_CPUS,
}
# Packages that fill arguments from files, which the command line does not show.
_FROM_FILES = frozenset(
    {"configargparse", "jsonargparse", "hydra", "omegaconf", "absl", "simple_parsing"}
)


def number(script: Script, node: ast.expr | None, depth: int = 0) -> Number | None:
    """Return the source of a number, or None if it is not certain."""
    if node is None or depth > _DEPTH:
        return None
    value = _plain(constant(node))
    if value is not None:
        return Number(CONSTANT, value)
    if isinstance(node, ast.Call):
        return _of_call(script, node, depth)
    if isinstance(node, ast.Subscript):
        return _of_variable(script, node)
    values = script.assigned(dotted(node), node)
    if len(values) == 1 and values[0].place < 0 and values[0].value is not node:
        return number(script, values[0].value, depth + 1)
    if values or not isinstance(node, ast.Attribute):
        return None
    return _of_argument(script, node)


def _of_variable(script: Script, node: ast.Subscript) -> Number | None:
    """Return the source of ``os.environ["NAME"]``, None for another subscript."""
    name = constant(node.slice)
    if isinstance(name, str) and script.full(node.value) == "os.environ":
        return Number(VARIABLE, None, (name,))
    return None


def _plain(value: object) -> int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _of_call(script: Script, call: ast.Call, depth: int) -> Number | None:
    full = script.full(call.func)
    if full in _COUNTS and not call.args and not call.keywords:
        return Number(_COUNTS[full])
    if isinstance(call.func, ast.Name) and call.func.id == "int" and len(call.args) == 1:
        return number(script, call.args[0], depth + 1)
    if full in ("os.getenv", "os.environ.get") and call.args:
        name = constant(call.args[0])
        default = _plain(constant(call.args[1])) if len(call.args) > 1 else None
        return Number(VARIABLE, default, (name,)) if isinstance(name, str) else None
    return None


def _of_argument(script: Script, node: ast.Attribute) -> Number | None:
    """Return the source of ``args.devices`` if exactly one option of argparse sets it."""
    if script.roots & _FROM_FILES or not _is_parsed(script, dotted(node.value)):
        return None
    # Both change the value without an option that the command line shows.
    if script.calls_of("set_defaults") or script.calls_of("setattr"):
        return None
    options = _options(script, node.attr)
    # Two parsers may define the option with different defaults.
    if len(options) != 1:
        return None
    forms = tuple(form for form in map(constant, options[0].args) if isinstance(form, str))
    return Number(ARGUMENT, _plain(constant(keyword(options[0], "default"))), forms)


def _is_parsed(script: Script, name: str) -> bool:
    """Return whether a name holds the result of argparse."""
    values = script.values.get(name, [])
    parses = [last(value.value) in ("parse_args", "parse_known_args") for value in values]
    return bool(parses) and all(parses)


def _options(script: Script, attribute: str) -> list[ast.Call]:
    """Return the calls of ``add_argument`` that set an attribute."""
    options = []
    for call in script.calls_of("add_argument"):
        forms = [form for form in map(constant, call.args) if isinstance(form, str)]
        dest = constant(keyword(call, "dest"))
        if attribute == (dest if isinstance(dest, str) else _default_dest(forms)):
            options.append(call)
    return options


def _default_dest(forms: list[str]) -> str:
    """Return the attribute that argparse derives from the forms of an option."""
    names = [form for form in forms if form.startswith("--")] or forms
    return names[0].lstrip("-").replace("-", "_") if names else ""
