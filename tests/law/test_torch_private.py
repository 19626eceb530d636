"""The source uses no private name of torch that ``torch_private`` does not list.

What a value is cannot be told from the text, so private names are judged by where they stand: on ``self`` or ``cls``,
they are ours, unless no file of ours defines them or torch's base class does; on anything else they are torch's,
unless they are known to be another's.
"""

import ast
import re
import sys
from importlib import import_module

from paceline.machine.torch_private import OF_RESULTS, OPTIONAL, PRIVATE

# Of named tuples, and of other libraries: datasets, torchmetrics, multiprocessing; a line of /proc.
OTHERS = {
    "_replace",
    "_fields",
    "_indices",
    "_data",
    "_distributed",
    "_update_count",
    "_computed",
    "_forward_cache",
}
# Of the wrappers of Lightning Fabric.
OTHERS |= {"_num_iter_calls", "_optimizer", "_original_module", "_strategy"}
OTHERS |= {"_popen", "_bootstrap", "_shutdown", "_ctxt_switches", "_amp"}
# Of asyncio: what a task or a gathering waits for.
OTHERS |= {"_fut_waiter", "_children"}
# Of NumPy's RandomState, for whose state get_state takes 25 µs.
OTHERS |= {"_bit_generator"}
# Of pytest.
OTHERS |= {"_must_rewrite", "_marked_for_rewrite_cache"}
# Of accelerate and argparse; the end of names of its groups.
OTHERS |= {"_validate_launch_command", "_actions", "_config"}
# Of our own objects, which another of our modules looks at; ends of the names of hooks.
OTHERS |= {"_collections_abc"}
OURS = {
    "_check",
    "_activity",
    "_paceline_loop",
    "_paceline_has_forked",
    "_paceline_maker",
    "_paceline_record",
    "_hparams",
}
OURS |= {"_hparams_initial", "_logs_hparams", "_PACELINE_COMPLETE"}
OURS |= {"_dataloader", "_dataloaders", "_batches", "_epoch_start", "_epoch_end"}
OURS |= {"_batch_start", "_batch_end", "_model_eval", "_model_train"}
# Reads texts that any version of torch has printed, and scripts that are written for any version of it.
READERS = ("diagnose/", "signatures/", "machine/torch_private.py")

TABLES = (PRIVATE, OF_RESULTS, OPTIONAL)
PATHS = {path for table in TABLES for path in table} | {
    f"{path}.{name}" for table in TABLES for path, names in table.items() for name in names
}
NAMES = {part for path in PATHS for part in path.split(".") if part.startswith("_")}


def is_private(name):
    return bool(re.fullmatch(r"_[a-zA-Z]\w*", name)) and not name.endswith("__")


def defined(tree):
    """Names that a file defines: functions, classes, variables, attributes of its objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and owner(node) in ("self", "cls")
        ):
            yield node.attr


def owner(node):
    return ast.unparse(node.value)


def imported(tree):
    """``(local name, full name)`` of all imports of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom):
            yield from (
                (alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names
            )


def paths_of_torch(tree):
    """Full names of torch that are imported or stand in a string, as modules or files."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, full) for _, full in imported(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.removesuffix(".py").replace("/", ".")
            if re.fullmatch(r"torch(\.\w+)+", text):
                yield node.lineno, text


def strings(tree):
    """Strings that are a private name, as ``getattr`` takes one."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and is_private(node.value)
        ):
            yield node.lineno, node.value


def foreign_attributes(tree, own):
    """Private attributes of what is neither ``self`` nor a class of the file nor a module of Python's."""
    modules = dict(imported(tree))
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        value = owner(node)
        full = modules.get(value, "")
        if value in classes or full.partition(".")[0] in (*sys.stdlib_module_names, "paceline"):
            continue
        if value in ("self", "cls", "super()") and node.attr in own:
            continue
        yield node.lineno, node.attr


def inherited(source):
    """Private names that a class of ours has in common with its base in torch."""
    names = dict(imported(source.tree))
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            full = names.get(ast.unparse(base).partition("[")[0], "")
            if full.startswith("torch."):
                module, _, name = full.rpartition(".")
                kind = getattr(import_module(module), name)
                yield from (
                    (each.lineno, each.name)
                    for each in node.body
                    if isinstance(each, ast.FunctionDef)
                    and is_private(each.name)
                    and hasattr(kind, each.name)
                )


def judged(sources):
    return [source for source in sources if not source.path.startswith(READERS)]


def test_every_private_name_of_torch_is_listed(sources):
    own = {name for source in sources for name in defined(source.tree)}
    found = []
    for source in judged(sources):
        uses = [*foreign_attributes(source.tree, own), *inherited(source)]
        uses += [(line, name) for line, name in strings(source.tree) if name not in own]
        found += [
            f"{source.path}:{line} {name}"
            for line, name in uses
            if name not in NAMES and name not in OTHERS | OURS
        ]
    assert found == []


def test_every_private_module_of_torch_is_listed(sources):
    assert [
        f"{source.path}:{line} {path}"
        for source in judged(sources)
        for line, path in paths_of_torch(source.tree)
        if path.startswith("torch.") and any(map(is_private, path.split("."))) and path not in PATHS
    ] == []


def test_every_listed_name_is_used(sources):
    text = "\n".join(source.text for source in judged(sources))
    last = {path.rpartition(".")[2] for path in PATHS}
    assert (
        sorted(name for name in last if is_private(name) and not re.search(rf"\b{name}\b", text))
        == []
    )
