"""Check the number of tasks of a job against its nodes, its GPUs and the program's options."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.lint.job.allocation import number
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import DEVICES, Launch, argument, requested_devices
from paceline.errors import Finding


def ntasks_conflict(case: Case) -> Iterator[Finding]:
    """Find --ntasks that differs from --ntasks-per-node times --nodes."""
    job = case.job
    per_node = job.directives.last("ntasks-per-node")
    tasks = number(per_node.value) if per_node else None
    if not job.has_nodes or not job.has_ntasks:
        return
    if not tasks or not job.nodes or not job.ntasks:
        return
    if job.ntasks == job.nodes * tasks:
        return
    # Where the program itself is a rank, the number of tasks is the number of ranks. A launcher
    # only has to be started on each node.
    by_tasks = any(launch.call.step is not None and not launch.spawns for launch in case.training)
    yield case.finding(
        "ntasks-conflict",
        f"--ntasks={job.ntasks}, but {job.nodes} nodes with {tasks} tasks each are"
        f" {job.nodes * tasks}",
        line=case.directive_line("ntasks"),
        more=[case.directive_line("nodes"), case.directive_line("ntasks-per-node")],
        why=(
            "--ntasks wins and --ntasks-per-node is then a maximum or ignored: tasks may be spread"
            " unevenly"
        ),
        fix="remove --ntasks",
        severity="error" if by_tasks or job.ntasks > job.nodes * tasks else "warning",
    )


def slurm_ntasks_mismatch(case: Case) -> Iterator[Finding]:
    """Find a number of tasks that differs from the GPUs or from the program's own options."""
    for launch in case.training:
        # Under a launcher a task is a node, and ranks are its own matter.
        if launch.spawns or launch.call.step is None or launch.call.maybe:
            continue
        program = case.program(launch)
        if program is not None and (program.runner is not None or program.spawns is not None):
            continue  # the script itself shows what it starts, and another check covers it
        yield from _against_devices(case, launch) or _against_gpus(case, launch)
        yield from _against_nodes(case, launch)


_NODES = (r"(?:[\w]+\.)*num_nodes", r"(?:[\w]+\.)*num-nodes")


def _against_devices(case: Case, launch: Launch) -> list[Finding]:
    spread = case.shape(launch)
    match, devices = argument(launch, DEVICES), requested_devices(launch)
    if not match or not devices or spread.tasks_per_node in (None, devices):
        return []
    # a program that is not Lightning's may start the processes of one task itself
    sure = (
        spread.tasks_per_node != 1
        or argument(launch, _NODES) is not None
        or _likely_lightning(case, launch)
    )
    finding = case.finding(
        "slurm-ntasks-mismatch",
        f"the program gets {case.show(match[1].text).partition('=')[0]}={devices},"
        f" but srun starts {_tasks(spread.tasks_per_node)} on a node",
        line=case.line_of(launch, "devices"),
        more=[case.directive_line("ntasks-per-node", "ntasks")],
        why="under srun Lightning takes each task for one rank: the numbers have to agree",
        fix=f"#SBATCH --ntasks-per-node={devices}",
        severity="error" if sure else "warning",
    )
    return [finding]


def _tasks(count: int | None) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _against_gpus(case: Case, launch: Launch) -> list[Finding]:
    spread = case.shape(launch)
    tasks, gpus = spread.tasks_per_node, spread.node_gpus
    if tasks is None or gpus is None:
        return []
    # One task may drive several GPUs if --gpus-per-task says so: no GPU is idle then.
    if tasks >= gpus or (spread.gpus_per_task or 1) * tasks == gpus:
        return []
    nodes_argument = argument(launch, _NODES)
    has_nodes = nodes_argument is not None and number(nodes_argument[0]) == spread.nodes
    lightning = has_nodes and not argument(launch, (r"node[_-]rank",))
    # A program that starts the processes of its node itself is right with one task. One that gets
    # the number of nodes and no node rank is most likely Lightning's.
    if tasks == 1 and not lightning:
        return []
    step = launch.call.step
    # A step for part of the job may be one of several that share the GPUs.
    if step is not None and {"nodelist", "ntasks", "nodes"} & set(step.options):
        return []
    finding = case.finding(
        "slurm-ntasks-mismatch",
        f"{_tasks(tasks)} on a node with {gpus} GPUs, and srun starts the program once for each"
        " task",
        line=case.directive_line("ntasks-per-node", "ntasks", "gres", "gpus-per-node"),
        more=[
            case.directive_line("gres", "gpus-per-node", "gpus"),
            case.line_of(launch, launch.script),
        ],
        why=(
            "without a launcher each task drives one GPU: the others idle, or the ranks wait for"
            " tasks that never come"
        ),
        fix=f"#SBATCH --ntasks-per-node={gpus}",
        severity="error" if _wants_all_gpus(case, launch, tasks, gpus) else "warning",
    )
    return [finding]


