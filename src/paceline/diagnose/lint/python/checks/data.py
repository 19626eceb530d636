"""Check how data is distributed to ranks: samplers, set_epoch, unsharded loaders, downloads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, argument, is_sharded_run, makes
from paceline.diagnose.lint.python.ranks import RankBlock, rank_block, runs_alone
from paceline.diagnose.lint.python.script import (
    Script,
    arguments_of,
    expects_error,
    has_unknown_arguments,
    inside,
    keyword,
    receiver,
    words_of,
)
from paceline.errors import Finding
from paceline.machine import python_fork
from paceline.text.rank_conditions import Sides, is_rank, sides
from paceline.text.syntax import constant, dotted, last

# On many clusters these are on the node's own disk or in its memory. /scratch is shared on others,
# so the finding stays a warning.
_LOCAL_FOLDER = re.compile(
    r"^/tmp|^/scratch|^/local|^/dev/shm|^/var/tmp|TMPDIR|SLURM_TMPDIR|tempfile|mkdtemp|gettempdir"
)
# Functions that do not call set_epoch of a sampler, or of a loader's sampler, that is passed to
# them.
_NEUTRAL = words_of("len iter next enumerate tqdm print zip str range min DataLoader isinstance")
_OF_WORKERS = ("persistent_workers", "multiprocessing_context")
_DOWNLOADS = re.compile(
    r"^(maybe_|_)?(download|fetch_data|urlretrieve|prepare_data$)|_download(er)?(_|$)|_download$"
)


def set_epoch_missing(script: Script) -> Iterator[Finding]:
    """Find shuffling DistributedSamplers without set_epoch: every epoch has the same order.

    Lightning, Accelerate and similar libraries call set_epoch themselves, so files that use them
    are skipped.
    """
    if script.roots & DOES_IT_ALL or not (loaders.epoch_loops(script) or _endless(script)):
        return
    for call in loaders.samplers(script):
        if not _shuffles(script, call) or _has_set_epoch(script, call):
            continue
        if (
            _is_unused_here(script, call)
            or _is_for_evaluation(script, call)
            or _leaves_the_file(script, call)
        ):
            continue
        names = loaders.targets(script, call)
        name = names[0] if names else "sampler"
        yield script.finding(
            "set-epoch-missing",
            call,
            "this DistributedSampler shuffles, and nothing calls its set_epoch in the loop over"
            " epochs",
            why="without set_epoch every epoch has the order of the first",
            fix=f"{name}.set_epoch(epoch)  # first line of the loop over epochs",
        )


def seed_differs(script: Script) -> Iterator[Finding]:
    """Find DistributedSamplers whose seed is another one on each rank."""
    for call in loaders.samplers(script):
        seed = argument(call, "seed", 4)
        values = script.candidates(seed, call) if seed is not None else []
        is_sorted = constant(argument(call, "shuffle", 3)) is False
        if is_sorted or not any(_adds_rank(script, value) for value in values):
            continue
        yield script.finding(
            "same-data-on-all-ranks",
            call,
            "the seed of this DistributedSampler depends on the rank",
            why="each rank shuffles otherwise: samples are read by several ranks, others by none",
            fix="the same seed on every rank; DistributedSampler gives each rank its own share",
        )


def _adds_rank(script: Script, seed: ast.expr) -> bool:
    """Return whether a rank is added to a seed, or multiplied with it, as it is."""
    if isinstance(seed, ast.BinOp) and isinstance(seed.op, ast.Add | ast.Mult | ast.Mod):
        return _adds_rank(script, seed.left) or _adds_rank(script, seed.right)
    return is_rank(script, seed)


def _endless(script: Script) -> bool:
    """Return whether a generator goes round a loader for ever: ``while True: for x in loader``."""
    loops = [
        node for node in script.nodes if isinstance(node, ast.While) and constant(node.test) is True
    ]
    return any(
        isinstance(inner, ast.For) and _yields_batches(script, inner)
        for loop in loops
        for inner in loop.body
    )


def _yields_batches(script: Script, loop: ast.For) -> bool:
    """Return whether a loop yields what a parameter of its function gives, which is a loader."""
    function = script.function(loop)
    names = [argument.arg for argument in function.args.args] if function is not None else []
    if not isinstance(loop.iter, ast.Name) or loop.iter.id not in names:
        return False
    if not re.search("load|data", loop.iter.id, re.I):
        return False
    yields = [part for part in ast.walk(loop) if isinstance(part, ast.Yield)]
    return any(
        part.value is not None and dotted(part.value) == dotted(loop.target) for part in yields
    )


def _shuffles(script: Script, call: ast.Call) -> bool:
    # DistributedSampler shuffles by default. A seed that the file computes may change in every
    # epoch, which does what set_epoch does.
    shuffle = argument(call, "shuffle", 3)
    if has_unknown_arguments(call) or (shuffle is not None and not _is_true(script, shuffle)):
        return False
    seed = argument(call, "seed", 4)
    return seed is None or constant(seed) is not ...


def _is_true(script: Script, node: ast.expr) -> bool:
    """Return whether a value is True, or a parameter that each call of this file gives as True."""
    function = script.function(node)
    if function is None or not isinstance(node, ast.Name):
        return constant(node) is True
    calls = script.calls_of(function.name)
    given = [keyword(call, node.id) for call in calls if isinstance(call.func, ast.Name)]
    return len(given) == len(calls) > 0 and all(
        value is not None and constant(value) is True for value in given
    )


def _has_set_epoch(script: Script, call: ast.Call) -> bool:
    names = {name.rpartition(".")[2] for name in loaders.targets(script, call)}
    others = {
        name.rpartition(".")[2]
        for other in loaders.samplers(script)
        if other is not call
        for name in loaders.targets(script, other)
    }
    for setter in [*script.calls_of("set_epoch"), *script.calls_of("set_sampler_epoch")]:
        word = receiver(setter).rpartition(".")[2]
        # loader.sampler.set_epoch, or that of a parameter, may reach this sampler; a call on the
        # name of another sampler does not.
        if word in names or word not in others - names:
            return True
    # getattr(sampler, "set_epoch") calls it without naming it in a call.
    return any(
        isinstance(name, ast.Constant) and name.value == "set_epoch" for name in script.nodes
    )


def _is_for_evaluation(script: Script, call: ast.Call) -> bool:
    """Return whether a sampler, or each loader that uses it, is named as one for evaluation."""
    # The order of an evaluation changes no metric, so set_epoch is not missed there.
    for name in loaders.targets(script, call):
        if loaders.EVALUATING.search(name) and not loaders.TRAINING.search(name):
            return True
    loader_calls = _loaders_of(script, call)
    is_named = any(loaders.targets(script, loader) for loader in loader_calls)
    return is_named and all(
        loaders.is_for_training(script, loader) is False for loader in loader_calls
    )


def _is_unused_here(script: Script, call: ast.Call) -> bool:
    """Return whether no loader of this file uses a sampler; another file may set its epoch."""
    is_kept = bool(loaders.targets(script, call)) or isinstance(
        script.parents.get(call), ast.keyword | ast.Return
    )
    return not is_kept or not _loaders_of(script, call)


def _loaders_of(script: Script, sampler: ast.Call) -> list[ast.Call]:
    everything = loaders.data_loaders(script)
    return [each for each in everything if loaders.sharding_sampler(script, each) is sampler]


def _leaves_the_file(script: Script, sampler: ast.Call) -> bool:
    """Return whether a sampler or a loader of it is passed to a function outside the file."""
    # In a loop over epochs a method of an unknown object, such as engine.train(loader), may call
    # set_epoch of the loader's sampler.
    in_epochs = [node for loop in loaders.epoch_loops(script) for node in inside(loop)]
    known = _NEUTRAL | script.functions.keys()
    calls = [node for node in in_epochs if isinstance(node, ast.Call) and last(node) not in known]
    calls += [call for call in script.calls if _is_foreign(script, call)]
    names = [
        name
        for call in (sampler, *_loaders_of(script, sampler))
        for name in loaders.targets(script, call)
    ]
    short = {name.rpartition(".")[2] for name in names}
    return any(last(argument) in short for call in calls for argument in arguments_of(call))


def _is_foreign(script: Script, call: ast.Call) -> bool:
    full = script.full(call.func)
    # torch's DataLoader, tqdm and itertools pass a sampler on and never call set_epoch.
    return bool(full) and not full.startswith(("torch.", "tqdm", "itertools"))


def sampler_missing(script: Script) -> Iterator[Finding]:
    """Find training DataLoaders that are not sharded: every rank reads all samples.

    Nothing is reported for iterable datasets, data that depends on the rank, and loaders that a
    framework prepares.
    """
    if not is_sharded_run(script) or script.roots & (DOES_IT_ALL | {"transformers"}):
        return
    # Ranks that share no gradients, as in a search over settings, each need all samples.
    if not makes(script, "ddp", "fsdp") and "horovod" not in script.roots:
        return
    for call in loaders.data_loaders(script):
        if not _reads_all_samples(script, call):
            continue
        yield script.finding(
            "sampler-missing",
            call,
            "this DataLoader has no DistributedSampler although the model is trained by several"
            " ranks",
            why=(
                "every rank reads all samples, so an epoch takes as long as on one GPU and counts"
                " each sample N times"
            ),
            fix=(
                "DataLoader(dataset, sampler=DistributedSampler(dataset), ...)  # and no"
                " shuffle=True"
            ),
        )


def _reads_all_samples(script: Script, call: ast.Call) -> bool:
    """Return whether a DataLoader certainly gives every rank all samples of the training set."""
    if loaders.sampler_of(script, call) is not None or _has_sharded_twin(script, call):
        return False
    if loaders.is_for_training(script, call) is not True or loaders.may_shard_itself(script, call):
        return False
    # A loader that only some ranks make is not one that all ranks divide between them.
    if rank_block(script, call) or not loaders.runs_in_parallel(script, call):
        return False
    return not loaders.passed_to_framework(script, call, loaders.targets(script, call))


def _has_sharded_twin(script: Script, call: ast.Call) -> bool:
    """Return whether another branch creates the loader of the same name with a sampler."""
    names = set(loaders.targets(script, call))
    return any(
        names & set(loaders.targets(script, other))
        and loaders.sampler_of(script, other) is not None
        for other in loaders.data_loaders(script)
        if other is not call
    )


def shuffle_with_sampler(script: Script) -> Iterator[Finding]:
    """Find DataLoaders with shuffle=True and a sampler, which torch refuses."""
    for call in loaders.data_loaders(script):
        sampler = loaders.sampler_of(script, call)
        if sampler is None or constant(argument(call, "shuffle", 2)) is not True:
            continue
        # torch raises only if the sampler is not None, and a name to which no call is assigned may
        # hold None.
        is_sampler = None if _expects_an_error(script, call) else _is_sampler(script, sampler)
        if is_sampler is None:
            continue
        yield script.finding(
            "shuffle-with-sampler",
            call,
            "this DataLoader has shuffle=True beside a sampler",
            why="torch refuses that with a ValueError when the DataLoader is made",
            fix="leave out shuffle=True and give DistributedSampler(dataset, shuffle=True)",
            severity="error" if is_sampler and not _is_guarded(script, call) else "warning",
        )


def _is_sampler(script: Script, node: ast.expr) -> bool | None:
    """Return whether an expression is certainly a sampler, None if no call shows what it is."""
    if isinstance(node, ast.Call):
        return True if _creates_sampler(script, node) else None
    values = script.assigned(dotted(node), node)
    calls = [value.value for value in values if isinstance(value.value, ast.Call)]
    if not calls:
        return None
    # `sampler = None` in another branch, or an unpacked tuple: it may be None beside shuffle.
    if len(calls) < len(values) or any(value.place >= 0 for value in values):
        return False
    return all(_creates_sampler(script, call) for call in calls)


def _creates_sampler(script: Script, call: ast.Call) -> bool:
    """Return whether a call creates a sampler of torch, or an object of the file's classes."""
    full = script.full(call.func)
    return full.startswith("torch.utils.data") or last(call) in script.classes


