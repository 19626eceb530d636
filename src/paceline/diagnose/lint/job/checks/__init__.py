"""The checks of a job script: each takes a case and yields findings.

array        check job arrays: elements that share one run folder
batch_ranks  check ranks that the batch script fills in, where each task needs its own
directives   check #SBATCH directives: options that Slurm ignores, does not know, or reads
             differently
environment  check the environment of programs: Python environments, network settings,
             variables of NCCL and torch
program      check a job against the training script that it starts: ranks, devices, CPUs,
             address, downloads
rendezvous   check the rendezvous of several nodes: number of nodes, node rank, master address,
             endpoint, port
resources    check the GPUs and CPUs of a job against its processes
shell        check the shell code of a job script: line continuations, quotes, unset variables
signals      check what ends a job: signals that do not reach the program, background programs,
             ``wait``
start        check where and how often programs start: srun, tasks and launchers
submit       check job scripts inside scripts (``sbatch <<EOF``, ``sbatch --wrap``): variables
             expanded too early
tasks        check the number of tasks of a job against its nodes, its GPUs and the program's
             options
"""

from __future__ import annotations

from paceline.diagnose.lint.job.checks import (
    array,
    batch_ranks,
    directives,
    environment,
    program,
    rendezvous,
    resources,
    shell,
    signals,
    start,
    submit,
    tasks,
)

__all__ = ["CHECKS"]

CHECKS = tuple(
    check
    for module in (
        directives,
        start,
        tasks,
        resources,
        rendezvous,
        batch_ranks,
        shell,
        signals,
        environment,
        array,
        program,
        submit,
    )
    for check in module.CHECKS
)
