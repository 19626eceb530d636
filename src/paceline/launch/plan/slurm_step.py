"""Read the Slurm step of this launcher from its variables, and choose options from it. Pure.

Only the variables of a step count: those of a job also exist in ``salloc`` shells and in the
terminals of editors, where no launcher runs on the other nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.launch.plan.starter_defaults import SLURM, StarterDefaults
from paceline.launch.plan.typed_nodes import (
    launched_twice,
    other_number,
    other_rank,
    without_node_options,
)
from paceline.text.quoting import bracketed
from paceline.world import expand_counts, expand_nodelist, step_port

# Ids from here on are special steps, such as the batch script and the interactive step.
_NO_STEP = 0xFFFFFF00


@dataclass(frozen=True)
class SlurmStep:
    """The Slurm step that this process is a task of."""

    job: str  # id of its job
    number: str  # id of the step
    nodes: tuple[str, ...]  # names of its nodes, in Slurm's order
    node_rank: int  # index of this node
    tasks: tuple[int, ...]  # number of tasks on each node
    task: int  # index of this task in the step
    gpus: tuple[str, ...] = ()  # GPUs that the step has on this node, as Slurm numbers them

    @property
    def name(self) -> str:
        """The step as it is called in messages."""
        return f"Slurm step {self.job}.{self.number}"


def read_step(environ: Mapping[str, str], *, in_terminal: bool = False) -> SlurmStep | None:
    """Return the step of which this process is a task.

    The result is None outside a step, and in the terminal of ``srun --pty``. The variable of ``srun
    --pty`` alone proves nothing, because everything that starts in that shell inherits it, srun
    included. Raises UsageError if Slurm's variables contradict each other, for example because some
    were set manually.
    """
    number = environ.get(env.STEP_ID, "")
    is_terminal = in_terminal and bool(environ.get(env.PTY_PORT))
    if not number.isdigit() or int(number) >= _NO_STEP or is_terminal:
        return None
    names = (env.JOB_ID, env.STEP_NODELIST, env.STEP_TASKS_PER_NODE, env.NODEID, env.PROCID)
    missing = [name for name in names if not environ.get(name)]
    try:
        if missing:
            raise ValueError(f"{', '.join(missing)} not set, although {env.STEP_ID}={number} is")
        nodes = tuple(expand_nodelist(environ[env.STEP_NODELIST]))
        tasks = tuple(expand_counts(environ[env.STEP_TASKS_PER_NODE]))
        node_rank, task = int(environ[env.NODEID]), int(environ[env.PROCID])
        if not node_rank < len(nodes) == len(tasks):
            raise ValueError(
                f"{env.NODEID}={node_rank}, {env.STEP_NODELIST}={environ[env.STEP_NODELIST]} and"
                f" {env.STEP_TASKS_PER_NODE}={environ[env.STEP_TASKS_PER_NODE]} do not fit each"
                " other"
            )
    except ValueError as error:
        raise UsageError.of(
            "rank-env-missing",
            f"the variables of the Slurm step cannot be used: {error}",
            where="environment",
            fix=(
                "start paceline run by srun itself, with its environment as it is; or use none"
                " of it: --no-slurm"
            ),
        ) from None
    gpus = tuple(filter(None, environ.get(env.STEP_GPUS, "").split(",")))
    return SlurmStep(environ[env.JOB_ID], number, nodes, node_rank, tasks, task, gpus)


def choose_defaults(
    environ: Mapping[str, str],
    *,
    requested: Mapping[str, object],  # typed or inherited from torchrun's variables, as text
    program: Sequence[str],  # for lines to paste
    # of a node by its name in Slurm; called for the first one only
    address_of: Callable[[str], str],
    in_terminal: bool = False,  # this process has a terminal
) -> StarterDefaults:
    """Return the defaults of a run's options from Slurm.

    Raises UsageError if the step, or the lack of one, does not fit the options.
    """
    job = environ.get(env.JOB_ID, "")
    if not job:
        return StarterDefaults()
    if requested.get("no_slurm"):
        return StarterDefaults(source=f"Slurm job {job} seen, not used (--no-slurm)")
    step = read_step(environ, in_terminal=in_terminal)
    if step is None:
        return _without_step(job, environ, requested=requested, program=program)
    if _each_task_is_a_node(step, requested):
        # the GPUs of one task are unknown
        return StarterDefaults(source=f"{step.name}, each task a node", starter=SLURM)
    if max(step.tasks) > 1:
        raise UsageError(_double_launch(step, requested, program))
    if len(step.nodes) == 1:
        num_nodes = environ.get(env.JOB_NUM_NODES) or "1"
        more = f", one of the job's {num_nodes} nodes" if num_nodes != "1" else ""
        return StarterDefaults(source=step.name + more, num_gpus=len(step.gpus), starter=SLURM)
    if requested.get("standalone"):
        alone = f": each of its {len(step.nodes)} nodes alone (--standalone)"
        return StarterDefaults(source=step.name + alone, num_gpus=len(step.gpus), starter=SLURM)
    _compare(step, requested)
    return StarterDefaults(
        values=_values(step, environ, requested, address_of),
        source=f"{step.name}: {environ[env.STEP_NODELIST]}, head {step.nodes[0]}",
        num_gpus=len(step.gpus),
        shared_output=True,
        starter=SLURM,
    )


def reachable(
    environ: Mapping[str, str],
    requested: Mapping[str, Any],
    *,
    address_of: Callable[[str], str],  # of a node by its name in Slurm
) -> dict[str, Any]:
    """Return options in which the first node has an address that other nodes can reach.

    Job scripts use its name in Slurm, which may not resolve.
    """
    options = dict(requested)
    if not environ.get(env.JOB_ID) or options.get("no_slurm"):
        return options
    if options.get("master_addr"):
        options["master_addr"] = address_of(str(options["master_addr"]))
    head, colon, port = str(options.get("rdzv_endpoint") or "").partition(":")
    if head and ":" not in port and not head.startswith("["):
        options["rdzv_endpoint"] = bracketed(address_of(head)) + colon + port
    return options


def _values(
    step: SlurmStep,
    environ: Mapping[str, str],
    requested: Mapping[str, object],
    address_of: Callable[[str], str],
) -> dict[str, str]:
    values = {"nnodes": str(len(step.nodes))}
    dynamic = str(requested.get("rdzv_backend") or "static") != "static"
    if not dynamic:
        values["node_rank"] = str(step.node_rank)
    if requested.get("rdzv_endpoint") or requested.get("master_addr"):
        return values
    head, port = address_of(step.nodes[0]), str(requested.get("master_port") or step_port(environ))
    if dynamic:
        return {**values, "rdzv_endpoint": f"{bracketed(head)}:{port}"}
    return {**values, "master_addr": head, "master_port": port}


def _each_task_is_a_node(step: SlurmStep, requested: Mapping[str, object]) -> bool:
    """Return whether the user counts tasks as nodes: right if each task has its own GPUs."""
    counts_tasks = str(requested.get("nnodes", "")) == str(sum(step.tasks))
    ranks_tasks = str(requested.get("node_rank", "")) == str(step.task)
    return max(step.tasks) > 1 and counts_tasks and ranks_tasks


def _double_launch(
    step: SlurmStep, requested: Mapping[str, object], program: Sequence[str]
) -> Finding:
    line = srun(len(step.nodes), words=without_node_options(requested, program))
    return launched_twice(
        max(step.tasks),
        requested,
        program,
        starter="Slurm",
        ranks_line="for Session, Trainer and Lightning tasks can be the ranks: srun",
        where=f"{step.name}, tasks per node {_counts(step.tasks)}",
        fix=f"#SBATCH --ntasks-per-node=1, or: {line}",
    )


def _counts(tasks: Sequence[int]) -> str:
    return str(tasks[0]) if len(set(tasks)) == 1 else ",".join(map(str, tasks))


def _compare(step: SlurmStep, requested: Mapping[str, object]) -> None:
    """Refuse typed numbers that contradict Slurm's."""
    where = f"{step.nodes[step.node_rank]}, {step.name} on {len(step.nodes)} nodes"
    starter = f"Slurm runs this step on {len(step.nodes)} nodes"
    number = other_number(requested, len(step.nodes), where=where, starter=starter)
    contradicted = number or other_rank(requested, step.node_rank, where=where, starter="srun")
    if contradicted:
        raise UsageError(contradicted)


