"""Find the DataLoaders and samplers of a script, how each is sharded, and which loops iterate over
it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python.objects import argument, kinds, made_by
from paceline.diagnose.lint.python.ranks import mentions_rank, runs_alone
from paceline.diagnose.lint.python.script import (
    Script,
    arguments_of,
    has_unknown_arguments,
    inside,
    words_of,
)
from paceline.text.syntax import constant, dotted, last, words

_WRAPS = words_of("enumerate tqdm trange zip iter track islice cycle prefetcher list")
_SHARDS_ITSELF = re.compile(
    r"iterable|stream|webdataset|^wds$|WebLoader|shard|split_by|partition|chunk|distributed", re.I
)
TRAINING = re.compile(r"train|trn(_|$)", re.I)
EVALUATING = re.compile(
    r"val(id)?(_|$)|valid|test|eval|dev(_|$)|dev_?(set|loader|data)|^val|_val", re.I
)
_MULTIPROCESSING = ("torch.multiprocessing.", "multiprocessing.")
_DEPTH = 16


# Methods of tensors that keep all rows, or make one value of them.
_OF_TENSORS = words_of("to cuda cpu float double long mean std min max manual_seed unsqueeze view")


def data_loaders(script: Script) -> list[ast.Call]:
    """Return the calls that create a torch DataLoader."""
    return [call for call in script.calls if made_by(script, call) == "loader"]


def samplers(script: Script) -> list[ast.Call]:
    """Return the calls that create torch's DistributedSampler."""
    return [call for call in script.calls if made_by(script, call) == "sharding-sampler"]


def targets(script: Script, node: ast.AST) -> list[str]:
    """Return the dotted names to which an expression is assigned, also through a conditional."""
    child = node
    for parent in script.up(node):
        if isinstance(parent, ast.Assign):
            return [name for target in parent.targets if (name := dotted(target))]
        if isinstance(parent, ast.AnnAssign):
            return [dotted(parent.target)]
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            child = parent
            continue
        return []
    return []


def sampler_of(script: Script, loader: ast.Call) -> ast.expr | None:
    """Return the sampler or batch sampler of a DataLoader, also from ``**arguments``."""
    sampler = (
        argument(loader, "sampler", 3)
        or argument(loader, "batch_sampler", 4)
        or _in_dict(script, loader)
    )
    return None if sampler is None or constant(sampler) is None else sampler


def _in_dict(script: Script, loader: ast.Call) -> ast.expr | None:
    """Return the sampler of a dict that is passed as ``**arguments``."""
    names = [dotted(k.value) for k in loader.keywords if k.arg is None]
    for value in [v.value for name in names if name for v in script.assigned(name, loader)]:
        if isinstance(value, ast.Dict):
            samplers = [
                v
                for k, v in zip(value.keys, value.values, strict=True)
                if constant(k) in ("sampler", "batch_sampler")
            ]
        elif isinstance(value, ast.Call) and last(value) == "dict":
            samplers = [k.value for k in value.keywords if k.arg in ("sampler", "batch_sampler")]
        else:
            continue
        if samplers:
            return samplers[0]
    return None


def is_sharded(script: Script, loader: ast.Call) -> bool:
    """Return whether a DataLoader certainly uses torch's DistributedSampler."""
    return sharding_sampler(script, loader) is not None


def sharding_sampler(script: Script, loader: ast.Call) -> ast.Call | None:
    """Return the DistributedSampler of a DataLoader, None if the file does not show one."""
    sampler = sampler_of(script, loader)
    return sampler_call(script, sampler) if sampler is not None else None


