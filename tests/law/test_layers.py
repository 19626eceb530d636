"""An import points to a lower floor; siblings never meet; outside a room only its door is used."""

from __future__ import annotations

import ast
import sys

# A new module has to be given its floor here before anybody can import it.
FLOORS = {
    "codes": 0,
    "wording": 0,
    "errors": 0,
    "env": 0,
    "terminal": 0,
    "syntax": 0,
    "deadlines": 0,
    "cpus": 0,
    "world": 0,
    "rundir": 0,
    "identity": 0,
    "lease": 0,
    "pulse": 0,
    "nodeaddr": 0,
    "python_fork": 0,
    "torch_requirements": 1,
    "torch_private": 1,
    "runtime": 1,
    "command_help": 1,
    "catalogue": 1,
    "variables": 1,
    "data": 2,
    "checkpoint": 2,
    "launcher": 2,
    "explain": 2,
    "doctor": 2,
    "lint": 2,
    "logging": 2,
    "blocks": 1,
    "comm_hooks": 1,
    "strategy": 2,
    "precision": 2,
    "accumulation": 2,
    "activations": 2,
    "portable": 2,
    "stopping": 2,
    "once": 2,
    "scaling": 2,
    "run": 3,
    "slurm": 3,
    "translate": 3,
    "inline": 3,
    "session": 3,
    "trainer": 3,
    "why": 3,
    "command_errors": 3,
    "cli": 4,
    "__main__": 4,
    "entry": 4,
}
# The ground floor has an order of its own: a module may import those before it.
LADDER = [
    *("codes", "wording", "syntax", "pulse", "nodeaddr", "python_fork", "env"),
    *("errors", "deadlines", "terminal", "world", "rundir", "cpus", "identity", "lease"),
]
SAME_FLOOR = {
    ("inline", "run"),  # the launch of a function is a run with another beginning
    ("__main__", "entry"),
    ("entry", "cli"),
    ("command_errors", "slurm"),  # which options it takes
    ("run", "slurm"),  # a launcher in a step asks Slurm about a node that is silent
    ("translate", "slurm"),  # lines to paste are quoted in one way
    ("why", "slurm"),  # asks for the nodes of a job, and starts a step on them
    ("trainer", "session"),  # a loop on Session's public members
}
LAUNCHER_USERS = {"launcher", "run", "inline", "slurm", "translate", "why", "command_errors", "cli"}


def room(module: str) -> str:
    """``paceline.launcher.host`` is in the room ``launcher``."""
    return module.split(".")[1] if "." in module else ""


def imports(source, modules):
    """Every module that a file imports, also inside functions; of ours the file itself."""
    return imports_of(ast.walk(source.tree), modules)


def imports_of(nodes, modules):
    """``(line, module)`` of the imports among some nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno} imports relatively: from {'.' * node.level}{node.module or ''}"
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


def allowed(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in SAME_FLOOR:
        return True
    above, below = FLOORS[importer], FLOORS[imported]
    if above == below == 0:
        return LADDER.index(imported) < LADDER.index(importer)
    return below < above


def test_every_module_has_a_floor(sources):
    assert {room(source.module) for source in sources} - {""} == set(FLOORS)
    assert {name for name, floor in FLOORS.items() if floor == 0} == set(LADDER)


def test_imports_point_to_a_lower_floor(sources):
    assert [
        f"{place} imports {imported}"
        for place, importer, imported in inner_imports(sources)
        if room(imported) and not allowed(room(importer), room(imported))
    ] == []


def test_the_ground_floor_needs_the_standard_library_only(sources):
    modules = {source.module for source in sources}
    assert [
        f"{source.path}:{line} imports {name}"
        for source in sources
        if FLOORS.get(room(source.module)) == 0
        for line, name in imports(source, modules)
        if name.split(".")[0] not in sys.stdlib_module_names and FLOORS.get(room(name)) != 0
    ] == []


def test_outside_data_only_its_door_is_used(sources):
    assert [
        f"{place} imports {imported}"
        for place, importer, imported in inner_imports(sources)
        if room(imported) == "data" and room(importer) != "data" and imported != "paceline.data"
    ] == []


def test_inside_a_package_the_file_is_imported_and_not_the_door(sources):
    assert [
        f"{place} imports {imported}"
        for place, importer, imported in inner_imports(sources)
        if imported.count(".") == 1 and importer.startswith(f"{imported}.")
    ] == []


def test_only_those_who_conduct_a_run_know_the_launcher(sources):
    assert [
        f"{place} imports {imported}"
        for place, importer, imported in inner_imports(sources)
        if room(imported) == "launcher" and room(importer) not in LAUNCHER_USERS
    ] == []


def test_the_launcher_has_no_door(sources):
    (door,) = [source for source in sources if source.module == "paceline.launcher"]
    assert ast.get_docstring(door.tree)
    assert len(door.tree.body) == 1, "importing any of its files would run this too"
