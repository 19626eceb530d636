"""Choose options from the task of mpirun that this launcher is: one task on each node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.launch.plan.starter_defaults import MPI, StarterDefaults
from paceline.launch.plan.typed_nodes import (
    is_alone,
    launched_twice,
    other_number,
    other_rank,
    without_node_options,
)
from paceline.text.quoting import bracketed
from paceline.world import MpiTask, head_unknown


def choose_defaults(
    task: MpiTask,
    environ: Mapping[str, str],
    *,
    requested: Mapping[str, object],  # typed or inherited from torchrun's variables, as text
    program: Sequence[str],  # for lines to paste
    # raises UsageError if an address, with its source, is elsewhere
    require_head_here: Callable[[str, str], None],
    address_of: Callable[[str], str],  # of a node by its name in Slurm, which may not resolve
) -> StarterDefaults:
    """Return the defaults of a run's options from mpirun.

    Raises UsageError if the tasks do not fit the options, or nothing says where the first one is.
    """
    if is_alone(requested):
        option = "--standalone" if requested.get("standalone") else "--nnodes 1"
        return StarterDefaults(source=f"{task.starter}: each of {task.size} tasks alone ({option})")
    if _each_task_is_a_node(task, requested):
        return StarterDefaults(source=f"{task.starter}, each task a node", starter=MPI)
    _refuse_other_nodes(task, requested, program)
    head, source = "", ""
    if not (requested.get("master_addr") or requested.get("rdzv_endpoint")):
        head, source = _head(task, environ, require_head_here)
    if environ.get(env.JOB_ID) and head:
        head = address_of(head)
    return StarterDefaults(
        values=_values(task, environ, requested, head),
        source=f"{task.starter}, {task.size} tasks" + f", head {source}" * bool(source),
        shared_output=True,
        starter=MPI,
        port_reason=_port_reason(task, environ),
    )


def _refuse_other_nodes(
    task: MpiTask, requested: Mapping[str, object], program: Sequence[str]
) -> None:
    """Refuse several launchers on a node, and typed nodes that contradict mpirun."""
    if task.local_size > 1:
        raise UsageError(_double_launch(task, requested, program))
    where = f"{task.starter}, task {task.rank} of {task.size}"
    starter = f"{task.starter} started {task.size} tasks, one on each node"
    number = other_number(requested, task.size, where=where, starter=starter)
    contradicted = number or other_rank(requested, task.rank, where=where, starter="mpirun")
    if contradicted:
        raise UsageError(contradicted)


def _head(
    task: MpiTask, environ: Mapping[str, str], require_head_here: Callable[[str, str], None]
) -> tuple[str, str]:
    """Return the head, and where it comes from if nobody has said it; refuse an unknown one."""
    if environ.get(env.MASTER_ADDR):
        return environ[env.MASTER_ADDR], ""
    if not task.head:
        raise UsageError(head_unknown(task))
    if task.rank == 0:
        require_head_here(task.head, task.head_source)
    return task.head, task.head_source


def _values(
    task: MpiTask, environ: Mapping[str, str], requested: Mapping[str, object], head: str
) -> dict[str, str]:
    values = {"nnodes": str(task.size)}
    dynamic = str(requested.get("rdzv_backend") or "static") != "static"
    if not dynamic:
        values["node_rank"] = str(task.rank)
    if not head:
        return values
    own_port = environ.get(env.MASTER_PORT) or task.port
    port = str(requested.get("master_port") or own_port)
    if dynamic:
        return {**values, "rdzv_endpoint": f"{bracketed(head)}:{port}"}
    return {**values, "master_addr": head, "master_port": port}


def _port_reason(task: MpiTask, environ: Mapping[str, str]) -> str:
    if environ.get(env.MASTER_PORT):
        return env.MASTER_PORT
    return "the number of mpirun's start" if task.start_id else "torch's default"


def _each_task_is_a_node(task: MpiTask, requested: Mapping[str, object]) -> bool:
    """Return whether the user counts tasks as nodes: right if each task has its own GPUs."""
    counts_tasks = str(requested.get("nnodes", "")) == str(task.size)
    ranks_tasks = str(requested.get("node_rank", "")) == str(task.rank)
    return task.local_size > 1 and counts_tasks and ranks_tasks


def _double_launch(
    task: MpiTask, requested: Mapping[str, object], program: Sequence[str]
) -> Finding:
    return launched_twice(
        task.local_size,
        requested,
        program,
        starter=task.starter,
        ranks_line="for Session and Trainer tasks can be the ranks: mpirun ...",
        where=f"task {task.rank} of {task.size}",
        fix=f"{task.one_per_node} {without_node_options(requested, program)}",
    )


def bound_cpus(environ: Mapping[str, str], *, usable: int, installed: int) -> Finding | None:
    """Return the warning that mpirun has bound this launcher, and so its ranks, to a few CPUs.

    Open MPI binds each of up to two tasks on a node to a core, and more to a package
    (``mpirun(1)``, "Mapping, Ranking, and Binding").
    """
    if not environ.get(env.OMPI_BOUND) or usable >= installed:
        return None
    return Finding(
        "cpus-too-few",
        f"mpirun bound this launcher to {usable} of {installed} CPUs, and its ranks share"
        f" {'it' if usable == 1 else 'them'}",
        where="mpirun of Open MPI",
        why="without an option it binds the first two tasks of a node to a core each",
        fix="mpirun --bind-to none ...",
        severity="warning",
    )
