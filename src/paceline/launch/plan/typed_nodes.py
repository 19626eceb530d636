"""Compare the nodes that a user has typed with those that are started. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.errors import Finding
from paceline.launch.plan import command_line
from paceline.launch.plan.options import OPTIONS

NODE_OPTIONS = (
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_endpoint",
    "rdzv_backend",
    "rdzv_id",
)


def most_nodes(requested: Mapping[str, object]) -> str:
    """Return the largest number of nodes in ``--nnodes``, as typed; empty without the option."""
    return str(requested.get("nnodes") or "").rpartition(":")[2].strip()


def is_alone(requested: Mapping[str, object]) -> bool:
    """Return whether the user starts this node alone, also if others are started."""
    return bool(requested.get("standalone")) or most_nodes(requested) == "1"


def without_node_options(requested: Mapping[str, object], program: Sequence[str]) -> str:
    """Return the command as requested, without the options that the starter of nodes decides."""
    options = [
        (option.name, "" if option.flag else str(requested[option.name]))
        for option in OPTIONS
        if option.name not in NODE_OPTIONS and requested.get(option.name) not in (None, "", False)
    ]
    return command_line.write(options, program)


def other_number(
    requested: Mapping[str, object],
    num_nodes: int,
    *,
    where: str,  # who starts the nodes, for the finding
    starter: str,  # what it says, as a phrase
) -> Finding | None:
    """Return the finding that ``--nnodes`` excludes the number of started nodes, or None."""
    nnodes = str(requested.get("nnodes") or "").strip()
    low, colon, high = nnodes.partition(":")
    is_range = low.isdecimal() and (not colon or high.isdecimal())  # else the parser refuses it
    if not is_range or int(low) <= num_nodes <= int(high or low):
        return None
    return Finding(
        "torchrun-nnodes-mismatch",
        f"--nnodes {nnodes}, and {starter}",
        where=where,
        fix=f"leave --nnodes out, or start {high or low}; each alone: --nnodes 1",
    )


def other_rank(
    requested: Mapping[str, object],
    node_rank: int,
    *,
    where: str,  # this node, for the finding
    starter: str,  # who starts the nodes
) -> Finding | None:
    """Return the finding that ``--node-rank`` is not this node's, or None."""
    rank = str(requested.get("node_rank") or "").strip()
    if not rank.isdecimal() or int(rank) == node_rank:
        return None
    return Finding(
        "node-rank-on-batch-host",
        f"--node-rank {rank} in task {node_rank}",
        where=where,
        why=(
            f"a variable in the line of {starter} is expanded once, before {starter} starts the"
            " tasks"
        ),
        fix=f"leave --node-rank out: it is taken from {starter}",
    )


def launched_twice(
    tasks: int,  # launchers on a node
    requested: Mapping[str, object],
    program: Sequence[str],
    *,
    starter: str,  # who started them
    ranks_line: str,  # how tasks can be the ranks, before ``python``
    where: str,
    fix: str,
) -> Finding:
    """Return the finding that several launchers run on a node."""
    nproc = str(requested.get("nproc_per_node") or "")
    per_task, total = "all ranks of the node", ""
    if nproc.isdecimal():
        per_task = f"{nproc} rank{'s' * (nproc != '1')}"
        total = f": {tasks * int(nproc)} ranks a node"
    evidence: tuple[str, ...] = ()
    if program and program[0].endswith(".py"):
        line = command_line.write([], program).replace("paceline run", "python", 1)
        evidence = (f"{ranks_line} {line}",)
    return Finding(
        "double-launch",
        f"{starter} started {tasks} tasks on a node, and paceline run would start {per_task} in"
        f" each{total}",
        where=where,
        why=(
            "one paceline run on each node starts its ranks; several on a node take each other's"
            " GPUs and ports"
        ),
        fix=fix,
        evidence=evidence,
    )
