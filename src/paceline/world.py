"""Determine the world size and the rank of this process from the launcher's variables.

Pure: takes a mapping, returns a frozen value with the reason. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding, UsageError, closest

LAUNCHERS = ("paceline", "torchrun", "slurm", "none")


@dataclass(frozen=True)
class World:
    """The ranks of a run, as one of them sees it.

    Attributes:
        rank: Global rank, 0 to ``world_size - 1``.
        world_size: Number of ranks.
        local_rank: Rank on this node.
        local_world_size: Number of ranks on this node.
        node_rank: Rank of this node.
        num_nodes: Number of nodes.
        master_addr: Address of the store where ranks meet; empty in a world of one.
        master_port: Port of that store; 0 in a world of one.
        launcher: ``"paceline"``, ``"torchrun"``, ``"slurm"`` or ``"none"``.
        reason: Which variables were used and why, one line to print.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    master_addr: str = ""
    master_port: int = 0
    launcher: str = "none"
    reason: str = "no launcher: a world of one"


def from_environ(environ: Mapping[str, str], *, in_terminal: bool = False) -> World:
    """Return the world that ``environ`` describes.

    ``PACELINE_LAUNCHER`` decides if it is set. Otherwise torchrun's variables, which paceline's
    launcher sets too, take precedence over a Slurm step with more than one task. A job's
    ``SLURM_*`` variables are never enough, because they also exist in ``salloc`` shells and
    terminals of editors.

    Args:
        environ: The environment.
        in_terminal: Whether a person types here, which distinguishes the shell of ``srun --pty``
            from the tasks that srun starts in it.

    Raises:
        UsageError: The value of ``PACELINE_LAUNCHER`` is unknown, or required variables are
            missing.
    """
    requested = environ.get(env.LAUNCHER, "")
    if requested not in ("", *LAUNCHERS):
        raise UsageError(_unknown_launcher(requested))
    if requested == "none":
        return World(reason="PACELINE_LAUNCHER=none: a world of one")
    if requested == "slurm":
        return _from_slurm(environ)
    if requested or env.RANK in environ:
        return _from_torchrun(environ, requested)
    if _in_step(environ, in_terminal):
        return _from_slurm(environ)
    return World()


def _unknown_launcher(requested: str) -> Finding:
    near = closest(requested, LAUNCHERS)
    return Finding(
        "option-invalid",
        f"PACELINE_LAUNCHER={requested} is not one of {', '.join(LAUNCHERS)}",
        where=f"environment variable {env.LAUNCHER}",
        fix=f"export PACELINE_LAUNCHER={near or 'none'}",
    )


def _in_step(environ: Mapping[str, str], in_terminal: bool) -> bool:
    # in a terminal of a step, nobody has started the other tasks
    in_task = env.STEP_ID in environ and not (environ.get(env.PTY_PORT) and in_terminal)
    return in_task and int(environ.get(env.STEP_NUM_TASKS, "1")) > 1


def _from_torchrun(environ: Mapping[str, str], requested: str) -> World:
    needed = (env.RANK, env.WORLD_SIZE, env.LOCAL_RANK, env.MASTER_ADDR, env.MASTER_PORT)
    missing = [name for name in needed if name not in environ]
    if missing:
        why = f"PACELINE_LAUNCHER={requested}" if requested else "RANK is"
        raise UsageError(
            Finding(
                "rank-env-missing",
                f"{', '.join(missing)} not set, although {why}",
                where="environment",
                fix="start the script with: paceline run script.py",
            )
        )
    world_size = int(environ[env.WORLD_SIZE])
    is_ours = env.RUN_TOKEN in environ
    starter = "paceline run" if is_ours else "torchrun"
    source = f"and PACELINE_LAUNCHER={requested}" if requested else f"by {starter}"
    return World(
        rank=int(environ[env.RANK]),
        world_size=world_size,
        local_rank=int(environ[env.LOCAL_RANK]),
        local_world_size=int(environ.get(env.LOCAL_WORLD_SIZE, world_size)),
        node_rank=int(environ.get(env.GROUP_RANK, "0")),
        num_nodes=int(environ.get(env.GROUP_WORLD_SIZE, "1")),
        master_addr=environ[env.MASTER_ADDR],
        master_port=int(environ[env.MASTER_PORT]),
        launcher=requested or ("paceline" if is_ours else "torchrun"),
        reason=f"RANK and WORLD_SIZE={world_size} are set {source}",
    )


def _from_slurm(environ: Mapping[str, str]) -> World:
    needed = (env.PROCID, env.LOCALID, env.NODEID, env.STEP_NUM_TASKS, env.STEP_NODELIST)
    missing = [name for name in needed if name not in environ]
    if missing:
        raise UsageError(
            Finding(
                "rank-env-missing",
                f"{', '.join(missing)} not set: this is not a task of a Slurm step",
                where="environment",
                fix="srun python script.py, or: export PACELINE_LAUNCHER=none",
            )
        )
    nodes = expand_nodelist(environ[env.STEP_NODELIST])
    node_rank = int(environ[env.NODEID])
    world_size = int(environ[env.STEP_NUM_TASKS])
    tasks = expand_counts(environ.get(env.STEP_TASKS_PER_NODE, ""))
    local = tasks[node_rank] if node_rank < len(tasks) else world_size // max(1, len(nodes))
    return World(
        rank=int(environ[env.PROCID]),
        world_size=world_size,
        local_rank=int(environ[env.LOCALID]),
        local_world_size=local,
        node_rank=node_rank,
        num_nodes=len(nodes),
        master_addr=environ.get(env.MASTER_ADDR) or nodes[0],
        master_port=int(environ.get(env.MASTER_PORT) or step_port(environ)),
        launcher="slurm",
        reason=(
            f"Slurm step {environ.get(env.JOB_ID, '?')}.{environ.get(env.STEP_ID, '?')} "
            f"with {world_size} tasks on {len(nodes)} nodes"
        ),
    )


def step_port(environ: Mapping[str, str]) -> int:
    """Return the meeting port of a Slurm step, 15000 to 31999, the same in all its tasks."""
    # All tasks must agree without communication, so the port follows from job and step. The range
    # is below Linux's ephemeral ports (32768 and up), which outgoing connections may use.
    job, step = int(environ.get(env.JOB_ID, "0")), int(environ.get(env.STEP_ID, "0"))
    return 15000 + (job * 7919 + step * 104729) % 17000


def expand_nodelist(text: str) -> list[str]:
    """Expand a Slurm node list: ``rack[1,3]node[2-5]`` becomes the eight names, in Slurm's order.

    Raises:
        ValueError: A bracket is not closed or a range is not numeric.
    """
    return [name for part in _split_outside_brackets(text) for name in _expand_one(part)]


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    if depth != 0:
        raise ValueError(f"node list with an open bracket: {text!r}")
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _expand_one(name: str) -> Iterator[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", name)
    if not match:
        yield name
        return
    head, ranges, tail = match.groups()
    for number in ranges.split(","):
        for value in _expand_range(number):
            for rest in _expand_one(tail):
                yield head + value + rest


def _expand_range(text: str) -> Iterator[str]:
    first, dash, last = text.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise ValueError(f"not a range of a node list: {text!r}")
    width = len(first)
    for value in range(int(first), int(last or first) + 1):
        yield f"{value:0{width}d}"


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's counts per node: ``2(x3),1`` becomes ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise ValueError(f"not a list of counts per node: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
