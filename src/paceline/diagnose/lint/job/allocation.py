"""Derive the allocation of a job from its directives; unknown numbers are None."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.diagnose.lint.job.directives import Directives

# What sites count as a gres beside accelerators: memory of GPUs, disks, bandwidth.
_NO_ACCELERATOR = re.compile(
    r"(gres[/:])?"
    r"(none|gpumem|vram|nvme|ssd|disk|tmp\w*|local\w*|l?scratch|craynetwork|bandwidth|lustre|fs"
    r"|mem\w*)",
    re.I,
)
GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "tres-per-task")


@dataclass(frozen=True)
class AllocatedJob:
    """The allocation of one job."""

    nodes: int | None
    has_nodes: bool  # ``--nodes`` is set
    ntasks: int | None  # number of tasks, set or derived
    has_ntasks: bool  # ``--ntasks`` is set
    tasks_per_node: int | None
    has_tasks_per_node: bool  # ``--ntasks-per-node`` is set
    # GPUs on each node, None if none are requested or their number is unknown
    gpus_per_node: int | None
    requests_gpus: bool  # any option requests GPUs
    gpus_per_task: int | None  # GPUs that are bound to each task, None without such a request
    shared_gpus: bool  # tasks may share a GPU (MPS, shards, --ntasks-per-gpu)
    cpus_per_task: int | None
    requests_cpus: bool  # any option requests CPUs
    exclusive: bool  # nodes are not shared
    requests_memory: bool  # any option requests memory
    mixed: bool  # True for a heterogeneous job, which is not analysed
    directives: Directives

    @property
    def several_nodes(self) -> bool:
        """Whether the job certainly has more than one node."""
        return self.nodes is not None and self.nodes > 1


def number(text: str) -> int | None:
    """Return a plain number, or None."""
    return int(text) if re.fullmatch(r"\d{1,9}", text.strip()) else None


def _int(directives: Directives, name: str) -> int | None:
    directive = directives.last(name)
    return number(directive.value) if directive else None


def count_gpus(text: str) -> int | None:
    """Return the number of GPUs in ``gpu:a100:4(S:0)`` or ``a100:4,v100:2``, None if unknown."""
    total, has_count = 0, False
    for part in text.split(","):
        # (S:0) says on which sockets the GPUs are, and is no number of them.
        plain = re.sub(r"\(.*?\)", "", part).strip().removeprefix("gres/").removeprefix("gres:")
        match = re.fullmatch(r"(?:[\w.\-]+[:=/])*?(\d+)", plain)
        if match:
            total, has_count = total + int(match[1]), True
        elif plain:
            return None
    return total if has_count else None


def gpus_of_gres(text: str) -> int | None:
    """Return the number of GPUs in a ``--gres``, 0 if it requests none, None if unknown."""
    parts = [part for part in text.split(",") if re.match(r"(gres[/:])?gpu(?![a-z])", part.strip())]
    if not parts:
        return 0
    # --gres=gpu and --gres=gpu:a100 request one.
    counted = [re.sub(r"^(.*?gpu(?::[^:=\d][\w.\-]*)?)$", r"\1:1", part) for part in parts]
    return count_gpus(",".join(counted))


def describe(directives: Directives) -> AllocatedJob:
    """Return the allocation that the directives request."""
    # A late directive has no effect, but says what the author meant: then nothing is "missing".
    names = {directive.name for directive in (*directives.active, *directives.late)}
    nodes = _nodes(directives)
    ntasks, per_node = _int(directives, "ntasks"), _int(directives, "ntasks-per-node")
    per_task = _gpus_per_task(directives)
    if nodes is None and "nodes" not in names:
        nodes = _implied_nodes(names, ntasks, per_node)
    tasks_per_node = _tasks_per_node(names, nodes, ntasks, per_node)
    gpus, has_gpus = _gpus(directives, nodes, tasks_per_node, per_task)
    exclusive = directives.last("exclusive")
    if "ntasks" not in names and nodes and tasks_per_node:
        ntasks = nodes * tasks_per_node
    gres = directives.last("gres")
    return AllocatedJob(
        nodes=nodes,
        has_nodes="nodes" in names,
        ntasks=ntasks,
        has_ntasks="ntasks" in names,
        tasks_per_node=tasks_per_node,
        has_tasks_per_node="ntasks-per-node" in names,
        gpus_per_node=gpus,
        requests_gpus=has_gpus,
        gpus_per_task=per_task,
        shared_gpus="ntasks-per-gpu" in names or bool(gres and re.search(r"mps|shard", gres.value)),
        cpus_per_task=_int(directives, "cpus-per-task"),
        requests_cpus=bool(
            names & {"cpus-per-task", "cpus-per-gpu", "mincpus", "extra-node-info", "tres-per-task"}
        ),
        exclusive=exclusive is not None and exclusive.value in ("", "user"),
        requests_memory=bool(names & {"mem", "mem-per-cpu", "mem-per-gpu"}),
        mixed=directives.components > 1,
        directives=directives,
    )


def _nodes(directives: Directives) -> int | None:
    directive = directives.last("nodes")
    if directive is None:
        return None
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", directive.value.strip())
    return int(match[1]) if match and match[2] in (None, match[1]) else None


def _implied_nodes(names: set[str], ntasks: int | None, per_node: int | None) -> int | None:
    if names & {"nodelist", "nodefile", "spread-job"}:
        return None
    if ntasks and per_node:
        # Slurm takes as many nodes as the tasks need at that number on each.
        return -(-ntasks // per_node)
    if "ntasks" in names or "gpus" in names or "ntasks-per-gpu" in names:
        # Slurm may spread tasks or GPUs over nodes as it finds them free.
        return 1 if ntasks == 1 else None
    return 1


def _tasks_per_node(
    names: set[str], nodes: int | None, ntasks: int | None, per_node: int | None
) -> int | None:
    if "ntasks" not in names:
        if "ntasks-per-node" in names:
            return per_node
        # These multiply the tasks by what a node has, which the script does not show.
        return None if names & {"ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"} else 1
    if nodes is None:
        return per_node
    if not ntasks or not nodes or ntasks % nodes:
        return None
    # Another check reports the contradiction; here the number is not certain then.
    contradicts = per_node and ntasks != per_node * nodes
    return None if contradicts else ntasks // nodes


def _gpus_per_task(directives: Directives) -> int | None:
    directive = directives.last("gpus-per-task")
    if directive:
        return count_gpus(directive.value)
    tres = directives.last("tres-per-task")
    match = re.search(r"gres[/:]gpu(?::[^:=,]+)?[:=](\d+)", tres.value) if tres else None
    return int(match[1]) if match else None


def _gpus(
    directives: Directives, nodes: int | None, tasks_per_node: int | None, per_task: int | None
) -> tuple[int | None, bool]:
    """Return the number of GPUs on a node, None if unknown, and whether any are requested."""
    counts = list(_gpu_counts(directives, nodes, tasks_per_node, per_task))
    # Options that disagree leave the number open: no check may build on one of them.
    different = {count for count in counts if count is not None}
    return (different.pop() if len(different) == 1 else None), bool(counts)


def _gpu_counts(
    directives: Directives, nodes: int | None, tasks_per_node: int | None, per_task: int | None
) -> Iterator[int | None]:
    """Yield the number of GPUs on a node by each option that requests some, None if unknown."""
    if per_node := directives.last("gpus-per-node"):
        yield count_gpus(per_node.value)
    if gres := directives.last("gres"):
        yield from _gres_counts(gres.value)
    if per_task is not None:
        yield per_task * tasks_per_node if tasks_per_node else None
    if total := directives.last("gpus"):
        gpus = count_gpus(total.value)
        # Slurm may put 8 GPUs on 3 nodes as it likes.
        yield gpus // nodes if gpus and nodes and gpus % nodes == 0 else None
    if directives.last("gpus-per-socket"):
        yield None


def _gres_counts(text: str) -> Iterator[int | None]:
    """Yield the number of GPUs in a ``--gres``, None for accelerators of another make."""
    gpus = gpus_of_gres(text)
    if gpus != 0:
        yield gpus
    # A gres of a name that is not known may be an accelerator: it requests some, how many is open.
    elif any(not _NO_ACCELERATOR.match(part.strip()) for part in text.split(",")):
        yield None


def slurm_variables(job: AllocatedJob) -> dict[str, str]:
    """Return Slurm's variables of the batch script whose values follow from the directives."""
    if job.mixed:
        return {}
    # A number of nodes that the script does not set may be another on sbatch's command line.
    values: dict[str, int | None] = {
        "SLURM_NNODES": job.nodes if job.has_nodes else None,
        "SLURM_JOB_NUM_NODES": job.nodes if job.has_nodes else None,
        "SLURM_NTASKS": job.ntasks,
        "SLURM_NPROCS": job.ntasks,
        "SLURM_NTASKS_PER_NODE": _int(job.directives, "ntasks-per-node"),
        "SLURM_CPUS_PER_TASK": _int(job.directives, "cpus-per-task"),
        "SLURM_GPUS_ON_NODE": job.gpus_per_node,
    }
    for name, option in (
        ("SLURM_GPUS_PER_NODE", "gpus-per-node"),
        ("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    ):
        directive = job.directives.last(option)
        values[name] = number(directive.value) if directive else None
    total = job.directives.last("gpus")
    values["SLURM_GPUS"] = number(total.value) if total else None
    return {name: str(value) for name, value in values.items() if value is not None}
