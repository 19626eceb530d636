"""Where ``src`` uses ``torch.cuda``, and where it waits for a device; the lists of both in the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "gpu-readiness.md"
# They look for these names in texts and scripts of others.
READERS = ("diagnose/lint/", "signatures/")
WAITS = {
    "synchronize",
    "_synchronize",
    "wait_stream",
    "wait_event",
    "record_stream",
    "record_event",
}
OF_EVENTS = {"record", "query"}
TAKE_A_DEVICE = (
    "to",
    "device",
    "autocast",
    "GradScaler",
    "Stream",
    "Event",
    "Generator",
    "get_device_module",
)
OTHER_EVENTS = ("threading", "multiprocessing", "asyncio")
ONLY_A_GPU = "only a GPU"
WAITS_HEADING = "Where it waits for the device"
CUDA_HEADING = "What is still torch.cuda"


@dataclass(frozen=True)
class Use:
    """A use in a file of ``src/paceline``."""

    path: str
    function: str  # the innermost one; empty outside of functions
    text: str  # without arguments
    node: ast.expr | ast.stmt  # with its arguments, if it is called

    @property
    def place(self) -> tuple[str, str, str]:
        return self.path, self.function, self.text


def cuda_uses(path: str, tree: ast.Module) -> list[Use]:
    """Return where a file names ``torch.cuda`` or the device type ``cuda``."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    nodes = ((function, node) for function, node in walk(tree) if id(node) not in inner)
    return [Use(path, function, text, node) for function, node in nodes if (text := cuda_in(node))]


def cuda_in(node: ast.AST) -> str:
    """Return how a node itself uses ``torch.cuda``; empty if it does not."""
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        return text if re.fullmatch(r"torch\.cuda(?:\.\w+)*", text) else ""
    if isinstance(node, ast.Import):
        found = any(alias.name.startswith("torch.cuda") for alias in node.names)
        return ast.unparse(node) if found else ""
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        found = any(name.startswith("torch.cuda") for name in names)
        return ast.unparse(node) if found else ""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        return ast.unparse(node) if any(map(is_cuda, flat(operands))) else ""
    if isinstance(node, ast.Subscript):
        return ast.unparse(node) if is_text(node.slice, "torch.cuda") else ""
    if isinstance(node, ast.keyword):
        return (
            ast.unparse(node)
            if node.arg in ("device", "device_type") and is_cuda(node.value)
            else ""
        )
    return cuda_in_call(node) if isinstance(node, ast.Call) else ""


def cuda_in_call(call: ast.Call) -> str:
    """Return how a call names the device type: ``x.to("cuda")``, ``x.cuda()``, ``getattr(torch, "cuda")``."""
    name = ast.unparse(call.func).rpartition(".")[2]
    is_method = name == "cuda" and isinstance(call.func, ast.Attribute)
    is_moved = name in TAKE_A_DEVICE and any(map(is_cuda, call.args))
    is_looked_up = any(is_text(each, "torch.cuda") for each in call.args)
    is_attribute = name in ("getattr", "hasattr") and is_text(call.args[1], "cuda")
    found = is_method or is_moved or (is_looked_up and not is_pattern(call)) or is_attribute
    return ast.unparse(call) if found else ""


def is_pattern(call: ast.Call) -> bool:
    return ast.unparse(call.func).startswith("re.")


def is_text(node: ast.expr, start: str) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).startswith(start)


def is_cuda(node: ast.expr) -> bool:
    """Return whether an expression is ``"cuda"`` or an f-string such as ``f"cuda:{index}"``."""
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and is_text(node.values[0], "cuda:")
    return isinstance(node, ast.Constant) and bool(re.fullmatch(r"cuda(:\d+)?", str(node.value)))


def flat(nodes: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Yield expressions, and the elements of displays of them."""
    for node in nodes:
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield from flat(node.elts)
        else:
            yield node


def waits(path: str, tree: ast.Module) -> list[Use]:
    """Return where a file waits for a device or makes, records or asks an event of torch, called or not.

    What records or asks is looked for only in files that make an event or a stream: elsewhere these are words of others.
    """
    has_events = any(makes(node, ("Event", "Stream")) for node in ast.walk(tree))
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for function, node in walk(tree):
        imports = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch")
        if imports and any(alias.name in WAITS | {"Event"} for alias in node.names):
            found.append(Use(path, function, ast.unparse(node), node))
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node.attr in WAITS or makes(node, ("Event",)) or (has_events and node.attr in OF_EVENTS):
            found.append(Use(path, function, ast.unparse(node), calls.get(id(node), node)))
    return found


def makes(node: ast.AST, names: Sequence[str]) -> bool:
    is_one = isinstance(node, ast.Attribute) and node.attr in names
    return is_one and ast.unparse(node.value) not in OTHER_EVENTS


def walk(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield all nodes, each with the name of the innermost function around it."""
    for child in ast.iter_child_nodes(node):
        yield function, child
        inner = (
            child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        )
        yield from walk(child, inner)


def of_source(root: Path, finder) -> list[Use]:
    """Return what a finder finds in all files of a package but those that read texts of others."""
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if not place.startswith(READERS):
            found += finder(place, ast.parse(path.read_text(encoding="utf-8")))
    return found


def listed(heading: str) -> dict[tuple[str, str, str], str]:
    """Return the rows of a table of the page: place and use, and the text of the last column."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| `?([^`|]*?)`? \| (`.*`) \| (.*) \|$", text, re.M)
    return {
        (path, function, use): last
        for path, function, uses, last in rows
        for use in re.findall(r"`([^`]+)`", uses)
    }
