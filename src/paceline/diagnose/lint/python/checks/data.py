"""Check how data is divided between ranks: set_epoch of samplers, loaders without a sampler."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python.objects import DOES_IT_ALL, makes
from paceline.diagnose.lint.python.ranks import depends_on_rank, is_in_every_rank
from paceline.diagnose.lint.python.script import (
    Script,
    argument,
    arguments_of,
    has_unknown_arguments,
    inside,
    keyword,
    receiver,
    words_of,
)
from paceline.errors import Finding
from paceline.text.syntax import constant, dotted, last, words

TRAINING = re.compile(r"train|trn(_|$)", re.I)
EVALUATING = re.compile(
    r"val(id)?(_|$)|valid|test|eval|dev(_|$)|dev_?(set|loader|data)|^val|_val", re.I
)
_LOADER = re.compile(r"load|sampler|train_?(data|iter|dl)|data_?iter", re.I)
# Functions that do not call set_epoch of the sampler of a loader that is passed to them.
_NEUTRAL = words_of("len iter next enumerate tqdm print zip str range min DataLoader isinstance")
_SHARDS = re.compile(
    r"iterable|stream|webdataset|^wds$|WebLoader|shard|split_by|partition|chunk|distributed", re.I
)
# Calls that divide the loaders that are passed to them, or replace them.
_ADOPTS = words_of(
    "prepare prepare_data_loader setup_dataloaders process_dataloader fit deepspeed_io loader"
    " MpDeviceLoader ParallelLoader make_private make_private_with_epsilon auto_dataloader"
    " StatefulDataLoader"
)
_READS_ALL = ("torch.", "torchvision.", "datasets.", "sklearn.", "os.", "pathlib.")
# Methods of tensors that keep all rows, or make one value of them.
_OF_TENSORS = words_of("to cuda cpu float double long mean std min max manual_seed unsqueeze view")
_DIVIDES_SHARDS = re.compile(r"split_by_node|nodesplitter|resampled", re.I)


def set_epoch_missing(script: Script) -> Iterator[Finding]:
    """Find shuffling DistributedSamplers without set_epoch: every epoch has the same order.

    Only files that train themselves, with ``backward`` and a loop over epochs, are checked, and
    none that pass a loader to a function of another file.
    """
    loops = epoch_loops(script)
    if script.roots & DOES_IT_ALL or not loops or not script.calls_of("backward"):
        return
    if any(_hands_over(script, loop) for loop in loops):
        return
    for call in makes(script, "sharding-sampler"):
        if not _shuffles(call) or _is_for_evaluation(script, call) or _has_set_epoch(script, call):
            continue
        names = targets(script, call)
        yield script.finding(
            "set-epoch-missing",
            call,
            "this DistributedSampler shuffles, and nothing calls its set_epoch in the loop over"
            " epochs",
            why="without set_epoch every epoch has the order of the first",
            fix=f"{names[0] if names else 'sampler'}.set_epoch(epoch)"
            "  # first line of the loop over epochs",
        )


def epoch_loops(script: Script) -> list[ast.For]:
    """Return the loops over more than one epoch."""
    loops = []
    for loop in script.nodes:
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        names = " ".join([*words(loop.target), *words(loop.iter)]).lower()
        counts = last(loop.iter) in ("range", "trange", "tqdm", "count", "epochs")
        # In a single epoch no order repeats.
        is_once = len(loop.iter.args) == 1 and constant(loop.iter.args[0]) == 1
        if "epoch" in names and counts and not is_once:
            loops.append(loop)
    return loops


def _hands_over(script: Script, loop: ast.For) -> bool:
    """Return whether a loop passes a loader or sampler on, and what it is passed to may tell it."""
    known = _NEUTRAL | script.functions.keys()
    for call in inside(loop):
        if not isinstance(call, ast.Call) or last(call) in known:
            continue
        if script.full(call).startswith(("torch.", "tqdm", "itertools.")):
            continue
        if any(_LOADER.search(last(value)) for value in arguments_of(call) if dotted(value)):
            return True
    return False


def _shuffles(sampler: ast.Call) -> bool:
    shuffle, seed = argument(sampler, "shuffle", 3), argument(sampler, "seed", 4)
    if has_unknown_arguments(sampler) or (shuffle is not None and constant(shuffle) is not True):
        return False
    # A seed that is computed may change in every epoch, which does what set_epoch does.
    return seed is None or constant(seed) is not ...


def _is_for_evaluation(script: Script, sampler: ast.Call) -> bool:
    """Return whether names beside a sampler are those of an evaluation, whose order is free."""
    names = targets(script, sampler) + [last(value) for value in arguments_of(sampler)]
    text = " ".join(names)
    return bool(EVALUATING.search(text)) and not TRAINING.search(text)


def _has_set_epoch(script: Script, sampler: ast.Call) -> bool:
    """Return whether a call of set_epoch may be of this sampler, and not of another one's name."""
    own = {name.rpartition(".")[2] for name in targets(script, sampler)}
    samplers = [call for call in makes(script, "sharding-sampler") if call is not sampler]
    others = {name.rpartition(".")[2] for call in samplers for name in targets(script, call)}
    for setter in [*script.calls_of("set_epoch"), *script.calls_of("set_sampler_epoch")]:
        if receiver(setter).rpartition(".")[2] not in others - own:
            return True
    # getattr(sampler, "set_epoch") calls it without naming it in a call.
    texts = [node.value for node in script.nodes if isinstance(node, ast.Constant)]
    return "set_epoch" in texts


