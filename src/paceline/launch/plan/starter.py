"""Choose the defaults of a run's options from what started this launcher. Pure.

The nearest starter counts: mpirun before the Slurm step in which its daemons run, a step before the
pod or job around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.launch.plan import batch_job, mpi_start, pod_start, slurm_step
from paceline.launch.plan.starter_defaults import StarterDefaults
from paceline.world import is_pod, read_batch_job, read_mpi_task, read_pod


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
        return pod_start.choose_defaults(read_pod(environ), requested=requested)
    job = read_batch_job(environ, read_file=surroundings.read_file)
    if job is None:
        return StarterDefaults()
    return batch_job.choose_defaults(
        job,
        environ,
        requested=requested,
        program=program,
        host_name=surroundings.host_name,
    )
