"""Read what mpirun or a relative of it says to its tasks. Pure.

Each sets rank and number of tasks, for all and on this node. None says where the first task is, so
the head is what the user names, else what follows from the job, and rank 0 checks that it is there.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.world.job import read_batch_job
from paceline.world.slurm import expand_nodelist
from paceline.world.world import DEFAULT_PORT, World, whole


@dataclass(frozen=True)
class _Family:
    """The variables of one kind of mpirun."""

    starter: str  # the command, as messages name it
    rank: str  # name of the variable with the rank of the task
    size: str  # the same for the number of tasks
    local_rank: str  # the same for the rank on this node
    local_size: str  # the same for the number of tasks on this node
    set_master: str  # options that pass ``MASTER_ADDR`` to all tasks
    one_per_node: str  # options that start one task on each node


# jsrun sets Open MPI's variables as well, and PALS those of PMI, so their own come first.
_FAMILIES = (
    _Family(
        "jsrun",
        env.JSM_RANK,
        env.JSM_SIZE,
        env.JSM_LOCAL_RANK,
        env.JSM_LOCAL_SIZE,
        set_master="jsrun -E MASTER_ADDR=HOST",
        one_per_node="jsrun -r 1",
    ),
    _Family(
        "mpirun of Open MPI",
        env.OMPI_RANK,
        env.OMPI_SIZE,
        env.OMPI_LOCAL_RANK,
        env.OMPI_LOCAL_SIZE,
        set_master="mpirun -x MASTER_ADDR=HOST",
        one_per_node="mpirun -npernode 1 --bind-to none",
    ),
    _Family(
        "mpiexec of PALS",
        env.PMI_RANK,
        env.PMI_SIZE,
        env.PMI_LOCAL_RANK,
        env.PMI_LOCAL_SIZE,
        set_master="mpiexec --env MASTER_ADDR=HOST",
        one_per_node="mpiexec --ppn 1 --cpu-bind none",
    ),
    _Family(
        "mpiexec of MPICH",
        env.PMI_RANK,
        env.PMI_SIZE,
        env.HYDRA_LOCAL_RANK,
        env.HYDRA_LOCAL_SIZE,
        set_master="mpiexec -genv MASTER_ADDR HOST",
        one_per_node="mpiexec -ppn 1",
    ),
    _Family(
        "mpirun_rsh",
        env.MV2_RANK,
        env.MV2_SIZE,
        env.MV2_LOCAL_RANK,
        env.MV2_LOCAL_SIZE,
        set_master="mpirun_rsh MASTER_ADDR=HOST",
        one_per_node="mpirun_rsh, with each host once in the host file,",
    ),
)


@dataclass(frozen=True)
class MpiTask:
    """A task of mpirun."""

    starter: str  # the command that started it, as messages name it
    rank: int  # rank of this task
    size: int  # number of tasks
    local_rank: int  # rank on this node
    local_size: int  # number of tasks on this node
    set_master: str  # options of the command that pass ``MASTER_ADDR`` to all tasks
    one_per_node: str  # the command that starts one task on each node
    # what is the same in all tasks of this start and in no other; empty if unknown
    start_id: str = ""
    head: str = ""  # name or address of the host that has rank 0 by default; empty if unknown
    head_source: str = ""  # why that is the head, as a phrase

    @property
    def on_one_node(self) -> bool:
        """Whether all tasks are on this node."""
        return self.local_size == self.size

    def is_of_step(self, environ: Mapping[str, str]) -> bool:
        """Return whether this is a task of the Slurm step too, which then says more.

        Otherwise mpirun uses the step to start its own daemons, one on each node.
        """
        place = (environ.get(env.PROCID), environ.get(env.STEP_NUM_TASKS))
        return env.STEP_ID in environ and place == (str(self.rank), str(self.size))

    @property
    def port(self) -> int:
        """The port of a store of this start, the same in all tasks; torch's default if unknown."""
        return port_of(self.start_id) if self.start_id else DEFAULT_PORT


def port_of(start_id: str) -> int:
    """Return a port for a start, 15000 to 31999: below Linux's ephemeral ports (32768 and up)."""
    return 15000 + zlib.crc32(start_id.encode()) % 17000


def read_mpi_task(environ: Mapping[str, str]) -> MpiTask | None:
    """Return the task of mpirun that this process is; None if it is none.

    Raises UsageError if the variables do not fit each other, or the rank on the node is unknown.
    """
    family = next((f for f in _FAMILIES if {f.rank, f.local_rank} <= environ.keys()), None)
    if family is None:
        _refuse_unknown_node(environ)
        return None
    missing = [name for name in (family.size, family.local_size) if name not in environ]
    if missing:
        raise UsageError(_unusable(family, f"{', '.join(missing)} not set"))
    names = (family.rank, family.size, family.local_rank, family.local_size)
    rank, size, local_rank, local_size = (whole(environ, name) for name in names)
    if not (rank < size and local_rank < local_size <= size):
        values = ", ".join(f"{name}={environ[name]}" for name in names)
        raise UsageError(_unusable(family, f"{values} do not fit each other"))
    head, head_source = _head(environ)
    return MpiTask(
        starter=family.starter,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        set_master=family.set_master,
        one_per_node=family.one_per_node,
        start_id=environ.get(env.PMIX_NAMESPACE) or environ.get(env.PALS_APID, ""),
        head=head,
        head_source=head_source,
    )