def targets(script: Script, node: ast.AST) -> list[str]:
    """Return the dotted names to which an expression is assigned, also through a conditional."""
    parent = script.parents[node]
    while isinstance(parent, ast.IfExp):
        parent = script.parents[parent]
    if isinstance(parent, ast.Assign):
        return [name for target in parent.targets if (name := dotted(target))]
    return [dotted(parent.target)] if isinstance(parent, ast.AnnAssign) else []


def sampler_missing(script: Script) -> Iterator[Finding]:
    """Find training DataLoaders that are not sharded: every rank reads all samples.

    Only loaders that shuffle are checked, as streams cannot, and whose dataset comes from calls
    that give every rank all of it.
    """
    if script.roots & (DOES_IT_ALL | {"transformers"}):
        return
    # Ranks that share no gradients, as in a search over settings, each need all samples.
    wraps = makes(script, "ddp", "fsdp")
    engines = [call for call in makes(script, "engine") if not keyword(call, "training_data")]
    if not wraps and not engines and "horovod" not in script.roots:
        return
    yield from _undivided_shards(script)
    for call in makes(script, "loader"):
        if not _is_unsharded(script, call) or not is_in_every_rank(script, call):
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


def _undivided_shards(script: Script) -> Iterator[Finding]:
    """Find the shards of a WebDataset that nothing in the file divides between ranks."""
    if any(_DIVIDES_SHARDS.search(word) for word in words(script.tree)):
        return
    keywords = [each.arg for call in script.calls for each in call.keywords]
    if any(_DIVIDES_SHARDS.search(name or "") for name in keywords):
        return
    for call in [*script.calls_of("WebDataset"), *script.calls_of("SimpleShardList")]:
        of_library = script.full(call).startswith("webdataset.")
        is_known = not has_unknown_arguments(call) and not depends_on_rank(script, call)
        names = " ".join([*targets(script, call), *words(call)])
        is_training = not EVALUATING.search(names) or TRAINING.search(names)
        if of_library and is_known and is_training and is_in_every_rank(script, call):
            yield script.finding(
                "sampler-missing",
                call,
                "nothing divides these shards between the ranks",
                why="WebDataset refuses several ranks, and SimpleShardList gives each all samples",
                fix="wds.WebDataset(..., nodesplitter=wds.split_by_node), or wds.split_by_node",
            )


