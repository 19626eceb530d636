"""Choose the world of this process from the variables of what started it. Pure.

Several launchers can have left variables: a job's, a shell's, a pod's, mpirun's. Those nearest to
this process count, and where two contradict each other there is a finding and no guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline import env
from paceline.errors import Finding, UsageError, closest
from paceline.world import mpi, pods, slurm, torchrun
from paceline.world.mpi import MpiTask
from paceline.world.world import World, whole

LAUNCHERS = ("paceline", "torchrun", "slurm", "mpi", "kubernetes", "none")


def from_environ(
    environ: Mapping[str, str],
    *,
    in_terminal: bool = False,  # a person types here
    # of mpirun's part on this node, the same for all of its tasks; 0 if unknown
    starter_pid: Callable[[], int] = lambda: 0,
) -> World:
    """Return the world that ``environ`` describes.

    ``PACELINE_LAUNCHER`` decides if it is set. Otherwise the first of these does: torchrun's
    variables, which paceline's launcher sets too; several tasks of mpirun; a Slurm step of several
    tasks; several pods of Kubernetes. One task of mpirun says nothing. A terminal distinguishes the
    shell of ``srun --pty`` or ``kubectl exec`` from what is started in every task or pod.
    ``starter_pid`` is called if nothing else distinguishes two starts. Raises UsageError if the
    value of ``PACELINE_LAUNCHER`` is unknown, required variables are missing, or variables
    contradict each other.
    """
    requested = environ.get(env.LAUNCHER, "")
    if requested:
        return _as_requested(requested, environ, starter_pid)
    task = mpi.read_mpi_task(environ)
    in_step = slurm.is_task(environ, in_terminal)
    if env.RANK in environ and not pods.counts_pods(environ):
        _refuse_leftovers(environ, task, in_step=in_step)
        return torchrun.world_of_rank(environ, "")
    if task is not None and task.size > 1 and not (in_step and task.is_of_step(environ)):
        _refuse_several_pods(environ, task)
        return mpi.world_of_task(task, environ, starter_pid=starter_pid)
    if in_step:
        return slurm.world_of_task(environ)
    return _world_of_pod(environ, in_terminal) or _alone(task)


def _as_requested(
    requested: str, environ: Mapping[str, str], starter_pid: Callable[[], int]
) -> World:
    if requested == "none":
        return World(reason="PACELINE_LAUNCHER=none: a world of one")
    if requested == "slurm":
        return slurm.world_of_task(environ)
    if requested == "mpi":
        task = mpi.read_mpi_task(environ)
        if task is None:
            raise UsageError(_not_there(requested, "no task of mpirun"))
        return mpi.world_of_task(task, environ, starter_pid=starter_pid)
    if requested == "kubernetes":
        pod = pods.read_pod(environ)
        if pod is None or not pod.count:
            raise UsageError(_not_there(requested, "no pod of a PyTorchJob or TrainJob"))
        return pods.world_of_pod(pod)
    if requested not in LAUNCHERS:
        raise UsageError(_unknown_launcher(requested))
    return torchrun.world_of_rank(environ, requested)


def _unknown_launcher(requested: str) -> Finding:
    near = closest(requested, LAUNCHERS)
    return Finding(
        "option-invalid",
        f"PACELINE_LAUNCHER={requested} is not one of {', '.join(LAUNCHERS)}",
        where=f"environment variable {env.LAUNCHER}",
        fix=f"export PACELINE_LAUNCHER={near or 'none'}",
    )


def _not_there(requested: str, what: str) -> Finding:
    return Finding(
        "rank-env-missing",
        f"PACELINE_LAUNCHER={requested}, and this is {what}",
        where="environment",
        fix="unset PACELINE_LAUNCHER",
    )


def _world_of_pod(environ: Mapping[str, str], in_terminal: bool) -> World | None:
    pod = pods.read_pod(environ)
    if in_terminal and pod is not None:
        return World(reason=f"a terminal in {pod.name}: a world of one")
    if pod is None or pod.count == 0:
        return _world_of_rank_in_pod(environ)
    if pod.count == 1:
        return World(reason=f"one pod by {pod.source}: a world of one")
    return pods.world_of_pod(pod)


def _world_of_rank_in_pod(environ: Mapping[str, str]) -> World | None:
    """Refuse a pod that has a rank and does not know of how many; None without a rank."""
    return torchrun.world_of_rank(environ, "") if env.RANK in environ else None


def _alone(task: MpiTask | None) -> World:
    if task is None:
        return World()
    return World(reason=f"{task.starter} started one task: a world of one")


def _refuse_leftovers(environ: Mapping[str, str], task: MpiTask | None, *, in_step: bool) -> None:
    """Refuse ``RANK`` and ``WORLD_SIZE`` that cannot be meant for this task.

    A variable that a shell exports is the same in all tasks that are started from it. A task may
    start several ranks, so that there are more ranks than tasks, numbered task by task or in turn.
    """
    if torchrun.is_started_rank(environ) or env.WORLD_SIZE not in environ:
        return
    if task is not None and task.size > 1:
        starter, index, count = task.starter, task.rank, task.size
    elif in_step and {env.PROCID, env.STEP_NUM_TASKS} <= environ.keys():
        starter = f"Slurm step {environ.get(env.JOB_ID, '?')}.{environ.get(env.STEP_ID, '?')}"
        index, count = whole(environ, env.PROCID), whole(environ, env.STEP_NUM_TASKS)
    else:
        return
    rank, world_size = whole(environ, env.RANK), whole(environ, env.WORLD_SIZE)
    if _may_be_of(rank, world_size, index=index, count=count):
        return
    raise UsageError.of(
        "world-contradicted",
        f"RANK={rank} and WORLD_SIZE={world_size} are set, and this is task {index} of {count}",
        where=f"environment, {starter}",
        why="ranks that are numbered twice wait for each other, or train alone",
        fix=(
            "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT; or, if they are right:"
            " export PACELINE_LAUNCHER=torchrun"
        ),
    )


def _may_be_of(rank: int, world_size: int, *, index: int, count: int) -> bool:
    """Return whether a task may have started a rank of that number."""
    if world_size < count:
        return False
    if world_size % count:
        return True  # uneven: any numbering is possible
    return index in (rank * count // world_size, rank % count)


def _refuse_several_pods(environ: Mapping[str, str], task: MpiTask) -> None:
    """Refuse an mpirun in each of several pods, whose tasks would train without each other."""
    pod = pods.read_pod(environ)
    if pod is None or pod.count < 2 or (pod.index, pod.count) == (task.rank, task.size):
        return
    raise UsageError.of(
        "world-contradicted",
        f"{task.starter} started {task.size} tasks, and this is {pod.name}",
        where=f"environment, {pod.source}",
        why="the tasks of one pod would train without those of the others",
        fix=(
            "paceline run script.py in every pod, without mpirun; or, if each pod trains by"
            " itself: export PACELINE_LAUNCHER=mpi"
        ),
    )
