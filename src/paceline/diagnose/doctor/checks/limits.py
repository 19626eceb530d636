"""Check the limits of a process: shared memory, open files, stack, CPUs, disks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.doctor.checks.asked import run_container, version, visible_gpus
from paceline.diagnose.doctor.facts import Disk, Facts
from paceline.diagnose.doctor.render import size
from paceline.errors import Finding
from paceline.machine.ulimits import UNLIMITED

_GIB = 1 << 30
_FEW_FILES, _SMALL_FILES = 1024, 4096
_EMPTY_SHARED_MEMORY = (
    "ls -l /dev/shm: what runs that are gone have left there (nccl-*, torch_*) can be deleted"
)
_ANY_STACK = (2, 28)  # since this version NCCL copes with an unlimited stack


def judge_limits(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about limits: shared memory (/dev/shm), open files, stack, CPUs, disks."""
    yield from _shared_memory(facts)
    yield from _open_files(facts)
    yield from _stack(facts)
    yield from _cpus(facts)
    yield from _loaders(facts)
    for disk in facts.disks:
        yield from _disk(disk)


def _shared_memory(facts: Facts) -> Iterator[Finding]:
    """Yield the finding about a ``/dev/shm`` that is small or almost full."""
    total, free = facts.limits.shm_bytes, facts.limits.shm_free_bytes
    if total is None:
        return
    small = total < _GIB
    almost_full = free is not None and free < _GIB
    if not small and not almost_full:
        return
    several = len(visible_gpus(facts)) > 1
    container = facts.host.container
    yield Finding(
        "nccl-shm-too-small" if several else "dataloader-shm-too-small",
        f"shared memory (/dev/shm) has {size(total)}"
        + ("" if small else f", of which {size(free)} are free"),
        where=f"container ({container})" if container else "/dev/shm",
        evidence=(f"/dev/shm: {size(total)}, {size(free)} free",),
        why=(
            "NCCL's buffers between ranks and batches of DataLoader workers lie there: a run ends"
            " with a bus error"
            if several
            else "DataLoader workers put their batches there: they end with a bus error"
        ),
        fix=_larger_shared_memory(facts) if small else _EMPTY_SHARED_MEMORY,
        severity="warning",
    )


def _larger_shared_memory(facts: Facts) -> str:
    """Return how to enlarge ``/dev/shm`` in the environment of this process."""
    container = facts.host.container
    if container == "kubernetes":
        return (
            "mount an emptyDir with medium: Memory at /dev/shm in the pod; it counts as memory of"
            " the pod"
        )
    if container == "apptainer":
        return "apptainer exec without --contain and --containall: /dev/shm is then the machine's"
    if container:
        return f"{run_container(facts)} --shm-size=8g ... (or --ipc=host)"
    return "sudo mount -o remount,size=8G /dev/shm"


def _open_files(facts: Facts) -> Iterator[Finding]:
    soft, hard = facts.limits.open_files, facts.limits.open_files_hard
    enough = _SMALL_FILES if facts.gpus else _FEW_FILES
    if soft is None or soft == UNLIMITED or soft >= enough:
        return
    # Not the hard limit itself: where it is a billion, programs that close all files take minutes.
    reachable = 65_536 if hard in (None, UNLIMITED) else min(65_536, hard or 0)
    yield Finding(
        "too-many-open-files",
        f"a process may open {soft} files here",
        where="ulimit -n",
        why=(
            "connections of many ranks and tensors of DataLoader workers take a file each: Too many"
            " open files"
        ),
        fix=(
            f"ulimit -n {reachable} in the job script"
            if reachable > soft
            else (
                f"nofile in /etc/security/limits.conf ({run_container(facts)} --ulimit"
                " nofile=65536:65536 ...)"
            )
        ),
        severity="warning" if soft < _FEW_FILES else "hint",
    )


def _stack(facts: Facts) -> Iterator[Finding]:
    nccl = version(facts.software.nccl)
    if facts.limits.stack_bytes == UNLIMITED and facts.gpus and () != nccl < _ANY_STACK:
        yield Finding(
            "stack-unlimited",
            f"the stack has no limit, and NCCL {facts.software.nccl} is older than 2.28",
            where="ulimit -s",
            why=(
                "threads then get a stack of 2 MB from the C library, and NCCL may crash at its"
                " start"
            ),
            fix="ulimit -s 8192 in the job script",
            severity="warning",
        )