def _expects_an_error(script: Script, node: ast.AST) -> bool:
    """Return whether a node is in a ``try``, a lambda, or a test that expects an exception."""
    for parent in script.up(node):
        if isinstance(parent, ast.Lambda) or expects_error(parent):
            return True
        if isinstance(parent, ast.Try) and parent.handlers:
            return True
        if isinstance(parent, ast.Call) and "aises" in last(parent):
            return True
    return False


def _is_guarded(script: Script, node: ast.AST) -> bool:
    # A test case may be skipped, or expect the error in a way that the file does not show.
    function = script.function(node)
    return (
        function is not None and function.name.startswith("test") and script.owner(node) is not None
    )


def download_on_global_rank_only(script: Script) -> Iterator[Finding]:
    """Find downloads by global rank 0 only: nodes that do not share the folder lack the data.

    The severity is a warning if the folder is local to a node (/tmp, $TMPDIR), else a hint, since a
    shared file system is fine.
    """
    for call in script.calls:
        condition = _fetches_on_one(script, call)
        # Ranks that a script starts itself mostly share a node, and so its folders.
        if not condition or runs_alone(script, call) or loaders.started(script):
            continue
        local = _is_local(script, call)
        yield script.finding(
            "download-on-global-rank-only",
            call,
            f"only global rank 0 (`{condition}`) fetches this data"
            + (", into a folder that is local to its node" if local else ""),
            why="the other nodes do not see it unless the folder is shared between them",
            fix="let one rank of each node fetch: if int(os.environ['LOCAL_RANK']) == 0: ...",
            severity="warning" if local else "hint",
        )
    yield from _all_at_once(script)
    yield from _prepare_data_once(script)