def _is_unsharded(script: Script, loader: ast.Call) -> bool:
    """Return whether a DataLoader certainly gives every rank all samples of the training set."""
    names = targets(script, loader)
    twins = [call for call in makes(script, "loader") if set(names) & set(targets(script, call))]
    if any(_has_sampler(call) or has_unknown_arguments(call) for call in [loader, *twins]):
        return False
    if constant(argument(loader, "shuffle", 2)) is not True or not _trains(script, loader, names):
        return False
    short = {name.rpartition(".")[2] for name in names}
    for call in script.calls:
        given = {last(value) for value in arguments_of(call)}
        if last(call) in _ADOPTS and (given & short or loader in arguments_of(call)):
            return False
    dataset = argument(loader, "dataset", 0)
    return dataset is not None and _gives_all(script, loader, dataset)


def _has_sampler(loader: ast.Call) -> bool:
    samplers = argument(loader, "sampler", 3), argument(loader, "batch_sampler", 4)
    return any(sampler is not None and constant(sampler) is not None for sampler in samplers)


def _trains(script: Script, loader: ast.Call, names: list[str]) -> bool:
    """Return whether a DataLoader is for training, by its names or a loop that learns from it."""
    text = " ".join(names) or getattr(script.function(loader), "name", "")
    # Both words, as in train_val_loader, mean data that is trained on.
    if TRAINING.search(text) or EVALUATING.search(text):
        return bool(TRAINING.search(text))
    short = {name.rpartition(".")[2] for name in names}
    loops = [node for node in script.nodes if isinstance(node, ast.For)]
    over = [loop for loop in loops if short & set(words(loop.iter))]
    calls = [node for loop in over for node in inside(loop) if isinstance(node, ast.Call)]
    return any(last(call) == "backward" for call in calls)


def _gives_all(script: Script, loader: ast.Call, dataset: ast.expr) -> bool:
    """Return whether all that makes a dataset is known, and nothing of it divides the samples."""
    if depends_on_rank(script, loader) or any(map(script.calls_of, ("scatter", "recv", "copy_"))):
        return False
    origins = script.origins(dataset)
    parts = [part for origin in origins for part in ast.walk(origin)]
    if any(_SHARDS.search(word) for origin in origins for word in words(origin)):
        return False
    stores = [node for node in script.nodes if isinstance(node, ast.Subscript)]
    filled = {dotted(node.value) for node in stores if isinstance(node.ctx, ast.Store)}
    # A dataset of another file that is given to a shuffling loader is taken for a whole one.
    makers = script.candidates(dataset, dataset)
    for part in parts:
        if isinstance(part, ast.Name) and (part.id in filled or not _is_known(script, part)):
            return False
        if isinstance(part, ast.Call) and part not in makers and not _reads_all(script, part):
            return False
        definition = script.classes.get(last(part)) if isinstance(part, ast.Call) else None
        if definition is not None and _may_divide(definition):
            return False
    # Random numbers are others on each rank if a seed is.
    seeds = [call for call in script.calls if "seed" in last(call)]
    return not any(depends_on_rank(script, call) for call in seeds)


def _is_known(script: Script, name: ast.Name) -> bool:
    if name.id in script.imports or name.id in script.classes or name.id in dir(builtins):
        return True
    # Paths and sizes come from options, ``args.data``, which a dataset may also take as a whole.
    is_option = isinstance(script.parents[name], ast.Attribute) and name.id != "self"
    if is_option or name.id in ("args", "cfg", "config", "opt", "hparams"):
        return True
    return isinstance(name.ctx, ast.Store) or bool(script.assigned(name.id, name))


def _reads_all(script: Script, call: ast.Call) -> bool:
    """Return whether a call keeps all rows that it is given."""
    full = script.full(call)
    if full:
        return full.startswith(_READS_ALL)
    return last(call) in _OF_TENSORS | {"len", "int"} or last(call) in script.classes


def _may_divide(definition: ast.ClassDef) -> bool:
    return any(_SHARDS.search(word) or "rank" in word.lower() for word in words(definition))
