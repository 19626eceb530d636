"""How the data reaches the ranks: samplers, their epochs, loaders without one, and downloads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python import loaders
from paceline.diagnose.lint.python.objects import DOES_IT_ALL, argument, is_sharded_run, made_by
from paceline.diagnose.lint.python.ranks import Partial, partial, runs_alone
from paceline.diagnose.lint.python.script import Script, has_unknown_arguments, inside, keyword, receiver
from paceline.errors import Finding
from paceline.machine import python_fork
from paceline.text.rank_conditions import sides
from paceline.text.syntax import constant, dotted, last

_LOCAL_FOLDER = re.compile(
    r"^/tmp|^/scratch|^/local|^/dev/shm|^/var/tmp|TMPDIR|SLURM_TMPDIR|tempfile|mkdtemp|gettempdir"
)
_OF_WORKERS = ("persistent_workers", "multiprocessing_context")
_DOWNLOADS = re.compile(r"^(maybe_|_)?(download|fetch_data|urlretrieve|prepare_data$)|_download(er)?(_|$)|_download$")


def set_epoch_missing(script: Script) -> Iterator[Finding]:
    """A DistributedSampler shuffles over several epochs and is never told the epoch: each has the same order.

    Lightning, Accelerate and the like call set_epoch themselves, so files that use them are left alone.
    """
    if script.roots & DOES_IT_ALL or not loaders.epoch_loops(script):
        return
    for call in loaders.samplers(script):
        if not _shuffles(call) or _is_told(script, call) or _goes_elsewhere(script, call):
            continue
        names = loaders.targets(script, call)
        name = names[0] if names else "sampler"
        yield script.finding(
            "set-epoch-missing",
            call,
            "this DistributedSampler shuffles, and nothing calls its set_epoch in the loop over epochs",
            why="without set_epoch every epoch has the order of the first",
            fix=f"{name}.set_epoch(epoch)  # first line of the loop over epochs",
        )


def _shuffles(call: ast.Call) -> bool:
    given = argument(call, "shuffle", 3)
    if has_unknown_arguments(call) or (given is not None and constant(given) is not True):
        return False
    seed = argument(call, "seed", 4)
    return seed is None or constant(seed) is not ...


def _is_told(script: Script, call: ast.Call) -> bool:
    mine = {name.rpartition(".")[2] for name in loaders.targets(script, call)}
    others = {
        n.rpartition(".")[2] for c in loaders.samplers(script) if c is not call for n in loaders.targets(script, c)
    }
    for told in [*script.calls_of("set_epoch"), *script.calls_of("set_sampler_epoch")]:
        word = receiver(told).rpartition(".")[2]
        if word in mine or word not in others - mine:
            return True
    return any(isinstance(n, ast.Constant) and n.value == "set_epoch" for n in script.nodes)


def _goes_elsewhere(script: Script, call: ast.Call) -> bool:
    """The sampler or its loader is for evaluation, or is handed to code of another file, which may tell it."""
    names = loaders.targets(script, call)
    if not names and not isinstance(script.parents.get(call), ast.keyword):
        return True
    if any(loaders.EVALUATING.search(name) and not loaders.TRAINING.search(name) for name in names):
        return True
    users = [load for load in loaders.data_loaders(script) if (s := loaders.sampler_of(script, load)) is not None
             and loaders.sampler_call(script, s) is call]  # fmt: skip
    if not users:
        return True
    fed = [name for load in users for name in loaders.targets(script, load)]
    if fed and all(loaders.is_for_training(script, load) is False for load in users):
        return True
    return _leaves_the_file(script, [*names, *fed])


def _leaves_the_file(script: Script, names: list[str]) -> bool:
    """Say whether a loop over epochs hands one of the names to a function that the file does not hold."""
    short = {name.rpartition(".")[2] for name in names}
    known = (
        "len",
        "iter",
        "next",
        "enumerate",
        "tqdm",
        "print",
        "zip",
        "str",
        "range",
        "min",
        "DataLoader",
        "isinstance",
    )
    for loop in loaders.epoch_loops(script):
        for node in inside(loop):
            if not isinstance(node, ast.Call) or last(node) in known or last(node) in script.functions:
                continue
            if any(last(a) in short for a in [*node.args, *(k.value for k in node.keywords)]):
                return True
    return any(
        last(a) in {n.rpartition(".")[2] for n in names}
        for call in script.calls
        if script.full(call.func) and not script.full(call.func).startswith(("torch.", "tqdm", "itertools"))
        for a in [*call.args, *(k.value for k in call.keywords)]
    )


def sampler_missing(script: Script) -> Iterator[Finding]:
    """In a distributed run the training DataLoader is not sharded: every rank goes through all samples.

    Silent for iterable datasets, for data that depends on the rank, and for loaders that a framework takes over.
    """
    if not is_sharded_run(script) or script.roots & (DOES_IT_ALL | {"transformers"}):
        return
    wraps = [call for call in script.calls if made_by(script, call) in ("ddp", "fsdp")]
    if not wraps and "horovod" not in script.roots:
        return
    for call in loaders.data_loaders(script):
        if loaders.sampler_of(script, call) is not None or loaders.is_for_training(script, call) is not True:
            continue
        if (
            loaders.may_shard_itself(script, call)
            or not loaders.runs_in_parallel(script, call)
            or partial(script, call)
        ):
            continue
        names = loaders.targets(script, call)
        if loaders.handed_to_framework(script, call, names) or _has_sharded_twin(script, call):
            continue
        yield script.finding(
            "sampler-missing",
            call,
            "this DataLoader has no DistributedSampler although the model is trained by several ranks",
            why="every rank reads all samples, so an epoch takes as long as on one GPU and counts each sample N times",
            fix="DataLoader(dataset, sampler=DistributedSampler(dataset), ...)  # and no shuffle=True",
        )


def _has_sharded_twin(script: Script, call: ast.Call) -> bool:
    """Another branch makes the loader of the same name with a sampler."""
    mine = set(loaders.targets(script, call))
    return any(
        mine & set(loaders.targets(script, other)) and loaders.sampler_of(script, other) is not None
        for other in loaders.data_loaders(script)
        if other is not call
    )


def shuffle_with_sampler(script: Script) -> Iterator[Finding]:
    """A DataLoader has both shuffle=True and a sampler: torch raises ValueError when it is made."""
    for call in loaders.data_loaders(script):
        if constant(argument(call, "shuffle", 2)) is not True:
            continue
        given = loaders.sampler_of(script, call)
        if given is None or _expects_an_error(script, call):
            continue
        sure = isinstance(given, ast.Call) and made_or_known(script, given)
        if not sure:
            values = script.assigned(dotted(given), given) if dotted(given) else []
            sure = bool(values) and all(
                isinstance(v.value, ast.Call) and v.place < 0 and made_or_known(script, v.value) for v in values
            )
            if not sure and not any(isinstance(v.value, ast.Call) for v in values):
                continue
        yield script.finding(
            "shuffle-with-sampler",
            call,
            "this DataLoader has shuffle=True beside a sampler",
            why="torch refuses that with a ValueError when the DataLoader is made",
            fix="leave out shuffle=True and give DistributedSampler(dataset, shuffle=True)",
            severity="error" if sure and not _is_guarded(script, call) else "warning",
        )


def made_or_known(script: Script, call: ast.Call) -> bool:
    """Say whether a call certainly makes a sampler: one of torch's classes, or a class of the file."""
    full = script.full(call.func)
    return full.startswith("torch.utils.data") or last(call) in script.classes