def _fetches_on_one(script: Script, call: ast.Call) -> str:
    """Return the condition under which only global rank 0 downloads by a call, or empty."""
    download = keyword(call, "download")
    if download is not None and constant(download) is ...:
        condition = sides(script, download)
        if condition and _is_global_rank_0(condition.true, condition):
            return dotted(download) or "rank == 0"
    block = rank_block(script, call) if _fetches(script, call) else None
    return block.condition if block and _is_global_rank_0(block.side, block) else ""


def _fetches(script: Script, call: ast.Call) -> bool:
    """Return whether a call downloads; a rank that returns what it downloads does so for itself."""
    if constant(keyword(call, "download")) is True:
        return True
    is_returned = isinstance(script.parents.get(call), ast.Return)
    return bool(_DOWNLOADS.search(last(call))) and not is_returned


def _is_global_rank_0(side: str, condition: Sides | RankBlock) -> bool:
    return side == "one" and condition.scope == "global" and condition.sure


def _all_at_once(script: Script) -> Iterator[Finding]:
    """Find downloads in which only global rank 0 goes first, and the others all at once."""
    for call in script.calls:
        if constant(keyword(call, "download")) is not True:
            continue
        block = next((parent for parent in script.up(call) if isinstance(parent, ast.With)), None)
        contexts = [item.context_expr for item in block.items] if block else []
        # main_process_first of Accelerate and rank_zero_first of Fabric let global rank 0 go first
        # and then release all others at once.
        if not any(map(_lets_one_first, contexts)) or not _is_local(script, call):
            continue
        yield script.finding(
            "download-on-global-rank-only",
            call,
            "global rank 0 fetches first, and then on every other node all ranks fetch at once into"
            " a local folder",
            why="they write the same files at the same time",
            fix="fabric.rank_zero_first(local=True), or accelerator.local_main_process_first()",
            severity="hint",
        )