def _without_step(
    job: str, environ: Mapping[str, str], *, requested: Mapping[str, object], program: Sequence[str]
) -> StarterDefaults:
    """Return the source outside a step, where no default is used."""
    text = environ.get(env.JOB_NUM_NODES, "1")
    num_nodes = int(text) if text.isdigit() else 1
    most_nodes = str(requested.get("nnodes") or "").rpartition(":")[2]
    if num_nodes == 1:
        return StarterDefaults(source=f"Slurm job {job} seen, nothing taken from it")
    if requested.get("standalone") or most_nodes == "1":
        return StarterDefaults(source=f"Slurm job {job} has {num_nodes} nodes, one is used")
    if str(requested.get("node_rank") or "0") != "0":
        # started on this node by other means than srun
        return StarterDefaults(source=f"Slurm job {job} seen, not used (--node-rank)")
    # the terminal of `srun --pty` is a step that has all resources of the job
    shares = environ.get(env.STEP_ID, "").isdigit() and int(environ[env.STEP_ID]) < _NO_STEP
    line = srun(
        num_nodes,
        cpus=_cpus(environ),
        words=without_node_options(requested, program),
        overlap=shares,
    )
    raise UsageError.of(
        "missing-srun",
        f"the job has {num_nodes} nodes, and paceline run was started on this one only, without"
        " srun",
        where=f"Slurm job {job} on {environ.get(env.JOB_NODELIST) or f'{num_nodes} nodes'}",
        why="the other nodes would never be heard of, or would stand idle until the end of the job",
        fix=line,
        evidence=(
            (
                "on this node alone: paceline run --nnodes 1 ...; started on each by other"
                " means: --no-slurm"
            ),
        ),
    )


