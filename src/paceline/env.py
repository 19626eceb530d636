"""Every environment variable that paceline reads or sets: name, meaning, default.

The only module, besides the worker entry, that touches ``os.environ``. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str  # its name in the environment
    meaning: str  # one line for the reference page
    default: str = ""  # the behaviour while it is unset


_ALL: dict[str, Variable] = {}


def _variable(name: str, meaning: str, default: str = "") -> str:
    _ALL[name] = Variable(name, meaning, default)
    return name


# paceline's variables
LAUNCHER = _variable(
    "PACELINE_LAUNCHER",
    "who started this process, for Session: paceline, torchrun, slurm, mpi, kubernetes or none;"
    " overrides what is detected",
    "detected",
)
TASK = _variable(
    "PACELINE_TASK", "what a rank that starts afresh runs (JSON); set and removed by the launcher"
)
RUN_TOKEN = _variable(
    "PACELINE_RUN_TOKEN", "token of the run that a rank belongs to; set for ranks"
)
RUN_DIR = _variable(
    "PACELINE_RUN_DIR",
    "run folder of the run that a rank belongs to; set for ranks. Without a launcher: the folder"
    " that Session uses",
)
STORE_SECRET = _variable(
    "PACELINE_STORE_SECRET",
    "what the ranks of a run have in common and nobody else knows: they sign with it what they"
    " write into the store; set for ranks",
)
RUN_SECRET = _variable(
    "PACELINE_RUN_SECRET",
    "a secret that all nodes of a run have, by which their launchers know each other; removed"
    " before ranks start",
)
DAMAGED = _variable(
    "PACELINE_DAMAGED",
    'default of Session.restore(damaged=...): "refuse", or "skip" as in the job scripts of paceline'
    " submit",
    "refuse",
)

TUNE = _variable(
    "PACELINE_TUNE",
    "folder by which paceline tune changes the settings of a rank's training DataLoader; set by it",
)
VERIFY = _variable(
    "PACELINE_VERIFY",
    "ranks write into the run folder what paceline verify compares: 1, or a file of its run before",
)
PROVE = _variable("PACELINE_PROVE", "1: default of --prove for all runs", "0")
PROOF = _variable(
    "PACELINE_PROOF",
    "file into which a rank writes what is proven of its script's loss; set by paceline run"
    " --prove, and verify",
)
NO_PROBE = _variable("PACELINE_NO_PROBE", "1: default of --no-probe for all runs", "0")
START_METHOD = _variable(
    "PACELINE_START_METHOD", "default of --start-method: spawn starts every rank afresh", "fork"
)
ON_HANG = _variable("PACELINE_ON_HANG", "default of --on-hang; off turns hang detection off")
HANG_TIMEOUT = _variable("PACELINE_HANG_TIMEOUT", "default of --hang-timeout, in seconds")

STOP_AFTER = _variable(
    "PACELINE_STOP_AFTER",
    "ranks time all optimizer steps, and end after so many; paceline bench and tune set it for"
    " their trials",
)

KEPT_FILES = _variable(
    "PACELINE_KEPT_FILES",
    "folder for copies of the files that a trial changes; set by paceline bench, tune, verify and"
    " run --prove, which put them back",
)

TRY_DDP = _variable(
    "PACELINE_TRY_DDP",
    "settings that DistributedDataParallel gets in a trial (JSON); set by paceline bench"
    " --settings",
)

NO_COLOR = _variable("NO_COLOR", "not empty: no colour on terminals (https://no-color.org)")
TERM = _variable("TERM", "dumb: no colour on terminals")

TEST_TIME_FACTOR = _variable(
    "PACELINE_TEST_TIME_FACTOR",
    "for tests of paceline only: multiplies every deadline that the user has not set",
    "1",
)

# torchrun's contract with its ranks
RANK = _variable("RANK", "global rank, set for each rank")
LOCAL_RANK = _variable("LOCAL_RANK", "rank on this node, set for each rank")
WORLD_SIZE = _variable("WORLD_SIZE", "number of ranks, set for each rank")
LOCAL_WORLD_SIZE = _variable("LOCAL_WORLD_SIZE", "number of ranks on this node, set for each rank")
GROUP_RANK = _variable("GROUP_RANK", "rank of the node, set for each rank")
GROUP_WORLD_SIZE = _variable("GROUP_WORLD_SIZE", "number of nodes, set for each rank")
ROLE_RANK = _variable("ROLE_RANK", "rank among those of the same role, set for each rank")
ROLE_NAME = _variable("ROLE_NAME", "the role of --role, set for each rank")
ROLE_WORLD_SIZE = _variable(
    "ROLE_WORLD_SIZE", "number of ranks of the same role, set for each rank"
)
MASTER_ADDR = _variable(
    "MASTER_ADDR", "numeric address of the store of the ranks, set for each rank"
)
MASTER_PORT = _variable("MASTER_PORT", "port of that store, set for each rank")
RESTART_COUNT = _variable("TORCHELASTIC_RESTART_COUNT", "restarts so far, set for each rank", "0")
MAX_RESTARTS = _variable(
    "TORCHELASTIC_MAX_RESTARTS", "the value of --max-restarts, set for each rank", "0"
)
RUN_ID = _variable("TORCHELASTIC_RUN_ID", "id of the rendezvous, set for each rank")
ERROR_FILE = _variable(
    "TORCHELASTIC_ERROR_FILE", "where a rank leaves its exception (JSON), set for each rank"
)
USE_AGENT_STORE = _variable(
    "TORCHELASTIC_USE_AGENT_STORE", "True: the launcher hosts the store of the ranks"
)
LOG_PREFIX = _variable(
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "prefix of teed console lines; ${role_name}, ${local_rank} and ${rank} are filled in",
    "[${role_name}${local_rank}]:",
)
SIGNALS = _variable(
    "TORCHELASTIC_SIGNALS_TO_HANDLE", "signals passed on to ranks, set for each rank"
)
SHUTDOWN_TIMEOUT = _variable(
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "default of --shutdown-timeout, in seconds", "30"
)
PYTHON_EXEC = _variable("PYTHON_EXEC", "the Python that runs the script", "paceline's own Python")
ASYNC_ERROR_HANDLING = _variable(
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "set to 1 for ranks unless given, as torchrun does", "1"
)
CUDA_DEVICES = _variable("CUDA_VISIBLE_DEVICES", "GPUs that may be used", "all")

# Defaults that paceline sets unless the user has set them
OMP_THREADS = _variable(
    "OMP_NUM_THREADS",
    "threads of a rank's CPU operations",
    "usable CPUs divided by the ranks of the node",
)
GLOO_INTERFACE = _variable(
    "GLOO_SOCKET_IFNAME",
    "interface that gloo uses",
    "the interface with the node's address in this run",
)
GLOO_LAZY = _variable(
    "TORCH_GLOO_LAZY_INIT", "read: whether gloo connects ranks only when they first communicate"
)
NCCL_INTERFACE = _variable(
    "NCCL_SOCKET_IFNAME",
    "interfaces that NCCL uses: a prefix, =exact or ^not; set where one was found to lead nowhere",
    "NCCL's own choice",
)
DEBUG_LEVEL = _variable(
    "TORCH_DISTRIBUTED_DEBUG", "OFF, INFO or DETAIL; DETAIL is warned of", "OFF"
)
CPP_LOG_LEVEL = _variable(
    "TORCH_CPP_LOG_LEVEL", "level of torch's C++ log; INFO with --nccl-debug", "WARNING"
)
NCCL_DEBUG = _variable("NCCL_DEBUG", "NCCL's log level; INFO with --nccl-debug")
NCCL_DEBUG_SUBSYS = _variable(
    "NCCL_DEBUG_SUBSYS", "parts of NCCL that log; --nccl-debug: INIT,NET,GRAPH,ENV,TUNING"
)
NCCL_RAS_ADDR = _variable(
    "NCCL_RAS_ADDR", "read: where NCCL is asked about a hang", "localhost:28028"
)
NCCL_DEBUG_FILE = _variable("NCCL_DEBUG_FILE", "file of NCCL's log; one per rank with --nccl-debug")

# Slurm: only the step's, because the job's also exist in salloc shells and terminals of editors
STEP_ID = _variable("SLURM_STEP_ID", "read: this process is part of a Slurm step")
STEP_NUM_TASKS = _variable("SLURM_STEP_NUM_TASKS", "read: number of tasks of the step")
STEP_NODELIST = _variable("SLURM_STEP_NODELIST", "read: nodes of the step")
STEP_TASKS_PER_NODE = _variable("SLURM_STEP_TASKS_PER_NODE", "read: tasks on each node of the step")
STEP_GPUS = _variable("SLURM_STEP_GPUS", "read: GPUs that the step has on this node")
PTY_PORT = _variable(
    "SLURM_PTY_PORT", "read: this is a terminal in a step (srun --pty), not a separate task"
)
CPUS_PER_TASK = _variable("SLURM_CPUS_PER_TASK", "read in a step: the most CPUs that its task uses")
JOB_NUM_NODES = _variable("SLURM_JOB_NUM_NODES", "read: a job of several nodes needs srun")
JOB_NODELIST = _variable("SLURM_JOB_NODELIST", "read: which nodes those are")
JOB_CPUS_PER_NODE = _variable(
    "SLURM_JOB_CPUS_PER_NODE", "read: CPUs for the srun line that is proposed"
)
NODE_NAME = _variable(
    "SLURMD_NODENAME", "read: the name of this node in Slurm, by which others find its address"
)
PROCID = _variable("SLURM_PROCID", "read together with SLURM_STEP_NUM_TASKS: rank of this task")
LOCALID = _variable(
    "SLURM_LOCALID", "read together with SLURM_STEP_NUM_TASKS: rank of this task on its node"
)
NODEID = _variable("SLURM_NODEID", "read together with SLURM_STEP_NUM_TASKS: rank of this node")
JOB_ID = _variable(
    "SLURM_JOB_ID",
    "read together with SLURM_STEP_NUM_TASKS: port of the step; alone: how a run that stopped is"
    " resumed",
)

ARRAY_JOB_ID = _variable("SLURM_ARRAY_JOB_ID", "read: the array that this job is an element of")
ARRAY_TASK_ID = _variable(
    "SLURM_ARRAY_TASK_ID", "read: which element it is; each has its own run folder"
)
JOB_RESTARTS = _variable(
    "SLURM_RESTART_COUNT", "read: how often this job was queued again; it continues in its folder"
)

# mpirun and its relatives: rank, number of tasks, and the same on this node
OMPI_RANK = _variable("OMPI_COMM_WORLD_RANK", "read: rank of this task of Open MPI's mpirun")
OMPI_SIZE = _variable("OMPI_COMM_WORLD_SIZE", "read: number of its tasks")
OMPI_LOCAL_RANK = _variable("OMPI_COMM_WORLD_LOCAL_RANK", "read: rank of this task on its node")
OMPI_LOCAL_SIZE = _variable("OMPI_COMM_WORLD_LOCAL_SIZE", "read: number of tasks on this node")
OMPI_HEAD = _variable(
    "OMPI_MCA_orte_hnp_uri", "read: address of the host of mpirun (Open MPI 4), the head by default"
)
OMPI_BOUND = _variable(
    "OMPI_MCA_orte_bound_at_launch", "read: mpirun has bound this task to some of the CPUs"
)
PMIX_NAMESPACE = _variable(
    "PMIX_NAMESPACE", "read: name of mpirun's job, from which the port follows (Open MPI)"
)
PMI_RANK = _variable("PMI_RANK", "read: rank of this task of mpiexec (MPICH, Intel MPI, PALS)")
PMI_SIZE = _variable("PMI_SIZE", "read: number of its tasks")
PMI_LOCAL_RANK = _variable("PMI_LOCAL_RANK", "read: rank of this task on its node (PALS)")
PMI_LOCAL_SIZE = _variable("PMI_LOCAL_SIZE", "read: number of tasks on this node (PALS)")
PALS_APID = _variable("PALS_APID", "read: id of mpiexec's start, from which the port follows")
HYDRA_LOCAL_RANK = _variable(
    "MPI_LOCALRANKID", "read: rank of this task on its node (MPICH, Intel MPI)"
)
HYDRA_LOCAL_SIZE = _variable(
    "MPI_LOCALNRANKS", "read: number of tasks on this node (MPICH, Intel MPI)"
)
JSM_RANK = _variable("JSM_NAMESPACE_RANK", "read: rank of this task of jsrun")
JSM_SIZE = _variable("JSM_NAMESPACE_SIZE", "read: number of its tasks")
JSM_LOCAL_RANK = _variable("JSM_NAMESPACE_LOCAL_RANK", "read: rank of this task on its node")
JSM_LOCAL_SIZE = _variable("JSM_NAMESPACE_LOCAL_SIZE", "read: number of tasks on this node")
MV2_RANK = _variable("MV2_COMM_WORLD_RANK", "read: rank of this task of mpirun_rsh (MVAPICH)")
MV2_SIZE = _variable("MV2_COMM_WORLD_SIZE", "read: number of its tasks")
MV2_LOCAL_RANK = _variable("MV2_COMM_WORLD_LOCAL_RANK", "read: rank of this task on its node")
MV2_LOCAL_SIZE = _variable("MV2_COMM_WORLD_LOCAL_SIZE", "read: number of tasks on this node")

# PBS and LSF
PBS_JOB_ID = _variable("PBS_JOBID", "read: id of the PBS job")
PBS_NODE_FILE = _variable("PBS_NODEFILE", "read: file with the hosts of the PBS job")
PBS_NODE_NUMBER = _variable(
    "PBS_NODENUM", "read: rank of this node in the PBS job, if --nnodes and the head are given"
)
LSF_JOB_ID = _variable("LSB_JOBID", "read: id of the LSF job")
LSF_HOSTS = _variable("LSB_MCPU_HOSTS", "read: hosts of the LSF job, each with its slots")
LSF_TASK = _variable("LSF_PM_TASKID", "read: number of this task of blaunch, from 1")

# Pods of Kubernetes
KUBERNETES = _variable("KUBERNETES_SERVICE_HOST", "read: this is a pod of Kubernetes")
COMPLETION_INDEX = _variable(
    "JOB_COMPLETION_INDEX", "read: index of this pod in its Job, as in a JobSet"
)
PET_NNODES = _variable(
    "PET_NNODES", "default of --nnodes, as in torchrun; in a pod, number of pods"
)
PET_NODE_RANK = _variable("PET_NODE_RANK", "default of --node-rank; in a pod, its index")
PET_NPROC = _variable("PET_NPROC_PER_NODE", "default of --nproc-per-node; in a pod, its ranks")
PET_MASTER_ADDR = _variable("PET_MASTER_ADDR", "default of --master-addr; in a pod, the first pod")
PET_MASTER_PORT = _variable("PET_MASTER_PORT", "default of --master-port")

SBATCH_PARTITION = _variable(
    "SBATCH_PARTITION", "read by submit, as by sbatch: default of --partition"
)
SBATCH_ACCOUNT = _variable("SBATCH_ACCOUNT", "read by submit, as by sbatch: default of --account")
SBATCH_TIME = _variable("SBATCH_TIMELIMIT", "read by submit, as by sbatch: default of --time")
HUGGING_FACE_HOME = _variable(
    "HF_HOME",
    "read: accelerate/default_config.yaml is there",
    "huggingface in the folder of XDG_CACHE_HOME",
)
CACHE_HOME = _variable(
    "XDG_CACHE_HOME",
    "huggingface/accelerate/default_config.yaml is read there; paceline/accelerate in it has what"
    " accelerate has answered",
    "~/.cache",
)
PYTHON_PATH = _variable(
    "PYTHONPATH",
    "gets the working folder too if accelerate's configuration asks for DeepSpeed, as accelerate"
    " does",
)
SLURM_CONF = _variable(
    "SLURM_CONF",
    "read by lint: whether a job of this cluster has to ask for memory and GPUs",
    "/etc/slurm/slurm.conf",
)
CONFIG_HOME = _variable(
    "XDG_CONFIG_HOME",
    "read: where paceline/config.toml and paceline/profiles of this user are",
    "~/.config",
)


def variables() -> tuple[Variable, ...]:
    """Return all variables, in the order of this file."""
    return tuple(_ALL.values())


def read(name: str) -> str | None:
    """Return the value of a variable; None if it is unset or empty."""
    _require(name)
    return os.environ.get(name) or None


def visible_devices() -> str | None:
    """Return ``CUDA_VISIBLE_DEVICES``; None if it is unset. An empty value hides all GPUs."""
    return os.environ.get(CUDA_DEVICES)


def snapshot() -> dict[str, str]:
    """Return a copy of the whole environment as input for a decision. Never print it."""
    return dict(os.environ)


def in_terminal() -> bool:
    """Return whether a person types here.

    The shell of a terminal inherits variables that do not describe its own start.
    """
    return sys.stdin is not None and sys.stdin.isatty()


def wants_colour() -> bool:
    """Return whether text on a terminal may be coloured."""
    return not os.environ.get(NO_COLOR) and os.environ.get(TERM) != "dumb"


def torchrun_defaults() -> dict[str, str]:
    """Return torchrun's ``PET_<OPTION>`` variables as ``{option_name: value}``."""
    return {
        name[4:].lower(): value
        for name, value in os.environ.items()
        if name.startswith("PET_") and value
    }