def _is_local(script: Script, call: ast.Call) -> bool:
    """Return whether a download goes to a folder that each node has for itself."""
    return bool(_LOCAL_FOLDER.search(" ".join(_texts(script, call))))


def _lets_one_first(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return last(node) == "main_process_first" or (
        last(node) == "rank_zero_first" and constant(argument(node, "local", 0)) is not True
    )


def _texts(script: Script, call: ast.Call) -> Iterator[str]:
    """Yield the texts and names in the arguments of a call, and in values assigned to them."""
    for part in arguments_of(call):
        for value in script.candidates(part, call):
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.Name | ast.Attribute):
                    yield last(node)


def _prepare_data_once(script: Script) -> Iterator[Finding]:
    for name, values in script.values.items():
        # Lightning reads it from the module and from the DataModule; both have True by default.
        if name.rpartition(".")[2] != "prepare_data_per_node":
            continue
        for value in values:
            if constant(value.value) is False:
                yield script.finding(
                    "download-on-global-rank-only",
                    value.at,
                    "prepare_data runs on one rank of the whole job (prepare_data_per_node ="
                    " False)",
                    why="nodes whose data folder is not shared do not see what it writes",
                    fix="self.prepare_data_per_node = True  # unless all nodes share the folder",
                    severity="hint",
                )


def workers_not_persistent(script: Script) -> Iterator[Finding]:
    """Find DataLoaders that start their workers again for every epoch.

    Only certain cases are reported: the number of workers is in the file, the loader is used for
    several epochs, and its dataset is map-style; workers of a stream may keep their position.
    """
    for call in loaders.data_loaders(script):
        count = constant(argument(call, "num_workers", 5))
        workers = count if isinstance(count, int) else 0  # 0 also if the file does not show it
        decided = has_unknown_arguments(call) or any(
            keyword(call, name) is not None for name in _OF_WORKERS
        )
        if workers < 1 or decided:
            continue
        if not _is_map_style(script, call) or not loaders.is_used_each_epoch(script, call):
            continue
        yield script.finding(
            "workers-not-persistent",
            call,
            f"this DataLoader starts its {workers} worker{'s' * (workers > 1)} again for every"
            " epoch",
            why=(
                "each start takes time, and in some versions of Python about one fork in 1000"
                f" deadlocks ({python_fork.ISSUE})"
            ),
            fix=f"DataLoader(..., num_workers={workers}, persistent_workers=True)",
            severity="hint",
        )


def _is_map_style(script: Script, call: ast.Call) -> bool:
    """Return whether a DataLoader has an order (shuffle, sampler), which streams cannot have."""
    return (
        constant(argument(call, "shuffle", 2)) is True
        or loaders.sampler_of(script, call) is not None
    )
