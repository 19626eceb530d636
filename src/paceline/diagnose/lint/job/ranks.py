"""Compute the ranks of a launch, and the numbers of its training script for this launch."""

from __future__ import annotations

import re

from paceline.diagnose.lint.job.allocation import number
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch, argument, nnodes
from paceline.diagnose.lint.job.shell.values import constant
from paceline.diagnose.lint.program import ALL_GPUS, ARGUMENT, CONSTANT, VARIABLE, Number

_VISIBLE = re.compile(r"\d+(,\d+)*")


def resolve(case: Case, launch: Launch, expected: Number | None) -> int | None:
    """Return the value of a script's number under this launch, None if it is not certain."""
    if expected is None:
        return None
    if expected.kind == CONSTANT:
        return expected.value
    if expected.kind == ARGUMENT:
        return _of_argument(launch, expected)
    if expected.kind == ALL_GPUS:
        return visible_gpus(launch) or case.shape(launch).gpus
    return _of_variable(case, launch, expected.names[0]) if expected.kind == VARIABLE else None


def _of_argument(launch: Launch, expected: Number) -> int | None:
    match = argument(launch, [re.escape(form.lstrip("-")) for form in expected.names])
    if match is not None:
        return number(match[0]) if constant(match[0]) else None
    # The value may be among words that are not known, and the default is then a guess.
    has_unknown = launch.vague or launch.call.chained or any(arg.loose for arg in launch.arguments)
    return None if has_unknown else expected.value


def _of_variable(case: Case, launch: Launch, name: str) -> int | None:
    exported = launch.call.env.get(name)
    if isinstance(exported, str):
        return number(exported) if constant(exported) else None
    spread = case.shape(launch)
    directive = case.job.directives.last("ntasks-per-node")
    values = {
        "SLURM_NNODES": spread.nodes if launch.call.step else case.job.nodes,
        "SLURM_JOB_NUM_NODES": case.job.nodes,
        "SLURM_NTASKS_PER_NODE": number(directive.value) if directive else None,
        "SLURM_NTASKS": spread.tasks if launch.call.step else case.job.ntasks,
        "SLURM_GPUS_ON_NODE": case.job.gpus_per_node,
        "SLURM_CPUS_PER_TASK": case.job.cpus_per_task,
    }
    ranks = ranks_of(case, launch) if launch.spawns else None
    if ranks is not None:
        values |= {"LOCAL_WORLD_SIZE": ranks[0], "WORLD_SIZE": ranks[0] * ranks[1]}
    return values.get(name)


def visible_gpus(launch: Launch) -> int | None:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES, None if it is no list of numbers."""
    value = launch.call.env.get("CUDA_VISIBLE_DEVICES")
    return len(value.split(",")) if isinstance(value, str) and _VISIBLE.fullmatch(value) else None


def _launched_nodes(case: Case, launch: Launch) -> int | None:
    """Return the number of nodes of one run of a launcher, None if unknown."""
    if "standalone" in launch.options:
        return 1
    nodes_range = nnodes(launch)
    if nodes_range is not None:
        # An elastic number of nodes has no one world size to compare with.
        return nodes_range[0] if nodes_range[0] == nodes_range[1] else None
    if launch.kind == "paceline run" and launch.call.step is not None:
        return case.shape(launch).nodes  # it reads them from Slurm
    return None if "nnodes" in launch.says or launch.vague else 1


def ranks_of(case: Case, launch: Launch) -> tuple[int, int] | None:
    """Return the ranks per node and the nodes of one run, None if they are not certain."""
    spread = case.shape(launch)
    if launch.spawns:
        processes, nodes = case.processes(launch), _launched_nodes(case, launch)
        return (processes, nodes) if processes and nodes else None
    if launch.call.step is None:
        return 1, 1
    return (spread.tasks_per_node, spread.nodes) if spread.tasks_per_node and spread.nodes else None