def _unusable(family: _Family, what: str) -> Finding:
    return Finding(
        "rank-env-missing",
        f"the variables of {family.starter} cannot be used: {what}",
        where="environment",
        fix="start the script by mpirun itself, or use none of it: export PACELINE_LAUNCHER=none",
    )


def _refuse_unknown_node(environ: Mapping[str, str]) -> None:
    """Refuse tasks that are numbered by PMI alone, without their place on a node.

    srun sets the same variables for its tasks (``--mpi=pmi2``), and says the rest itself.
    """
    size = environ.get(env.PMI_SIZE, "")
    if env.PMI_RANK not in environ or not size.isdecimal() or int(size) < 2:
        return
    if env.STEP_ID in environ or env.RANK in environ:
        return
    raise UsageError.of(
        "rank-env-missing",
        f"PMI_RANK={environ[env.PMI_RANK]} and PMI_SIZE={size} are set, and the rank on this"
        " node is not",
        where="environment",
        fix=(
            "export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each task,"
            " or: export PACELINE_LAUNCHER=none"
        ),
    )


def _head(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the host of rank 0 by default, and why; empty texts if nothing says it.

    In a job mpirun runs on the first host, and starts rank 0 there by default.
    """
    # Open MPI 4: "948699136.0;tcp://192.0.2.2,10.0.0.2:45607;tcp6://[fd00::2]:44333"
    address = re.search(r"\btcp://([^,:;]+)", environ.get(env.OMPI_HEAD, ""))
    if address:
        return address[1], "the host of mpirun"
    # Open MPI 5 (PRRTE): "prterun-HOST-PID@JOB"
    namespace = re.fullmatch(r"prterun-(.+)-\d+@\d+", environ.get(env.PMIX_NAMESPACE, ""))
    if namespace:
        return namespace[1], "the host of mpirun"
    job = read_batch_job(environ)
    if job is not None and job.hosts:
        return job.hosts[0], f"the first host of {job.name}"
    if environ.get(env.JOB_ID) and environ.get(env.JOB_NODELIST):
        nodes = expand_nodelist(environ[env.JOB_NODELIST])
        return nodes[0], f"the first node of Slurm job {environ[env.JOB_ID]}"
    return "", ""


def world_of_task(
    task: MpiTask,
    environ: Mapping[str, str],
    *,
    # of the launcher's part on this node, the same for all of its tasks; 0 if unknown
    starter_pid: Callable[[], int],
) -> World:
    """Return the world of a task of mpirun.

    Nodes are counted from this node's tasks, which is exact where all nodes have as many; only
    messages use that number. Raises UsageError if it is not known where ranks meet.
    """
    address, source = _meeting_host(task, environ)
    num_nodes = -(-task.size // task.local_size)
    in_blocks = task.rank % task.local_size == task.local_rank
    return World(
        rank=task.rank,
        world_size=task.size,
        local_rank=task.local_rank,
        local_world_size=task.local_size,
        node_rank=task.rank // task.local_size if in_blocks else task.rank % num_nodes,
        num_nodes=num_nodes,
        master_addr=address,
        master_port=_meeting_port(task, environ, starter_pid=starter_pid),
        launcher="mpi",
        reason=f"{task.starter} started {_counted(task)}" + f", head {source}" * bool(source),
        head_source=source,
    )


def _counted(task: MpiTask) -> str:
    if task.on_one_node:
        return f"{task.size} tasks on this node"
    return f"{task.size} tasks, {task.local_size} of them on this node"


def _meeting_host(task: MpiTask, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the host of rank 0, and where that comes from if nobody has said it."""
    if environ.get(env.MASTER_ADDR):
        return environ[env.MASTER_ADDR], ""
    if task.on_one_node:
        return "127.0.0.1", ""
    if task.head:
        return task.head, task.head_source
    raise UsageError(head_unknown(task))


def head_unknown(task: MpiTask) -> Finding:
    """Return the finding that nothing says on which host rank 0 is."""
    return Finding(
        "rank-env-missing",
        f"{task.starter} started {task.size} tasks on several nodes, and nothing says on which"
        " host task 0 is",
        where=f"task {task.rank}",
        why="all ranks meet at the host of rank 0",
        fix=f"{task.set_master} ..., with the first host of the job for HOST",
    )


def _meeting_port(
    task: MpiTask, environ: Mapping[str, str], *, starter_pid: Callable[[], int]
) -> int:
    if environ.get(env.MASTER_PORT):
        return whole(environ, env.MASTER_PORT)
    if task.start_id or not task.on_one_node:
        return task.port
    pid = starter_pid()
    if pid:
        return port_of(f"process {pid}")
    # Two starts on one host must not take each other's ranks, so no default is used.
    raise UsageError.of(
        "rank-env-missing",
        f"{task.starter} gives its tasks nothing by which they agree on a port, and none of"
        " this process's parents is its proxy",
        where=f"task {task.rank}",
        fix="export MASTER_PORT=29500, another one for each start on this host",
    )
