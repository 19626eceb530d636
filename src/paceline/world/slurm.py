"""Read the world of a task of a Slurm step from its variables. Pure.

A job's ``SLURM_*`` variables are never enough, because they also exist in ``salloc`` shells and
terminals of editors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from paceline import env
from paceline.errors import UsageError
from paceline.world.world import World, whole


def is_task(environ: Mapping[str, str], in_terminal: bool) -> bool:
    """Return whether this process is one of several tasks of a Slurm step."""
    # in a terminal of a step, nobody has started the other tasks
    in_task = env.STEP_ID in environ and not (environ.get(env.PTY_PORT) and in_terminal)
    return in_task and int(environ.get(env.STEP_NUM_TASKS, "1")) > 1


def world_of_task(environ: Mapping[str, str]) -> World:
    """Return the world of a task of a Slurm step.

    Raises UsageError if variables of the step are missing, or ``MASTER_PORT`` is not a number.
    """
    needed = (env.PROCID, env.LOCALID, env.NODEID, env.STEP_NUM_TASKS, env.STEP_NODELIST)
    missing = [name for name in needed if name not in environ]
    if missing:
        raise UsageError.of(
            "rank-env-missing",
            f"{', '.join(missing)} not set: this is not a task of a Slurm step",
            where="environment",
            fix="srun python script.py, or: export PACELINE_LAUNCHER=none",
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
        master_port=_port(environ),
        launcher="slurm",
        reason=(
            f"Slurm step {environ.get(env.JOB_ID, '?')}.{environ.get(env.STEP_ID, '?')} "
            f"with {world_size} tasks on {len(nodes)} nodes"
        ),
    )


def _port(environ: Mapping[str, str]) -> int:
    return whole(environ, env.MASTER_PORT) if environ.get(env.MASTER_PORT) else step_port(environ)


def step_port(environ: Mapping[str, str]) -> int:
    """Return the meeting port of a Slurm step, 15000 to 31999, the same in all its tasks."""
    # All tasks must agree without communication, so the port follows from job and step. The range
    # is below Linux's ephemeral ports (32768 and up), which outgoing connections may use.
    job, step = int(environ.get(env.JOB_ID, "0")), int(environ.get(env.STEP_ID, "0"))
    return 15000 + (job * 7919 + step * 104729) % 17000


def expand_nodelist(text: str) -> list[str]:
    """Expand a Slurm node list: ``rack[1,3]node[2-5]`` becomes the eight names, in Slurm's order.

    Raises ValueError if a bracket is not closed or a range is not numeric.
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