def _cpus(facts: Facts) -> Iterator[Finding]:
    limits, gpus = facts.limits, len(visible_gpus(facts))
    tasks = facts.host.mpi_tasks or facts.host.slurm_tasks or 1
    ranks = max(1, -(-gpus // tasks))  # of this process: one if there is a task for each GPU
    limited = 0 < limits.cpus < limits.total_cpus
    if not gpus or not limited or limits.cpus >= 2 * ranks:
        return
    yield Finding(
        "cpu-starved",
        f"{limits.cpus} of {limits.total_cpus} CPUs may be used, for "
        + ("a rank and its data" if ranks == 1 else f"{ranks} GPUs"),
        where=limits.cpus_reason or "CPU affinity",
        evidence=(
            f"CPUs: {limits.affinity or '?'} ({limits.cpus_reason or 'reason unknown'})",
            f"GPUs: {gpus}",
        ),
        why="ranks and their DataLoader workers share them: the GPUs wait for data",
        fix=_more_cpus(facts, 8 * ranks),
        severity="warning",
    )


def _more_cpus(facts: Facts, cpus: int) -> str:
    """Return how to get more CPUs, depending on what limits them here."""
    container = facts.host.container
    if facts.host.mpi_tasks:
        return f"mpirun --bind-to none, or --map-by slot:PE={cpus}: by default it binds to a core"
    if facts.host.slurm_step:
        return f"#SBATCH --cpus-per-task={cpus}, and srun --cpus-per-task=$SLURM_CPUS_PER_TASK"
    if container == "kubernetes":
        return f"in the pod: resources: limits: cpu: {cpus}"
    if container and container != "apptainer":
        return f"{run_container(facts)} --cpus={cpus} ..., or without --cpus and --cpuset-cpus"
    return "leave out what binds this process: taskset, numactl, a cgroup's quota"


def _loaders(facts: Facts) -> Iterator[Finding]:
    crowded = [group for group in facts.loaders if group.workers > group.cpus]
    if crowded:
        worst = max(crowded, key=lambda group: group.workers / max(1, group.cpus))
        yield Finding(
            "workers-exceed-cpus",
            f"{worst.workers} DataLoader workers of pid {worst.pid} share {worst.cpus} "
            + ("CPU" if worst.cpus == 1 else "CPUs"),
            where=f"pid {worst.pid}",
            evidence=tuple(
                f"pid {group.pid} ({group.command}): {group.workers} workers, {group.cpus} CPUs"
                for group in crowded[:8]
            ),
            why="workers that wait for a CPU make loading slower, not faster",
            fix=(
                f"num_workers={max(1, worst.cpus - 1)}, or more CPUs: srun"
                f" --cpus-per-task={worst.workers + 1} ..."
            ),
            severity="warning",
        )


def _disk(disk: Disk) -> Iterator[Finding]:
    """Yield the finding about a file system with little space, or with few files left."""
    full = _is_full(disk)
    few_files = disk.free_files is not None and disk.free_files < 1000
    if not full and not few_files:
        return
    space = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} are free"
    if full:
        what = space
        fix = f"df -h {disk.path}; du -xsh {disk.path}/* shows what takes the space"
    else:
        what = f"{disk.free_files} more files can be made, though {space}"
        fix = f"df -i {disk.path}; many small files use up its inodes"
    nothing_left = (full and disk.free_bytes < _GIB // 10) or disk.free_files == 0
    yield Finding(
        "disk-full",
        f"{disk.path}: {what}",
        where=disk.path,
        why="checkpoints, logs and temporary files are written there",
        fix=fix,
        severity="error" if nothing_left else "warning",
    )


def _is_full(disk: Disk) -> bool:
    """Return whether little of a disk is free, in bytes and also as a share of its size."""
    # A small disk (a tmpfs, a container's /tmp) may be meant to be small, and 50 GiB of a large one
    # are soon filled by checkpoints.
    used = 1 - disk.free_bytes / max(1, disk.total_bytes)
    if disk.free_bytes < _GIB:
        return used > 0.5
    return disk.free_bytes < 50 * _GIB and used > 0.98