def sampler_call(script: Script, node: ast.expr, depth: int = 0) -> ast.Call | None:
    """Return the DistributedSampler behind a name, a conditional, a BatchSampler or a function."""
    if depth > _DEPTH:
        return None
    if isinstance(node, ast.IfExp):
        return sampler_call(script, node.body, depth + 1) or sampler_call(
            script, node.orelse, depth + 1
        )
    if isinstance(node, ast.Call):
        if made_by(script, node) == "sharding-sampler":
            return node
        if last(node) == "BatchSampler" and (inner := argument(node, "sampler", 0)) is not None:
            return sampler_call(script, inner, depth + 1)
        returned = [
            part.value
            for function in script.functions.get(last(node), ())
            for part in inside(function)
            if isinstance(part, ast.Return) and part.value is not None
        ]
        found = (sampler_call(script, value, depth + 1) for value in returned)
        return next((call for call in found if call is not None), None)
    for value in script.assigned(dotted(node), node):
        if value.place >= 0 or value.value is node:
            continue
        sampler = sampler_call(script, value.value, depth + 1)
        if sampler is not None:
            return sampler
    return None


def may_shard_itself(script: Script, loader: ast.Call) -> bool:
    """Return whether the dataset may be sharded in a way that the file does not show."""
    dataset = argument(loader, "dataset", 0)
    if dataset is None or has_unknown_arguments(loader):
        return True
    if any(mentions_rank(script, k.value) for k in loader.keywords):
        return True
    # An iterable dataset refuses shuffle=True, so with it the dataset is map-style.
    return _may_shard(
        script, dataset, loader, 0, map_style=constant(argument(loader, "shuffle", 2)) is True
    )


def _may_shard(
    script: Script, node: ast.expr, at: ast.AST, depth: int, *, map_style: bool = False
) -> bool:
    if depth > _DEPTH or mentions_rank(script, node):
        return True
    if any(_SHARDS_ITSELF.search(word) for word in words(node)):
        return True
    name = dotted(node)
    if name:
        values = script.assigned(name, at)
        if not values or _is_filled(script, name):
            return True  # a parameter or an import: unknown
        parts = [
            value.value.elts[value.place]
            if isinstance(value.value, ast.Tuple) and value.place >= 0
            else value.value
            for value in values
        ]
        return any(
            _may_shard(script, part, value.at, depth + 1, map_style=map_style)
            for part, value in zip(parts, values, strict=True)
        )
    if isinstance(node, ast.Call):
        return _call_may_shard(script, node, at, depth, map_style)
    if isinstance(node, ast.IfExp):
        return any(
            _may_shard(script, part, at, depth + 1, map_style=map_style)
            for part in (node.body, node.orelse)
        )
    # Rows of a tensor, and what is computed from it.
    if isinstance(node, ast.Subscript | ast.BinOp | ast.Slice):
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return any(_may_shard(script, part, at, depth + 1) for part in parts)
    # What is unknown counts as sharded, so that only certain cases are found.
    return not isinstance(node, ast.List | ast.ListComp | ast.Constant)


def _is_filled(script: Script, name: str) -> bool:
    """Return whether elements of a name are assigned, or another rank sends them."""
    filled = script.cached("filled", lambda: {dotted(node.value) for node in _stores(script)})
    senders = [*script.calls_of("scatter"), *script.calls_of("recv"), *script.calls_of("copy_")]
    return name in filled or bool(senders)


def _stores(script: Script) -> list[ast.Subscript]:
    subscripts = [node for node in script.nodes if isinstance(node, ast.Subscript)]
    return [node for node in subscripts if isinstance(node.ctx, ast.Store)]


def _call_may_shard(
    script: Script, call: ast.Call, at: ast.AST, depth: int, map_style: bool
) -> bool:
    name = last(call)
    if name in script.classes:
        return _class_may_shard(script, script.classes[name])
    if name in script.functions:
        parts = [part for function in script.functions[name] for part in function.body]
        return any(mentions_rank(script, part) or _uses_sharding(part) for part in parts)
    full = script.full(call.func)
    if isinstance(call.func, ast.Attribute) and not full and name in _OF_TENSORS:
        return _may_shard(script, call.func.value, at, depth + 1)
    if name in ("len", "int") and not full:
        return any(_may_shard(script, arg, at, depth + 1) for arg in call.args)
    # Datasets of these libraries read everything unless they are told otherwise in the call.
    is_plain = full.startswith(("torchvision.", "torch.", "datasets.", "sklearn."))
    if not is_plain and not (map_style and full):
        return True
    # Random numbers are others on each rank if a seed is.
    seeds = [each for each in script.calls if "seed" in last(each)]
    if name.startswith("rand") and any(mentions_rank(script, each) for each in seeds):
        return True
    inputs = [
        arg
        for arg in call.args
        if not isinstance(arg, ast.Name) or script.assigned(arg.id, at)
        if isinstance(arg, ast.Name | ast.Subscript | ast.BinOp)
    ]
    return any(_may_shard(script, arg, at, depth + 1) for arg in inputs)


