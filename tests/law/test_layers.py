"""An import points down: to a part below, inside a part to a package before; what a package exports is used."""

from __future__ import annotations

import ast
import sys

# A new module has to be given its place here before anybody can import it.
# The core has an order of its own, and so have the packages below: a module may import those before it.
CORE = ("version", "codes", "counters", "env", "errors", "deadlines", "text", "world", "rundir")
FLOORS = {
    **dict.fromkeys(CORE, 0),
    **dict.fromkeys(("machine", "signatures"), 1),
    **dict.fromkeys(("diagnose", "train"), 2),
    **dict.fromkeys(
        (
            *("launch", "callbacks", "data", "loggers", "logging", "trainer", "utilities"),
            *("plugins", "profilers", "strategies", "tuner"),
        ),
        3,
    ),  # but launch, doors of train
    **dict.fromkeys(("measure", "slurm", "why"), 4),
    "testing": 5,
    "cli": 6,
    "__main__": 7,
}
INSIDE = {
    "launch": (
        "plan",
        "probe",
        "in_rank",
        "channel",
        "monitor",
        "outcome",
        "preflight",
        "rendezvous",
        "run",
    ),
    "train": (
        "runtime",
        "logging",
        "model",
        "data",
        "checkpoint",
        "session",
        "preemptible",
        "trainer",
    ),
    "diagnose": ("variables", "catalogue", "doctor", "explain", "lint"),
    # The empty name is the package's own door.
    "diagnose.lint.job": (
        "sbatch_options",
        "launcher_options",
        "shell",
        "directives",
        "allocation",
        "launches",
        "case",
        "ranks",
        "checks",
        "judging",
        "",
    ),
    "diagnose.lint.python": (
        "script",
        "objects",
        "ranks",
        "numbers",
        "expectations",
        "checks",
        "judging",
        "",
    ),
}


def part(module: str, depth: int = 1) -> str:
    """``paceline.launch.plan.ports`` is in the part ``launch``, and at depth 2 in ``plan``."""
    return f"{module}..".split(".")[depth]


def imports(source, modules):
    """Every module that a file imports, also inside functions; of ours the file itself."""
    return imports_of(ast.walk(source.tree), modules)


def imports_of(nodes, modules):
    """``(line, module)`` of the imports among some nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"line {node.lineno} imports relatively: from {'.' * node.level}{node.module or ''}"
            )
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node.lineno, whole if whole in modules else str(node.module)


def inner_imports(sources):
    """``(place, importing module, imported module)`` of all imports inside the package."""
    modules = {source.module for source in sources}
    for source in sources:
        if source.module == "paceline":
            continue  # the public names, loaded when they are asked for
        for line, name in imports(source, modules):
            if name.split(".")[0] == "paceline":
                yield f"{source.path}:{line}", source.module, name


def in_order(package: str, importer: str, imported: str) -> bool:
    """Whether an import inside a package goes to the same part of it or to one before."""
    door = f"paceline.{package}"
    if not all(f"{module}.".startswith(f"{door}.") for module in (importer, imported)):
        return True
    depth = door.count(".") + 1
    inner, inner_below = part(importer, depth), part(imported, depth)
    order = INSIDE[package]
    return inner == inner_below or order.index(inner_below) < order.index(inner)


def allowed(importer: str, imported: str) -> bool:
    above, below = part(importer), part(imported)
    if above == below:
        return all(in_order(package, importer, imported) for package in INSIDE)
    if FLOORS[above] == FLOORS[below] == 0:
        return CORE.index(below) < CORE.index(above)
    return FLOORS[below] < FLOORS[above]


def test_every_module_has_its_place(sources):
    assert {part(source.module) for source in sources} - {""} == set(FLOORS)
    for package, order in INSIDE.items():
        door = f"paceline.{package}"
        inside = [s.module for s in sources if s.module.startswith(f"{door}.")]
        parts = {part(module, door.count(".") + 1) for module in inside}
        assert parts == set(order) - {""}


def test_imports_go_down(sources):
    assert [
        f"{place} imports {imported}"
        for place, importer, imported in inner_imports(sources)
        if part(imported) and not allowed(importer, imported)
    ] == []


def test_the_core_needs_the_standard_library_only(sources):
    modules = {source.module for source in sources}
    assert [
        f"{source.path}:{line} imports {name}"
        for source in sources
        if part(source.module) in CORE
        for line, name in imports(source, modules)
        if name.split(".")[0] not in sys.stdlib_module_names | {"tomli"}  # is tomllib before 3.11
        and part(name) not in CORE
    ] == []


def test_inside_a_package_the_file_is_imported_and_not_the_door(sources):
    assert [
        f"{place} imports {imported}"
        for place, importer, imported in inner_imports(sources)
        if imported != "paceline" and importer.startswith(f"{imported}.")
    ] == []


def exports(source):
    """The names in ``__all__`` of a package's door."""
    for node in source.tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        ):
            yield from (element.value for element in node.value.elts)


def test_what_a_package_exports_is_used_outside_it(sources):
    modules = {source.module for source in sources}
    doors = {
        source.module: set(exports(source))
        for source in sources
        if source.path.endswith("/__init__.py")
    }
    for source in sources:
        names = dict(imported_names(source.tree, modules))
        for door, unused in doors.items():
            if not source.module.startswith(f"{door}.") and source.module != door:
                unused -= names.get(door, set())
    assert {door: sorted(unused) for door, unused in doors.items() if unused} == {}


def imported_names(tree, modules):
    """``(module, names)`` that a file takes from modules: imported by name, or as attributes of the module."""
    names = {}
    objects = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.setdefault(node.module, set()).update(alias.name for alias in node.names)
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules:
                    objects[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in objects
        ):
            names.setdefault(objects[node.value.id], set()).add(node.attr)
    return names.items()
