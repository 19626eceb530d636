"""Check how checkpoints are saved: by one rank only, and without the keys of the DDP wrapper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import argument, kinds, makes
from paceline.diagnose.lint.python.ranks import in_rank_block, mentions_rank, rank_block, runs_alone
from paceline.diagnose.lint.python.script import (
    Script,
    has_unknown_arguments,
    inside,
    receiver,
    words_of,
)
from paceline.errors import Finding
from paceline.text.syntax import dotted, last, words

_NOT_A_FILE = re.compile(r"BytesIO|(^|_)(buf|buffer|bio|stream|memory)(_|$)|io$", re.I)
_WITHOUT_TENSORS = re.compile(r"sched|scaler", re.I)
_SAVES = ("save", "save_checkpoint", "save_model")
_DEPTH = 4
_PERHAPS = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.With, ast.Lambda)
_OF_PROCESS = words_of(
    "mkdtemp TemporaryDirectory getpid uuid1 uuid4 time time_ns now perf_counter"
)
# Calls that end without another rank.
_WAITS_FOR_NOBODY = (
    *("os.path.", "torch.save", "json.", "logg", "log.", "print", "open", "time.", "str"),
)


def save_on_every_rank(script: Script) -> Iterator[Finding]:
    """Find torch.save calls in which every rank writes the same file.

    Nothing is reported if the path contains the rank, if a rank condition is around the call or
    around all calls of its function, and if the file does not set up several ranks itself.
    """
    if not makes(script, "ddp", "fsdp", "engine") and "horovod" not in script.roots:
        return
    for call in script.calls:
        if script.full(call.func) != "torch.save" or not _runs_on_every_rank(script, call):
            continue
        path = argument(call, "f", 1)
        if path is None or _is_of_the_rank(script, path, call, 0):
            continue
        if not _saves_training(script, call):
            continue
        yield script.finding(
            "save-on-every-rank",
            call,
            "every rank writes this file",
            why="several processes write it at once, and what is left may be damaged",
            fix=(
                "if not dist.is_initialized() or dist.get_rank() == 0: ...  # around all that"
                " writes it"
            ),
        )


def folder_race(script: Script) -> Iterator[Finding]:
    """Find folders that all ranks make at once, and those that one rank makes and all write into.

    Nothing is reported if the path may differ between processes, under a condition or a context
    manager, or if anything between the two may wait.
    """
    trains = makes(script, "ddp", "fsdp", "engine") or script.calls_of("init_process_group")
    for call in [*script.calls_of("makedirs"), *script.calls_of("mkdir")]:
        if not script.full(call.func).startswith("os.") or not call.args:
            continue
        path = call.args[0]
        may_differ = _is_of_the_rank(script, path, call, 0) or _is_of_the_process(
            script, path, call
        )
        if may_differ or argument(call, "exist_ok", 2) is not None or has_unknown_arguments(call):
            continue
        block = rank_block(script, call)
        is_perhaps = any(isinstance(parent, _PERHAPS) for parent in script.up(call))
        if block is None and trains and not is_perhaps and _runs_on_every_rank(script, call):
            yield _made_by_all(script, call)
    for call in script.calls_of("makedirs"):
        block = rank_block(script, call)
        if block is not None and block.side == "one" and block.sure and call.args:
            yield from _made_by_one(script, call, call.args[0])


def _is_of_the_process(script: Script, path: ast.expr, call: ast.Call) -> bool:
    """Return whether a path has a part that is another one in each process."""
    parts = [part for value in script.candidates(path, call) for part in ast.walk(value)]
    return any(last(part) in _OF_PROCESS for part in parts if isinstance(part, ast.Call)) or any(
        last(part) in _OF_PROCESS
        for name in parts
        if isinstance(name, ast.Name)
        for value in script.assigned(name.id, call)
        for part in ast.walk(value.value)
        if isinstance(part, ast.Call)
    )


def _made_by_all(script: Script, call: ast.Call) -> Finding:
    return script.finding(
        "folder-race",
        call,
        "every rank makes this folder, and only the first one can",
        why="the others end with FileExistsError, whenever two of them come here at once",
        fix="os.makedirs(..., exist_ok=True)",
    )


def _made_by_one(script: Script, call: ast.Call, path: ast.expr) -> Iterator[Finding]:
    """Find a save by all ranks into a folder that one of them makes, without a wait between."""
    function, name = script.function(call), dotted(path)
    for save in script.calls if function is not None and name else ():
        if script.function(save) is not function or script.full(save.func) != "torch.save":
            continue
        if save.lineno < call.lineno or in_rank_block(script, save):
            continue
        if not _leads_to(script, save, name) or not _follows_at_once(script, call, save):
            continue
        yield script.finding(
            "folder-race",
            save,
            f"all ranks write into {name}, which one rank makes just before",
            why="a rank that comes first finds no folder",
            fix=f"dist.barrier() between them, or os.makedirs({name}, exist_ok=True) on every rank",
        )
        return


def _follows_at_once(script: Script, first: ast.Call, save: ast.Call) -> bool:
    """Return whether nothing between two calls may wait for other ranks, or make the folder."""
    between = range(first.end_lineno or first.lineno, save.lineno)
    calls = [call for call in script.calls if call.lineno in between and call is not first]
    if any(last(call) in ("makedirs", "mkdir", "isdir", "exists") for call in calls):
        return False
    full = [script.full(call.func) or dotted(call.func) for call in calls]
    return all(name.startswith(_WAITS_FOR_NOBODY) for name in full)


def _leads_to(script: Script, save: ast.Call, folder: str) -> bool:
    """Return whether the path of a save is in a folder of that name."""
    path = argument(save, "f", 1)
    values = script.candidates(path, save) if path is not None else []
    return any(dotted(part) == folder for value in values for part in ast.walk(value))


def map_location_missing(script: Script) -> Iterator[Finding]:
    """Find torch.load of a checkpoint that the same script saves, without map_location.

    Nothing is reported unless the path is that of a torch.save, the file names NCCL and wraps a
    model in DDP, and a model or an optimizer takes the values; nor if anything in the file is moved
    to the CPU, or each rank sees one GPU only.
    """
    saves = [call for call in script.calls if script.full(call.func) == "torch.save"]
    paths = {ast.unparse(path) for call in saves if (path := argument(call, "f", 1)) is not None}
    texts = {node.value for node in script.nodes if isinstance(node, ast.Constant)}
    if "nccl" not in texts or "CUDA_VISIBLE_DEVICES" in texts or not makes(script, "ddp"):
        return
    if script.calls_of("cpu"):
        return  # what is moved to the CPU before it is saved stays there
    for call in script.calls:
        if script.full(call.func) != "torch.load" or has_unknown_arguments(call):
            continue
        if argument(call, "map_location", 1) is not None or not _runs_on_every_rank(script, call):
            continue
        path = argument(call, "f", 0)
        if path is None or ast.unparse(path) not in paths or _is_of_the_rank(script, path, call, 0):
            continue
        if not _is_taken_over(script, call):
            continue
        yield script.finding(
            "map-location-missing",
            call,
            "every rank loads this checkpoint onto the GPU that it was saved from",
            why="that GPU holds a copy and a context for each rank, and may run out of memory",
            fix='torch.load(..., map_location="cpu")  # load_state_dict moves the values',
        )


def _is_taken_over(script: Script, load: ast.Call) -> bool:
    """Return whether what is loaded is given to a load_state_dict."""
    names = set(loaders.targets(script, load))
    for call in script.calls_of("load_state_dict"):
        if _WITHOUT_TENSORS.search(receiver(call)):
            continue
        parts = [part for argument in call.args for part in ast.walk(argument)]
        if load in parts or any(dotted(part) in names for part in parts):
            return True
    return False


def _runs_on_every_rank(script: Script, call: ast.Call) -> bool:
    """Return whether every rank makes a call, as far as the file shows."""
    if in_rank_block(script, call) or not loaders.runs_in_parallel(script, call):
        return False
    return not _is_uncalled(script, call) and not _is_tested(script, call)


def _is_of_the_rank(script: Script, node: ast.expr, at: ast.AST, depth: int) -> bool:
    """Return whether a path may differ between ranks, or is not a path."""
    # A path that cannot be followed to its end is believed to differ.
    if depth > _DEPTH:
        return True
    if mentions_rank(script, node) or any(_NOT_A_FILE.search(word) for word in words(node)):
        return True
    names = [dotted(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    values = [value for name in names for value in script.assigned(name, at)]
    return any(
        _is_of_the_rank(script, value.value, value.at, depth + 1)
        for value in values
        if value.value is not node
    )


def _is_uncalled(script: Script, node: ast.AST) -> bool:
    """Return whether the file never calls the function around a node."""
    function = script.function(node)
    while function is not None:
        # The main guard, of this file or another, and the class call these.
        if function.name in ("main", "__init__"):
            return False
        nodes = (part for part in script.nodes if isinstance(part, ast.Name | ast.Attribute))
        if all(last(part) != function.name for part in nodes):
            return True
        function = script.function(function)
    return False


def _is_tested(script: Script, node: ast.AST) -> bool:
    owner, function = script.owner(node), script.function(node)
    if owner is not None and "Test" in owner.name:
        return True
    return function is not None and function.name.startswith("test_")


def _saves_training(script: Script, call: ast.Call) -> bool:
    """Return whether a saved object comes from the training, such as a state_dict."""
    saved = argument(call, "obj", 0)
    if saved is None:
        return False
    parts = [part for value in script.candidates(saved, saved) for part in ast.walk(value)]
    if any(isinstance(part, ast.Call) and last(part) == "state_dict" for part in parts):
        return True
    return bool(re.search(r"state|ckpt|checkpoint|model|net", last(saved), re.I))


def save_wrapped_model(script: Script) -> Iterator[Finding]:
    """Find saved state_dicts of the DDP wrapper, whose keys all begin with ``module.``.

    The severity is a hint if the file also loads into the wrapper, which works as long as the model
    is always wrapped.
    """
    loads = any(_is_of_wrapper(script, call) for call in script.calls_of("load_state_dict"))
    for call in script.calls_of("state_dict"):
        if not isinstance(call.func, ast.Attribute) or not (name := dotted(call.func.value)):
            continue
        # Where another branch assigns the plain model, its keys may be right.
        if kinds(script, call.func.value, call) != {"ddp"} or not _is_saved(script, call):
            continue
        if _is_unwrapped_before(script, name, call) or _knows_the_module(script, name, call):
            continue
        if runs_alone(script, call):
            continue
        yield script.finding(
            "save-wrapped-model",
            call,
            f"{name} is the DDP wrapper here: all keys that are saved begin with module.",
            why="the plain model, or a run on one GPU, cannot load them as they are",
            fix=f"{name}.module.state_dict(), and load it into the plain model too",
            severity="hint" if loads else "warning",
        )


def _is_of_wrapper(script: Script, call: ast.Call) -> bool:
    """Return whether a call may be of a method of the DDP wrapper."""
    return isinstance(call.func, ast.Attribute) and "ddp" in kinds(script, call.func.value, call)


def _is_saved(script: Script, call: ast.Call) -> bool:
    for parent in script.up(call):
        if isinstance(parent, ast.Call):
            if last(parent) in _SAVES:
                return True
            # These two keep the keys; any other function may rename them.
            if last(parent) not in ("dict", "deepcopy"):
                return False
        if isinstance(parent, ast.Assign):
            names = {dotted(target) for target in parent.targets}
            nodes = inside(script.scope(parent))
            saves = [node for node in nodes if isinstance(node, ast.Call) and last(node) in _SAVES]
            return any(dotted(argument) in names for save in saves for argument in save.args)
        if isinstance(parent, ast.stmt):
            return False
    return False


def _knows_the_module(script: Script, name: str, call: ast.Call) -> bool:
    """Return whether the function around a call distinguishes wrapper and model."""
    return any(_distinguishes(node, name) for node in inside(script.scope(call)))


def _distinguishes(node: ast.AST, name: str) -> bool:
    """Return whether a node is ``name.module`` or ``hasattr(name, ...)``."""
    if isinstance(node, ast.Attribute):
        return node.attr == "module" and dotted(node.value) == name
    if not isinstance(node, ast.Call) or last(node) != "hasattr" or not node.args:
        return False
    return dotted(node.args[0]) == name


def _is_unwrapped_before(script: Script, name: str, call: ast.Call) -> bool:
    """Return whether the name is also assigned the model itself (``.module``)."""
    # torch's function that takes `module.` off the keys, at saving or loading.
    if script.calls_of("consume_prefix_in_state_dict_if_present"):
        return True
    values = [assigned.value for assigned in script.assigned(name, call)]
    attributes = [value.attr for value in values if isinstance(value, ast.Attribute)]
    # torch.compile keeps the model that it wraps as _orig_mod.
    return any(attribute in ("module", "_orig_mod") for attribute in attributes)