def _cpus(environ: Mapping[str, str]) -> int:
    """Return the job's CPUs on each node; without an option srun gives a task one."""
    try:
        return min(expand_counts(environ.get(env.JOB_CPUS_PER_NODE, "")), default=0)
    except ValueError:
        return 0


def srun(num_nodes: int, *, words: str, cpus: int = 0, overlap: bool = False) -> str:
    """Return the line that starts one ``paceline run`` on each node.

    0 ``cpus`` is Slurm's default; ``overlap`` shares the nodes with another step.
    """
    tasks = (
        f"srun --nodes={num_nodes} --ntasks={num_nodes} --ntasks-per-node=1 "
        + "--overlap " * overlap
    )
    return tasks + (f"--cpus-per-task={cpus} " if cpus else "") + words


def granted_cpus(environ: Mapping[str, str]) -> int | None:
    """Return the CPUs that Slurm gives each task of this step; None outside a step or if unknown.

    Where tasks are not confined (``TaskPlugin=task/none``) this is the only limit. Since Slurm
    22.05 srun does not inherit ``--cpus-per-task`` from the job, but its tasks still have the job's
    variable.
    """
    text = environ.get(env.CPUS_PER_TASK, "")
    return int(text) if env.STEP_ID in environ and re.fullmatch("[1-9][0-9]*", text) else None


def dropped_cpus(environ: Mapping[str, str], usable: int) -> Finding | None:
    """Return the warning that this task may use fewer CPUs than the job requested, else None."""
    granted = granted_cpus(environ)
    if granted is None or granted <= usable:
        return None
    return Finding(
        "cpus-too-few",
        f"this task may use {usable} CPU{'s' * (usable != 1)}, and the job asked for {granted} for"
        " each",
        where=f"Slurm step {environ.get(env.JOB_ID, '?')}.{environ[env.STEP_ID]}",
        why="from Slurm 22.05 on srun does not take --cpus-per-task over from the job",
        fix=f"srun --cpus-per-task={granted} ..., or: export SRUN_CPUS_PER_TASK={granted}",
        severity="warning",
    )
