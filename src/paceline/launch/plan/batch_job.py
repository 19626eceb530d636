"""Choose options from a job of PBS or LSF, as far as its variables go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.launch.plan.starter_defaults import LSF, StarterDefaults
from paceline.launch.plan.typed_nodes import (
    is_alone,
    most_nodes,
    other_number,
    without_node_options,
)
from paceline.world import BatchJob, port_of


def choose_defaults(
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
    job: BatchJob,
    environ: Mapping[str, str],
    *,
    requested: Mapping[str, object],
    host_name: str,
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
        values=_values(job, environ, requested, names.index(_short(host_name))),
        source=f"{job.name}: {num_hosts} hosts, head {job.hosts[0]}",
        shared_output=True,
        starter=LSF,
        port_reason="the job's number",
        hosts=job.hosts,
    )


def _values(
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