def _wants_all_gpus(case: Case, launch: Launch, tasks: int, gpus: int) -> bool:
    """Return whether the program likely uses Lightning on all GPUs, and waits for more tasks."""
    if requested_devices(launch) == tasks:
        return False
    if tasks > 1:
        return argument(launch, _NODES) is not None or _likely_lightning(case, launch)
    devices_argument = argument(launch, (r"gpus", *DEVICES))
    return (
        devices_argument is not None
        and number(devices_argument[0]) == gpus
        and _likely_lightning(case, launch)
    )


def _likely_lightning(case: Case, launch: Launch) -> bool:
    match = argument(
        launch, (r"max[_-]epochs", r"(?:[\w]+\.)*trainer[\w.]*", r"strategy", r"accelerator")
    )
    return match is not None or case.names_lightning


def _against_nodes(case: Case, launch: Launch) -> Iterator[Finding]:
    match = argument(launch, _NODES)
    requested = number(match[0]) if match else None
    nodes = case.shape(launch).nodes
    if not match or requested is None or nodes is None:
        return
    # A job without --nodes gets them on sbatch's command line, or as many as its tasks need.
    if not case.job.has_nodes or requested in (nodes, case.job.nodes):
        return
    if not requested_devices(launch) and not _likely_lightning(case, launch):
        # num_nodes is also an argument of graph networks and of simulators.
        return
    yield case.finding(
        "slurm-ntasks-mismatch",
        f"the program expects {requested} nodes, the job has {nodes}",
        line=case.line_of(launch, "num_nodes", "num-nodes"),
        more=[case.directive_line("nodes")],
        why="it waits for ranks that are never started, or refuses to start",
        fix=f"{match[1].text.partition('=')[0]}={nodes}",
    )


def ntasks_per_node_missing(case: Case) -> Iterator[Finding]:
    """Find jobs without --ntasks-per-node in which each task is a rank."""
    job = case.job
    placement = _placement(case)
    if not placement or not any(_has_tasks_of_the_job(launch) for launch in case.training):
        return
    yield case.finding(
        "ntasks-per-node-missing",
        f"tasks per node are not given: {placement}",
        line=case.directive_line("nodes", "ntasks", "gres", "gpus-per-node"),
        why="srun starts the program once for each task",
        fix=f"#SBATCH --ntasks-per-node={job.gpus_per_node or job.ntasks}",
        severity="hint",
    )


def _placement(case: Case) -> str:
    """Return where srun starts tasks whose number on each node is not set; empty if it is set."""
    job = case.job
    if job.has_tasks_per_node or job.mixed or not job.directives.any:
        return ""
    # It sets the tasks of a node from the GPUs there.
    if job.directives.last("ntasks-per-gpu"):
        return ""
    if not job.has_ntasks:
        return "srun starts one on each node" if (job.gpus_per_node or 0) > 1 else ""
    return "Slurm spreads them" if not job.has_nodes and (job.ntasks or 0) > 1 else ""


def _has_tasks_of_the_job(launch: Launch) -> bool:
    """Return whether srun starts a program in as many tasks as the job has."""
    step = launch.call.step
    if launch.spawns or step is None or step.kind != "srun" or step.vague:
        return False
    # The step has a number of its own, and takes nothing from the job.
    return not {"ntasks", "ntasks-per-node", "n"} & set(step.options)


CHECKS = (ntasks_conflict, slurm_ntasks_mismatch, ntasks_per_node_missing)
