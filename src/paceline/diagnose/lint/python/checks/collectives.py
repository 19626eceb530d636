"""Check collective calls: every rank must make them, but part of the ranks reach some places."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.diagnose.lint.python.objects import kind_of
from paceline.diagnose.lint.python.ranks import RankBlock, rank_block, runs_alone
from paceline.diagnose.lint.python.script import Assigned, Script, inside, keyword, words_of
from paceline.errors import Finding
from paceline.text.rank_conditions import leaves, sides
from paceline.text.syntax import constant, dotted, last

_TORCH = words_of(
    """
    all_gather all_gather_coalesced all_gather_into_tensor all_gather_object
    all_reduce all_reduce_coalesced all_to_all all_to_all_single
    barrier broadcast broadcast_object_list gather gather_object monitored_barrier
    new_group new_subgroups reduce reduce_scatter reduce_scatter_tensor
    scatter scatter_object_list
    """
)
_HOROVOD = words_of(
    """
    allgather allgather_object allreduce allreduce_ allreduce_async alltoall barrier
    broadcast broadcast_ broadcast_object broadcast_optimizer_state broadcast_parameters
    grouped_allreduce reducescatter
    """
)
_ACCELERATE = words_of(
    "broadcast broadcast_object_list gather gather_object reduce wait_for_everyone"
)
_FUNCTIONS = {
    "torch.distributed.": _TORCH,
    "deepspeed.comm.": _TORCH,
    "horovod.": _HOROVOD,
    "accelerate.utils.": _ACCELERATE,
}
_METHODS = {
    "accelerator": words_of(
        "backward gather gather_for_metrics main_process_first pad_across_processes reduce"
        " wait_for_everyone"
    ),
    "fabric": words_of(
        "all_gather all_reduce backward barrier broadcast rank_zero_first save setup setup_module"
    ),
    "trainer": words_of("fit predict save_checkpoint test validate"),
    "session": words_of("backward barrier gather mean once reduce restore save setup"),
    "paceline-trainer": words_of("fit test validate"),
    "engine": words_of("backward load_checkpoint save_16bit_model save_checkpoint step"),
}
_SUBGROUP = re.compile(r"group|(^|_)pg|mesh|subset", re.I)
_EXPECTS_FAILURE = re.compile(r"raises|assertRaises|assertWarns")
_KNOWN_LIBRARIES = words_of(
    "torch os sys time json math random re logging pathlib shutil copy numpy pandas tqdm wandb rich"
    " loguru tensorboard"
)


@dataclass(frozen=True)
class _Collective:
    """A call that all ranks must make, where only some come."""

    call: ast.Call
    kind: str  # calls of the same kind match each other
    label: str  # the call as findings show it
    sure: bool  # whether it certainly waits for the other ranks
    block: RankBlock
    function: ast.AST | None  # the function around it


def collective_in_rank_block(script: Script) -> Iterator[Finding]:
    """Find collective calls that only some ranks reach: the others never join, the run hangs.

    Nothing is reported where the other ranks may make the matching call: in the other branch, also
    by a function of this file, or in a block of theirs. Nor for calls within a subgroup, and in
    branches for a single process.
    """
    # torch matches collectives by their order, not by their line: a barrier of rank 0 in one
    # function may meet that of the others in another, unless it meets one in its own function.
    partial = _without_partner(list(_partial_collectives(script)))
    for each in partial:
        sides_of_kind = {other.block.side for other in partial if other.kind == each.kind}
        if len(sides_of_kind) > 1:
            continue
        others = _calls_of_the_others(script, each.block)
        if any(_may_match(script, call, each.kind) for call in others):
            continue
        is_foreign = any(_is_of_another_file(script, call) for call in others)
        yield _finding(script, each, severity="warning" if is_foreign else "error")


def _partial_collectives(script: Script) -> Iterator[_Collective]:
    for call in script.calls:
        name, is_method = _collective(script, call)
        block = rank_block(script, call) if name else None
        if block is None or runs_alone(script, call) or _is_expected_to_fail(script, call):
            continue
        owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        values = script.assigned(owner, call) if is_method else []
        # A Trainer(devices=1) that is made for one rank has one process, and waits for nobody.
        if any(rank_block(script, value.at) for value in values):
            continue
        label = f"{dotted(call.func)}()" if is_method else f"{last(call)}()"
        is_sure = all(map(_has_several_ranks, values))
        yield _Collective(call, name, label, is_sure, block, script.function(call))


def _collective(script: Script, call: ast.Call) -> tuple[str, bool]:
    """Return the kind of a collective call, empty for others, and whether it is a method."""
    full, name = script.full(call), last(call)
    for package, names in _FUNCTIONS.items():
        if full.startswith(package) and name in names:
            # Ranks outside a group take no part in its collectives.
            return "" if _is_of_subgroup(call, name) else name.replace("monitored_", ""), False
    # The constructor of DDP compares the shapes of all ranks and broadcasts parameters.
    if kind_of(full) in ("ddp", "fsdp", "engine"):
        return "wrap", False
    if not isinstance(call.func, ast.Attribute):
        return "", False
    owner = dotted(call.func.value)
    if f"{owner}.{name}" in ("self.all_gather", "self.trainer.strategy.barrier"):
        node = script.owner(call)
        is_lightning = node is not None and "LightningModule" in map(last, node.bases)
        return name if is_lightning else "", True
    methods = _METHODS.get(kind_of(script.made(owner)), frozenset())
    return name if name in methods else "", True


def _is_of_subgroup(call: ast.Call, name: str) -> bool:
    if name == "new_group" and constant(keyword(call, "use_local_synchronization")) is True:
        return True
    groups = [k.value for k in call.keywords if k.arg in ("group", "process_group", "pg", None)]
    # All ranks call new_group; its arguments name the group it makes, not one to talk in.
    if name not in ("new_group", "new_subgroups"):
        groups += [value for value in call.args if _SUBGROUP.search(dotted(value))]
    return any(constant(value) is not None and last(value) != "WORLD" for value in groups)


def _has_several_ranks(value: Assigned) -> bool:
    """Return whether an object certainly has several processes, if its arguments decide that."""
    made = value.value
    if not isinstance(made, ast.Call) or last(made) not in ("Trainer", "Fabric"):
        return True
    # "auto" and numbers that come from outside may be one device.
    counts = [constant(keyword(made, name)) for name in ("devices", "num_nodes")]
    return any(isinstance(count, int) and count > 1 for count in counts)


def _is_expected_to_fail(script: Script, node: ast.AST) -> bool:
    # A test of a timeout leaves a rank out on purpose.
    blocks = [parent for parent in script.up(node) if isinstance(parent, ast.With)]
    contexts = [last(item.context_expr) for block in blocks for item in block.items]
    return any(_EXPECTS_FAILURE.search(name) for name in contexts)


def _without_partner(partial: list[_Collective]) -> list[_Collective]:
    """Drop the collectives that another block of the same function may match, for other ranks."""
    alone = []
    for each in partial:
        near = [other for other in partial if other.kind == each.kind]
        near = [other for other in near if other.function is each.function]
        # ``rank != 0`` there, or ``rank == 1``.
        conditions = {(other.block.side, other.block.condition) for other in near}
        places = {other.block.at for other in near}
        if len(conditions) == 1 or len(places) == 1:
            alone.append(each)
    return alone


def _calls_of_the_others(script: Script, block: RankBlock) -> list[ast.Call]:
    """Return the calls that the ranks on the other side of a condition make instead."""
    branch = block.at
    if not isinstance(branch, ast.If):
        return []
    condition = sides(script, branch.test)
    if block.early or condition is None or condition.true != block.side:
        statements = branch.body
    else:
        # After `if rank == 0: ...; return` what follows in the block is the others' branch.
        statements = branch.orelse + (_after(script, branch) if leaves(branch.body) else [])
    nodes = [node for statement in statements for node in inside(statement)]
    return [node for node in nodes if isinstance(node, ast.Call)]


def _after(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements that follow one in its block."""
    parent = script.parents[statement]
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(parent, block, None)
        if isinstance(statements, list) and statement in statements:
            return statements[statements.index(statement) + 1 :]
    return []


