"""What the launcher's variables say: the ranks of a run, tasks of mpirun, pods, hosts of a job.

detection  choose the world of this process from the variables of what started it
job        read which hosts a PBS or LSF job has, from its variables
mpi        read what mpirun or a relative of it says to its tasks
pods       read what Kubernetes operators say to the pods of a training run
slurm      read the world of a task of a Slurm step from its variables
torchrun   read the world of a rank from torchrun's variables, which ``paceline run`` sets too
world      the ranks of a run, as one of them sees it
"""

from __future__ import annotations

from paceline.world.detection import from_environ
from paceline.world.job import BatchJob, read_batch_job
from paceline.world.mpi import MpiTask, head_unknown, port_of, read_mpi_task
from paceline.world.pods import Pod, is_pod, read_pod
from paceline.world.slurm import expand_counts, expand_nodelist, step_port
from paceline.world.world import World

__all__ = [
    "BatchJob",
    "MpiTask",
    "Pod",
    "World",
    "expand_counts",
    "expand_nodelist",
    "from_environ",
    "head_unknown",
    "is_pod",
    "port_of",
    "read_batch_job",
    "read_mpi_task",
    "read_pod",
    "step_port",
]