def _expects_an_error(script: Script, node: ast.AST) -> bool:
    for parent in script.up(node):
        if isinstance(parent, ast.With) and any("aises" in last(item.context_expr) for item in parent.items):
            return True
        if isinstance(parent, ast.Lambda) or (isinstance(parent, ast.Try) and parent.handlers):
            return True
    return any("aises" in last(parent) for parent in script.up(node) if isinstance(parent, ast.Call))


def _is_guarded(script: Script, node: ast.AST) -> bool:
    function = script.function(node)
    return function is not None and function.name.startswith("test") and script.owner(node) is not None


def download_on_global_rank_only(script: Script) -> Iterator[Finding]:
    """Data is fetched by global rank 0 alone: on further nodes with folders of their own it is missing.

    A warning where the folder is visibly local to a node (/tmp, $TMPDIR), else a hint, as a shared file system is fine.
    """
    for call in script.calls:
        where = _fetches_on_one(script, call)
        if not where or runs_alone(script, call) or loaders.started(script):
            continue
        local = _LOCAL_FOLDER.search(" ".join(_texts(script, call)))
        yield script.finding(
            "download-on-global-rank-only",
            call,
            f"only global rank 0 (`{where}`) fetches this data" + (", into a folder of its own node" if local else ""),
            why="the other nodes do not see it unless the folder is shared between them",
            fix="let one rank of each node fetch: if int(os.environ['LOCAL_RANK']) == 0: ...",
            severity="warning" if local else "hint",
        )
    yield from _all_at_once(script)
    yield from _prepare_data_once(script)