def _may_match(script: Script, call: ast.Call, kind: str) -> bool:
    """Return whether a call is a collective of a kind, or of a function of the file."""
    is_own = last(call) in script.functions or last(call) in script.classes
    return is_own or _collective(script, call)[0] == kind


def _is_of_another_file(script: Script, call: ast.Call) -> bool:
    """Return whether a call may be of code that is neither in this file nor in a known library."""
    full = script.full(call)
    # Methods of other local objects are mostly those of files, lists and loggers.
    is_foreign = bool(full) and full.partition(".")[0] not in _KNOWN_LIBRARIES
    return is_foreign or dotted(call.func).startswith("self.")


def _finding(script: Script, each: _Collective, *, severity: str) -> Finding:
    # `tp_rank == 0` holds once in each group, and these ranks may be all that have to come.
    is_sure = each.sure and each.block.sure and each.block.scope != "group"
    return script.finding(
        "collective-in-rank-block",
        each.call,
        f"{each.label} waits for all ranks, but {_missing_ranks(script, each)}",
        why="the others never make this call: the run hangs until the timeout of the process group",
        fix=(f"move {each.label} out of the block, and keep in it only what one rank may do alone"),
        severity=severity if is_sure else "warning",
    )


def _missing_ranks(script: Script, each: _Collective) -> str:
    """Return which ranks do not reach a call, as the second half of a sentence."""
    block = each.block
    line = getattr(block.at, "lineno", 0)
    if block.condition.startswith("@"):
        return f"{block.condition} (line {line}) lets one rank come here"
    condition = f"`{block.condition}` (line {line})"
    if block.early:
        return f"those with {condition} have left before"
    around = [each.call, *script.up(each.call)]
    if isinstance(block.at, ast.If) and any(node in block.at.body for node in around):
        return f"only the ranks for which {condition} holds come here"
    return f"those with {condition} do not come here"