def put(name: str, value: str) -> None:
    """Set a variable for this process and its children."""
    _require(name)
    os.environ[name] = value


def slurm_job() -> str:
    """Return the id of this Slurm job as Slurm's commands take it, empty outside of one.

    An element of an array is ``ARRAY_INDEX``: its ``SLURM_JOB_ID`` may be the number of the whole
    array, and with that ``scontrol requeue`` and ``scancel`` mean all elements.
    """
    job, element = read(JOB_ID) or "", read(ARRAY_TASK_ID)
    array = read(ARRAY_JOB_ID)
    return f"{array}_{element}" if job and array and element else job


def take(name: str) -> str | None:
    """Remove a variable and return its value."""
    _require(name)
    return os.environ.pop(name, None)


def update(values: Mapping[str, str]) -> None:
    """Set several variables at once: the environment of a rank, in the rank."""
    os.environ.update(values)


def replace(values: Mapping[str, str]) -> None:
    """Make the environment equal to ``values``: a rank of the pytest plugin takes over a test's."""
    for name in set(os.environ) - set(values):
        del os.environ[name]
    changed = {name: value for name, value in values.items() if os.environ.get(name) != value}
    os.environ.update(changed)


def listen(callback: Callable[[str, str | None, str], None]) -> None:
    """Call ``callback(name, old value, new value)`` before this process sets a variable."""
    original = os.putenv

    def putenv(key: Any, value: Any) -> None:
        name = os.fsdecode(key)
        callback(name, os.environ.get(name), os.fsdecode(value))
        original(key, value)

    os.putenv = putenv


def _require(name: str) -> None:
    if name not in _ALL:
        raise KeyError(f"{name} is not declared in paceline.env")
