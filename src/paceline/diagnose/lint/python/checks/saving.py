"""Check torch.save and torch.load: who writes a checkpoint, and onto which GPU it is loaded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python.checks.data import targets
from paceline.diagnose.lint.python.objects import makes
from paceline.diagnose.lint.python.ranks import depends_on_rank, is_in_every_rank
from paceline.diagnose.lint.python.script import Script, argument, has_unknown_arguments, receiver
from paceline.errors import Finding
from paceline.text.syntax import dotted, last, words

_NOT_A_FILE = re.compile(r"BytesIO|(^|_)(buf|buffer|bio|stream|memory)(_|$)|io$", re.I)
_WITHOUT_TENSORS = re.compile(r"sched|scaler", re.I)
_OF_TRAINING = re.compile(r"state|ckpt|checkpoint|model|net", re.I)


def save_on_every_rank(script: Script) -> Iterator[Finding]:
    """Find torch.save calls in which every rank writes the same file.

    Nothing is reported if the path may contain the rank, if a rank condition is around the call or
    around all calls of its function, and if the file does not set up several ranks itself.
    """
    if not makes(script, "ddp", "fsdp", "engine") and "horovod" not in script.roots:
        return
    for call in script.calls_of("save"):
        path, saved = argument(call, "f", 1), argument(call, "obj", 0)
        if script.full(call) != "torch.save" or path is None or saved is None:
            continue
        if not _is_run_by_all(script, call) or _is_own(script, path):
            continue
        if not _is_of_training(script, saved):
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


def map_location_missing(script: Script) -> Iterator[Finding]:
    """Find torch.load of a checkpoint that the same script saves, without map_location.

    Nothing is reported unless the path is that of a torch.save, the file names NCCL and wraps a
    model in DDP, and a model or an optimizer takes the values; nor if anything in the file is moved
    to the CPU, or each rank sees one GPU only.
    """
    saves = [call for call in script.calls_of("save") if script.full(call) == "torch.save"]
    paths = {ast.unparse(path) for call in saves if (path := argument(call, "f", 1)) is not None}
    texts = {node.value for node in script.nodes if isinstance(node, ast.Constant)}
    if "nccl" not in texts or "CUDA_VISIBLE_DEVICES" in texts or not makes(script, "ddp"):
        return
    if script.calls_of("cpu"):
        return  # what is moved to the CPU before it is saved stays there
    for call in script.calls_of("load"):
        path = argument(call, "f", 0)
        if script.full(call) != "torch.load" or path is None or has_unknown_arguments(call):
            continue
        if argument(call, "map_location", 1) is not None or not _is_run_by_all(script, call):
            continue
        if ast.unparse(path) not in paths or _is_own(script, path):
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
    names = set(targets(script, load))
    for call in script.calls_of("load_state_dict"):
        if _WITHOUT_TENSORS.search(receiver(call)):
            continue
        parts = [part for value in call.args for part in ast.walk(value)]
        if load in parts or any(dotted(part) in names for part in parts):
            return True
    return False


def _is_own(script: Script, path: ast.expr) -> bool:
    """Return whether a path may differ between ranks, or is not a path."""
    all_words = [word for origin in script.origins(path) for word in words(origin)]
    return depends_on_rank(script, path) or any(map(_NOT_A_FILE.search, all_words))


def _is_of_training(script: Script, saved: ast.expr) -> bool:
    """Return whether a saved object comes from the training, such as a state_dict."""
    parts = [part for value in script.candidates(saved, saved) for part in ast.walk(value)]
    calls = [last(part) for part in parts if isinstance(part, ast.Call)]
    return "state_dict" in calls or _OF_TRAINING.search(last(saved)) is not None


def _is_run_by_all(script: Script, call: ast.Call) -> bool:
    """Return whether every rank makes a call, and not only a test or nobody, as far as is shown."""
    owner, function = script.owner(call), script.function(call)
    if owner is not None and "Test" in owner.name:
        return False
    while function is not None:
        # The main guard, of this file or another, and the class call the first two.
        is_mentioned = function.name in ("main", "__init__") or any(
            last(node) == function.name
            for node in script.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        if function.name.startswith("test_") or not is_mentioned:
            return False
        if function.name in ("main", "__init__"):
            break
        function = script.function(function)
    return is_in_every_rank(script, call)