def _fetches_on_one(script: Script, call: ast.Call) -> str:
    given = keyword(call, "download")
    # What is fetched and returned is for the rank itself.
    for_others = not isinstance(script.parents.get(call), ast.Return)
    fetches = (bool(_DOWNLOADS.search(last(call))) and for_others) or constant(given) is True
    if given is not None and constant(given) is ...:
        told = sides(script, given)
        if told and told.true == "one" and told.scope == "global" and told.sure:
            return dotted(given) or "rank == 0"
    where: Partial | None = partial(script, call) if fetches else None
    if where is None or where.side != "one" or where.scope != "global" or not where.sure:
        return ""
    return where.says


def _all_at_once(script: Script) -> Iterator[Finding]:
    """Rank 0 of the job goes first: on the other nodes all ranks then fetch at once into the same local folder."""
    for call in script.calls:
        if constant(keyword(call, "download")) is not True:
            continue
        block = next((p for p in script.up(call) if isinstance(p, ast.With)), None)
        first = [i.context_expr for i in block.items if _lets_one_first(i.context_expr)] if block else []
        if not first or not _LOCAL_FOLDER.search(" ".join(_texts(script, call))):
            continue
        yield script.finding(
            "download-on-global-rank-only",
            call,
            "global rank 0 fetches first, and then on every other node all ranks fetch at once into a local folder",
            why="they write the same files at the same time",
            fix="fabric.rank_zero_first(local=True), or accelerator.local_main_process_first()",
            severity="hint",
        )


def _lets_one_first(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return last(node) == "main_process_first" or (
        last(node) == "rank_zero_first" and constant(argument(node, "local", 0)) is not True
    )


def _texts(script: Script, call: ast.Call) -> Iterator[str]:
    for part in [*call.args, *(k.value for k in call.keywords)]:
        values = [part, *(v.value for v in (script.assigned(dotted(part), call) if dotted(part) else []))]
        for value in values:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.Name | ast.Attribute):
                    yield last(node)


def _prepare_data_once(script: Script) -> Iterator[Finding]:
    for name, values in script.values.items():
        if name.rpartition(".")[2] != "prepare_data_per_node":
            continue
        for value in values:
            if constant(value.value) is False:
                yield script.finding(
                    "download-on-global-rank-only",
                    value.at,
                    "prepare_data runs on one rank of the whole job (prepare_data_per_node = False)",
                    why="nodes whose data folder is not shared do not see what it writes",
                    fix="self.prepare_data_per_node = True  # unless all nodes share the folder",
                    severity="hint",
                )


def workers_not_persistent(script: Script) -> Iterator[Finding]:
    """A DataLoader starts its workers again for every epoch.

    Only where it is certain: the number of workers is in the file, the loader outlives the epoch, and its dataset is no
    stream, whose workers may keep their place.
    """
    for call in loaders.data_loaders(script):
        workers = _num_workers(script, call)
        decided = has_unknown_arguments(call) or any(keyword(call, name) is not None for name in _OF_WORKERS)
        if workers < 1 or decided:
            continue
        if not _is_map_style(script, call) or not loaders.is_used_each_epoch(script, call):
            continue
        yield script.finding(
            "workers-not-persistent",
            call,
            f"this DataLoader starts its {workers} worker{'s' * (workers > 1)} again for every epoch",
            why="each start takes time, and in some versions of Python about one fork in 1000 deadlocks "
            f"({python_fork.ISSUE})",
            fix=f"DataLoader(..., num_workers={workers}, persistent_workers=True)",
            severity="hint",
        )


def _num_workers(script: Script, call: ast.Call) -> int:
    """Return the number of workers of a DataLoader, 0 if the file does not show it."""
    value = constant(argument(call, "num_workers", 5))
    return value if isinstance(value, int) else 0


def _is_map_style(script: Script, call: ast.Call) -> bool:
    """Say whether a DataLoader is given an order, which torch refuses for streams."""
    return constant(argument(call, "shuffle", 2)) is True or loaders.sampler_of(script, call) is not None