def _class_may_shard(script: Script, definition: ast.ClassDef) -> bool:
    if any(_SHARDS_ITSELF.search(last(base)) for base in definition.bases):
        return True
    return any(mentions_rank(script, part) for part in definition.body)


def _uses_sharding(node: ast.AST) -> bool:
    return any(
        _SHARDS_ITSELF.search(last(part))
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def loops_over(script: Script, names: list[str]) -> Iterator[ast.For]:
    """Yield the loops over loaders of these names, whatever object they belong to."""
    short_names = {name.rpartition(".")[2] for name in names}
    for node in script.nodes:
        loader = iterated(node) if isinstance(node, ast.For) else ""
        if isinstance(node, ast.For) and loader and loader.rpartition(".")[2] in short_names:
            yield node


def iterated(loop: ast.For) -> str:
    """Return the dotted name that a loop iterates over, through wrappers such as ``tqdm``."""
    node: ast.AST = loop.iter
    while (
        isinstance(node, ast.Call)
        and node.args
        and (last(node) in _WRAPS or last(node).startswith("log_every"))
    ):
        node = node.args[0]
    # `loader.dataset` is the whole data set on every rank, and `loader.sampler` gives indices.
    if isinstance(node, ast.Attribute) and node.attr in ("dataset", "sampler"):
        return ""
    return dotted(node)


def learns(script: Script, node: ast.AST) -> bool:
    """Return whether a block calls ``backward``."""
    return any(isinstance(n, ast.Call) and last(n) == "backward" for n in inside(node))


def is_for_training(script: Script, loader: ast.Call) -> bool | None:
    """Return whether a DataLoader is for training, by its name and its loops; None if unknown."""
    names = targets(script, loader)
    text = " ".join(names) or getattr(script.function(loader), "name", "")
    # Both words, as in train_val_loader, mean data that is trained on.
    if EVALUATING.search(text) and not TRAINING.search(text):
        return False
    if TRAINING.search(text):
        return True
    if names and any(learns(script, loop) for loop in loops_over(script, names)):
        return True
    return None


def epoch_loops(script: Script) -> list[ast.For]:
    """Return the loops over more than one epoch."""
    return [node for node in script.nodes if isinstance(node, ast.For) and _counts_epochs(node)]


def _counts_epochs(loop: ast.For) -> bool:
    text = " ".join([*words(loop.target), *words(loop.iter)]).lower()
    if "epoch" not in text or not isinstance(loop.iter, ast.Call):
        return False
    counts = last(loop.iter) in ("range", "trange", "tqdm", "count", "epochs")
    return counts and not _is_once(loop.iter)


def _is_once(call: ast.Call) -> bool:
    # In a single epoch no order repeats, and no worker starts again.
    return len(call.args) == 1 and constant(call.args[0]) == 1


def is_used_each_epoch(script: Script, loader: ast.Call) -> bool:
    """Return whether a loader is created before a loop over epochs and used in each."""
    names = {name.rpartition(".")[2] for name in targets(script, loader)}
    if not names or passed_to_framework(script, loader, list(names)):
        return False
    for loop in epoch_loops(script):
        nodes = list(inside(loop))
        # Persistent workers of a loader that is made in the loop would end with it.
        if loader in nodes or script.function(loop) is not script.function(loader):
            continue
        if any(_runs_over(script, node, names) for node in nodes):
            return True
    return False


def _runs_over(script: Script, node: ast.AST, names: set[str]) -> bool:
    """Return whether a statement iterates over a loader, or passes it to a function of the file."""
    if isinstance(node, ast.For):
        return iterated(node).rpartition(".")[2] in names
    if not isinstance(node, ast.Call) or last(node) not in script.functions:
        return False
    return any(last(part) in names for part in arguments_of(node))


def passed_to_framework(script: Script, node: ast.AST, names: list[str]) -> bool:
    """Return whether a loader is passed to ``prepare``, ``fit`` or a similar call."""
    short = {name.rpartition(".")[2] for name in names}
    for call in script.calls:
        if last(call) not in _ADOPT and not kinds(script, call) & _ADOPTED:
            continue
        parts = [part for argument in arguments_of(call) for part in ast.walk(argument)]
        named = [part for part in parts if isinstance(part, ast.Name | ast.Attribute)]
        if node in parts or any(last(part) in short for part in named):
            return True
    return False


# A call that gives one of these shards the loaders that are passed to it.
_ADOPTED = frozenset({"prepared", "fabric-loader", "session-loader", "engine"})
_ADOPT = words_of(
    """
    prepare prepare_data_loader setup_dataloaders process_dataloader fit initialize
    deepspeed_io loader MpDeviceLoader ParallelLoader make_private make_private_with_epsilon
    auto_dataloader StatefulDataLoader
    """
)


def runs_in_parallel(script: Script, node: ast.AST) -> bool:
    """Return whether a node runs in the ranks, not in one process or the parent of ``mp.spawn``."""
    return not runs_alone(script, node) and not _is_of_the_starter(script, node)


def _is_of_the_starter(script: Script, node: ast.AST) -> bool:
    workers = started(script)
    if not workers:
        return False
    function = script.function(node)
    return function is None or function.name not in _closure(script, workers)


def started(script: Script) -> frozenset[str]:
    """Return the functions that the script starts in processes of their own."""
    workers: frozenset[str] = script.cached("started", lambda: frozenset(_find_started(script)))
    return workers


def _find_started(script: Script) -> Iterator[str]:
    for call in script.calls:
        full, name = script.full(call.func), last(call)
        if full.startswith("torch.multiprocessing.") and name in ("spawn", "start_processes"):
            yield from _targets_of(script, call, argument(call, "fn", 0))
        elif full.startswith(_MULTIPROCESSING) and name == "Process":
            yield from _targets_of(script, call, argument(call, "target", 1))


def _targets_of(script: Script, call: ast.Call, target: ast.expr | None) -> set[str]:
    """Return the function that is started; for a parameter, the functions that callers pass."""
    name = last(target)
    if name in script.functions:
        return {name}
    function = script.function(call)
    calls = script.calls_of(function.name) if function is not None else []
    functions = {last(a) for c in calls for a in arguments_of(c) if last(a) in script.functions}
    return functions or {name}


def _closure(script: Script, names: frozenset[str]) -> frozenset[str]:
    def find() -> frozenset[str]:
        reachable, todo = set(names), list(names)
        while todo:
            for function in script.functions.get(todo.pop(), []):
                for node in inside(function, functions=True):
                    # A mention is enough: functions are passed on as callbacks.
                    for name in _named(script, node):
                        if name not in reachable:
                            reachable.add(name)
                            todo.append(name)
        return frozenset(reachable)

    closure: frozenset[str] = script.cached(("closure", names), find)
    return closure


def _named(script: Script, node: ast.AST) -> Iterator[str]:
    """Yield the functions that a node may call: a function of that name, the methods of a class."""
    if isinstance(node, ast.Name | ast.Attribute):
        name = last(node)
        if name in script.functions:
            yield name
        if name in script.classes:
            yield from (
                part.name for part in script.classes[name].body if isinstance(part, ast.FunctionDef)
            )
