"""Choose the defaults of a run's options from what started this launcher. Pure.

The nearest starter counts: mpirun before the Slurm step in which its daemons run, a step before the
pod or job around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.launch.plan import mpi_start, slurm_step
from paceline.launch.plan.starter_defaults import LSF, POD, StarterDefaults
from paceline.launch.plan.typed_nodes import (
    is_alone,
    most_nodes,
    other_number,
    without_node_options,
)
from paceline.world import BatchJob, Pod, is_pod, port_of, read_batch_job, read_mpi_task, read_pod


@dataclass(frozen=True)
class StarterSurroundings:
    """What is known on this machine only."""

    address_of: Callable[[str], str]  # returns the address of a node by its name in Slurm
    # raises UsageError if an address, which comes from the given source, does not mean this machine
    require_head_here: Callable[[str, str], None]
    read_file: Callable[[str], str]  # returns the text of a file; empty if it cannot be read
    host_name: str  # name of this host
    in_terminal: bool = False  # whether this process has a terminal


def choose_defaults(
    environ: Mapping[str, str],
    *,
    requested: Mapping[str, object],  # typed or inherited from torchrun's variables, as text
    program: Sequence[str],  # for lines to paste
    surroundings: StarterSurroundings,  # what is known on this machine only
) -> StarterDefaults:
    """Return the defaults of a run's options from its starter.

    Raises UsageError if what the starter says does not fit the options, or contradicts itself.
    """
    task = read_mpi_task(environ)
    if task is not None and task.size > 1 and not task.is_of_step(environ):
        return mpi_start.choose_defaults(
            task,
            environ,
            requested=requested,
            program=program,
            require_head_here=surroundings.require_head_here,
            address_of=surroundings.address_of,
        )
    if environ.get(env.JOB_ID):
        return slurm_step.choose_defaults(
            environ,
            requested=requested,
            program=program,
            address_of=surroundings.address_of,
            in_terminal=surroundings.in_terminal,
        )
    if is_pod(environ):
        return pod_defaults(read_pod(environ), requested=requested)
    job = read_batch_job(environ, read_file=surroundings.read_file)
    if job is None:
        return StarterDefaults()
    return batch_defaults(
        job, environ, requested=requested, program=program, host_name=surroundings.host_name
    )


# Choose options from the pod of Kubernetes that this launcher is in.


def pod_defaults(pod: Pod | None, *, requested: Mapping[str, object]) -> StarterDefaults:
    """Return the defaults of a run's options from its pod; None if nothing says which one it is.

    Raises UsageError if ``--nnodes`` does not allow the number of pods.
    """
    if is_alone(requested):
        return StarterDefaults()
    if pod is None:
        return StarterDefaults(starter=POD)
    if pod.count:
        where, starter = f"pod, {pod.source}", f"there are {pod.count} pods"
        contradicted = other_number(requested, pod.count, where=where, starter=starter)
        if contradicted:
            raise UsageError(contradicted)
    nodes = most_nodes(requested) or (str(pod.count) if pod.count else "")
    if not nodes and pod.index is not None:
        return StarterDefaults(source=f"{pod.name}, alone: nothing says how many there are")
    if nodes in ("", "1"):
        return StarterDefaults(starter=POD)
    hosts = pod.host_names(int(nodes)) if nodes.isdecimal() else []
    return StarterDefaults(
        values=_values(pod, requested),
        source=f"{pod.name} ({pod.source})" if pod.index is not None else "",
        starter=POD,
        port_reason="MASTER_PORT",
        hosts=tuple(hosts),
    )


def _values(pod: Pod, requested: Mapping[str, object]) -> dict[str, str]:
    values = {"nnodes": str(pod.count)} if pod.count else {}
    if str(requested.get("rdzv_backend") or "static") != "static":
        return values
    if pod.index is not None:
        values["node_rank"] = str(pod.index)
    if pod.master_addr and not (requested.get("rdzv_endpoint") or requested.get("master_addr")):
        values["master_addr"] = pod.master_addr
        if pod.master_port:
            values["master_port"] = str(pod.master_port)
    return values


# Choose options from a job of PBS or LSF, as far as its variables go.


def batch_defaults(
    job: BatchJob,
    environ: Mapping[str, str],
    *,
    requested: Mapping[str, object],  # typed or inherited from torchrun's variables, as text
    program: Sequence[str],  # for lines to paste
    host_name: str,
) -> StarterDefaults:
    """Return the defaults of a run's options from its job.

    Raises UsageError if blaunch has started several launchers on a host, or ``--nnodes`` does not
    allow the number of hosts.
    """
    if is_alone(requested):
        return StarterDefaults(source=f"{job.name} seen, nothing taken from it")
    if environ.get(env.LSF_TASK) and len(job.hosts) > 1:
        return _of_blaunch(job, environ, requested=requested, host_name=host_name)
    if most_nodes(requested):
        return StarterDefaults(values=_node_rank(environ, requested), source=f"{job.name} seen")
    if len(job.hosts) < 2:
        return StarterDefaults(source=f"{job.name} seen, nothing taken from it")
    return StarterDefaults(
        source=f"{job.name} has {len(job.hosts)} hosts, one is used",
        warnings=(_one_of_several(job, requested, program),),
    )


def _of_blaunch(
    job: BatchJob, environ: Mapping[str, str], *, requested: Mapping[str, object], host_name: str
) -> StarterDefaults:
    """Return the defaults of a task of blaunch, which knows the hosts of its job."""
    number, num_hosts = environ[env.LSF_TASK], len(job.hosts)
    where = f"{job.name}, task {number} of blaunch on {host_name}"
    if number.isdecimal() and int(number) > num_hosts:
        raise UsageError(_double_launch(job, where))
    names = [_short(host) for host in job.hosts]
    if _short(host_name) not in names:
        return StarterDefaults(source=f"{job.name} seen, which does not name this host")
    starter = f"blaunch started it on {num_hosts} hosts"
    contradicted = other_number(requested, num_hosts, where=where, starter=starter)
    if contradicted:
        raise UsageError(contradicted)
    return StarterDefaults(
        values=_batch_values(job, environ, requested, names.index(_short(host_name))),
        source=f"{job.name}: {num_hosts} hosts, head {job.hosts[0]}",
        shared_output=True,
        starter=LSF,
        port_reason="the job's number",
        hosts=job.hosts,
    )


def _batch_values(
    job: BatchJob, environ: Mapping[str, str], requested: Mapping[str, object], node_rank: int
) -> dict[str, str]:
    values = {"nnodes": str(len(job.hosts))}
    if str(requested.get("rdzv_backend") or "static") != "static":
        return values
    values["node_rank"] = str(node_rank)
    if requested.get("rdzv_endpoint") or requested.get("master_addr"):
        return values
    port = environ.get(env.MASTER_PORT) or port_of(job.name)
    values["master_addr"] = environ.get(env.MASTER_ADDR) or job.hosts[0]
    values["master_port"] = str(requested.get("master_port") or port)
    return values


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _double_launch(job: BatchJob, where: str) -> Finding:
    return Finding(
        "double-launch",
        f"blaunch started more tasks than the {len(job.hosts)} hosts of the job, and each is a"
        " paceline run, which starts all ranks of its host",
        where=where,
        why="without host names blaunch starts one task for each slot",
        fix=f'blaunch -z "{" ".join(job.hosts)}" paceline run ...',
    )


def _node_rank(environ: Mapping[str, str], requested: Mapping[str, object]) -> dict[str, str]:
    """Return the node rank of what pbsdsh started; empty if it is typed or not needed."""
    number = environ.get(env.PBS_NODE_NUMBER, "")
    is_static = str(requested.get("rdzv_backend") or "static") == "static"
    return {"node_rank": number} if number.isdecimal() and is_static else {}


def _one_of_several(
    job: BatchJob, requested: Mapping[str, object], program: Sequence[str]
) -> Finding:
    line = without_node_options(requested, program)
    fix = f"mpirun -npernode 1 --bind-to none {line}"
    if job.name.startswith("LSF"):
        fix = f'blaunch -z "{" ".join(job.hosts)}" {line}'
    return Finding(
        "missing-srun",
        f"the job has {len(job.hosts)} hosts, and paceline run was started on this one only",
        where=job.name,
        why="the other hosts stand idle until the end of the job",
        fix=f"{fix}; on this one alone: --nnodes 1",
        severity="warning",
    )
