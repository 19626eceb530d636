"""Check where and how often programs start: srun, tasks and launchers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.allocation import number
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launcher_options import TABLES
from paceline.diagnose.lint.job.launches import DEVICES, Launch, argument, nnodes
from paceline.errors import Finding, closest

# Programs that start themselves on the nodes, and programs that are not a training.
_SELF_SPREADING = re.compile(
    r"launch|submit|dispatch|schedul|orchestr|\bray\b|dask|spark|slurm|sweep|mpi|spawn", re.I
)
_BEFOREHAND = re.compile(
    r"prepare|preproc|download|convert|token|setup|install|check|split|build|make_|create|generate|extract|collect|test"
    r"|eval|infer|predict|merge|export|plot|report|summar|analy|stat|parse|get_|cache|index|post",
    re.I,
)
# The switch of torch's ImageNet example and of its many descendants: one process for each GPU by
# mp.spawn.
_SPAWNS = re.compile(r"--(multiprocessing|mp)[-_]distributed")
_SPREADERS = (
    "ssh",
    "pdsh",
    "clush",
    "mpirun",
    "mpiexec",
    "ray",
    "parallel",
    "horovodrun",
    "dask",
    "spark-submit",
)


def missing_srun(case: Case) -> Iterator[Finding]:
    """Find jobs with several nodes or tasks whose program only starts on the first node."""
    job = case.job
    if job.mixed or case.spreads or any(call.name in _SPREADERS for call in case.trace.calls):
        return
    bare = [
        launch
        for launch in case.training
        if launch.call.step is None and not _spreads_itself(case, launch)
    ]
    for launch in bare:
        line = case.line_of(launch, launch.script or launch.kind)
        if job.several_nodes:
            yield case.finding(
                "missing-srun",
                f"{job.nodes} nodes are asked for, but {_called(launch)} starts without srun",
                line=line,
                more=[case.directive_line("nodes", "ntasks")],
                why=(
                    "a batch script runs on the first node only: the others idle, or the first"
                    " waits for them"
                ),
                fix=f"srun {case.text(launch.call.line)}".removesuffix("\\").strip(),
                severity=case.severity(launch),
            )
        elif _needs_srun_per_task(case, launch):
            yield case.finding(
                "missing-srun",
                f"{job.ntasks} tasks are asked for, but {_called(launch)} starts once, without"
                " srun",
                line=line,
                more=[case.directive_line("ntasks-per-node", "ntasks")],
                why=(
                    "only srun starts a program once for each task; Lightning waits for tasks that"
                    " never come"
                ),
                fix=f"srun {case.text(launch.call.line)}".removesuffix("\\").strip(),
                severity=case.severity(launch) if _requested_devices(launch) else "warning",
            )


def _needs_srun_per_task(case: Case, launch: Launch) -> bool:
    """Return whether a program expects one task per GPU, as Lightning does under Slurm."""
    if launch.spawns or case.hides_slurm or not _one_task_per_gpu(case):
        return False
    program = case.program(launch)
    return program is None or program.spawns is None


def _requested_devices(launch: Launch) -> int:
    match = argument(launch, DEVICES)
    return number(match[0]) or 0 if match else 0


def _called(launch: Launch) -> str:
    return launch.kind if launch.spawns else launch.script or "the program"


def _one_task_per_gpu(case: Case) -> bool:
    tasks = case.job.tasks_per_node
    return tasks is not None and tasks > 1 and tasks == case.job.gpus_per_node


def _spreads_itself(case: Case, launch: Launch) -> bool:
    if launch.kind == "deepspeed":
        return True  # it has a separate check
    if launch.kind == "accelerate launch":
        if launch.vague or {"deepspeed_hostfile", "mpirun_hostfile"} & set(launch.options):
            return True
        # a config file may name a multi-node launcher; then the command does not number the
        # machines
        return "config_file" in launch.options and not {"nnodes", "node_rank", "addr"} & set(
            launch.says
        )
    if not launch.spawns:
        spreads = (
            _SELF_SPREADING.search(launch.script)
            or _BEFOREHAND.search(launch.script)
            or case.names_hosts
        )
        return not launch.program or bool(spreads)
    return launch.vague and launch.call.maybe


def ntasks_per_node_with_torchrun(case: Case) -> Iterator[Finding]:
    """Find jobs with several tasks per node whose launcher starts once, without srun."""
    tasks = case.job.tasks_per_node
    if case.job.several_nodes or not case.job.has_tasks_per_node or not tasks or tasks < 2:
        return
    for launch in case.training:
        if launch.spawns and launch.call.step is None:
            yield case.finding(
                "ntasks-per-node-with-torchrun",
                f"{tasks} tasks per node are asked for, {launch.kind} starts once",
                line=case.directive_line("ntasks-per-node"),
                more=[case.line_of(launch, launch.kind)],
                why=(
                    "the launcher makes the processes itself; it needs one task with the CPUs of"
                    " all of them"
                ),
                fix="#SBATCH --ntasks-per-node=1, and --cpus-per-task for all processes together",
                severity="hint",
            )
            return


def double_launch(case: Case) -> Iterator[Finding]:
    """Find launchers that srun starts in several tasks of a node, each for all processes of the
    node.
    """
    for launch in case.training:
        spread, processes = case.shape(launch), case.processes(launch)
        tasks = spread.tasks_per_node
        if not launch.spawns or launch.call.step is None or launch.call.maybe:
            continue
        if processes is None or tasks is None or tasks < 2:
            continue
        if processes > 1:
            effect = _starts(processes, tasks, spread.node_gpus)
        else:
            node_range = nnodes(launch)
            if node_range is None or spread.nodes is None or node_range[1] >= spread.nodes * tasks:
                continue
            effect = f"counts as a node, of which it expects {node_range[1]}"
        if _one_agent_per_task(launch, processes, spread.gpus_per_task, tasks, spread.nodes):
            continue
        yield case.finding(
            "double-launch",
            f"srun starts {tasks} tasks on each node, and {launch.kind} in each of them {effect}",
            line=case.line_of(launch, launch.kind.split()[0]),
            more=[case.directive_line("ntasks-per-node", "ntasks")],
            why="processes fight over GPUs, ports and ranks",
            fix="#SBATCH --ntasks-per-node=1  (one launcher on each node)",
            severity=case.severity(launch),
        )


def spawning_in_each_task(case: Case) -> Iterator[Finding]:
    """Find programs that spawn a process per GPU in each of several tasks of a node."""
    for launch in case.training:
        spread = case.shape(launch)
        tasks, gpus = spread.tasks_per_node or 1, spread.gpus or 1
        spawns = [arg for arg in launch.arguments if _SPAWNS.fullmatch(arg.text)]
        if launch.spawns or launch.call.step is None or launch.call.maybe:
            continue
        if tasks < 2 or gpus < 2 or not spawns:
            continue
        option = spawns[0].text
        yield case.finding(
            "double-launch",
            f"srun starts {tasks} tasks on each node, and {option} has each of them "
            + _starts(gpus, tasks, spread.node_gpus).replace("starts", "start"),
            line=case.line_of(launch, option),
            more=[case.directive_line("ntasks-per-node", "ntasks")],
            why="processes fight over GPUs, ports and ranks",
            fix="#SBATCH --ntasks-per-node=1  (the program starts the processes of a node)",
        )


def _starts(processes: int, tasks: int, gpus: int | None) -> str:
    return f"starts {processes} processes: {tasks * processes} on a node" + (
        f" with {gpus} GPUs" if gpus else ""
    )


def _one_agent_per_task(
    launch: Launch, processes: int, gpus_per_task: int | None, tasks: int, nodes: int | None
) -> bool:
    """Return whether each task is a separate node for the launcher: one agent per task, with bound
    GPUs.
    """
    if gpus_per_task is None or processes > gpus_per_task:
        return False
    node_range = nnodes(launch)
    return node_range is None or nodes is None or node_range[1] >= nodes * tasks


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
    match, devices = argument(launch, DEVICES), _requested_devices(launch)
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
        f"the program is told {case.show(match[1].text).partition('=')[0]}={devices},"
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
    if (
        tasks is None
        or gpus is None
        or tasks >= gpus
        or (spread.gpus_per_task or 1) * tasks == gpus
    ):
        return []
    nodes_argument = argument(launch, _NODES)
    has_nodes = nodes_argument is not None and number(nodes_argument[0]) == spread.nodes
    lightning = has_nodes and not argument(launch, (r"node[_-]rank",))
    if tasks == 1 and not lightning:
        return []
    if launch.call.step is not None and {"nodelist", "ntasks", "nodes"} & set(
        launch.call.step.options
    ):
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
    """Return whether the program likely uses Lightning on all GPUs, which then waits for missing
    tasks.
    """
    if _requested_devices(launch) == tasks:
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
    if not case.job.has_nodes or requested in (nodes, case.job.nodes):
        return
    if not _requested_devices(launch) and not _likely_lightning(case, launch):
        return  # possibly the nodes of a graph
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
    if job.has_tasks_per_node or job.mixed or not job.directives.any:
        return
    for launch in case.training:
        step = launch.call.step
        if launch.spawns or step is None or step.kind != "srun" or step.vague:
            continue
        if {"ntasks", "ntasks-per-node", "n"} & set(step.options):
            continue
        if job.directives.last("ntasks-per-gpu"):
            continue
        several = job.gpus_per_node is not None and job.gpus_per_node > 1 and not job.has_ntasks
        spread_freely = job.has_ntasks and not job.has_nodes and (job.ntasks or 0) > 1
        if several or spread_freely:
            tasks = job.gpus_per_node or job.ntasks
            yield case.finding(
                "ntasks-per-node-missing",
                "tasks per node are not given: "
                + ("srun starts one on each node" if several else "Slurm spreads them"),
                line=case.directive_line("nodes", "ntasks", "gres", "gpus-per-node"),
                why="srun starts the program once for each task",
                fix=f"#SBATCH --ntasks-per-node={tasks}",
                severity="hint",
            )
            return


def deepspeed_without_hostfile(case: Case) -> Iterator[Finding]:
    """Find the deepspeed launcher on several nodes without a hostfile."""
    for launch in case.training:
        if launch.kind != "deepspeed" or launch.vague or case.names_hosts:
            continue
        node_range = nnodes(launch)
        on_several = case.job.several_nodes and (
            launch.call.step is None or case.shape(launch).nodes != 1
        )
        expected = node_range[0] if node_range else 1
        if "no_ssh" in launch.options or (not on_several and expected < 2):
            continue
        nodes = case.job.nodes if on_several else expected
        yield case.finding(
            "deepspeed-without-hostfile",
            f"deepspeed is to use {nodes} nodes and has no hostfile",
            line=case.line_of(launch, "--num_nodes", "deepspeed"),
            why=(
                "it does not learn the nodes from Slurm: it uses the local one only, or refuses"
                " --num_nodes"
            ),
            fix=(
                "scontrol show hostnames $SLURM_JOB_NODELIST | sed 's/$/ slots=8/' > hostfile, then"
                " deepspeed --hostfile=hostfile without srun; or use srun torchrun"
            ),
            severity=case.severity(launch),
        )


def deprecated_launcher(case: Case) -> Iterator[Finding]:
    """Find python -m torch.distributed.launch."""
    for launch in case.launches:
        if launch.kind == "torch.distributed.launch":
            yield case.finding(
                "deprecated-launcher",
                "torch.distributed.launch is deprecated",
                line=case.line_of(launch, "torch.distributed.launch", "torch/distributed/launch"),
                why=(
                    "it passes --local-rank as an argument, which scripts written for torchrun do"
                    " not know"
                ),
                fix=(
                    "torchrun with the same options; the script reads LOCAL_RANK from the"
                    " environment"
                ),
                severity="hint",
            )


def launcher_option_unknown(case: Case) -> Iterator[Finding]:
    """Find options that the launcher does not have but that resemble one of its options."""
    for launch in case.launches:
        for typed in launch.unknown:
            table = TABLES[launch.kind]
            near = closest(typed.lstrip("-").replace("-", "_"), [*table.values, *table.flags])
            if not near:
                continue
            yield case.finding(
                "option-unknown",
                f"{launch.kind} has no option {typed}",
                line=case.line_of(launch, typed),
                why="the launcher refuses to start, or takes what follows for the script",
                fix=f"--{near}",
                severity="error" if len(near) > 3 and _near(typed, near) else "warning",
            )


def _near(typed: str, near: str) -> bool:
    left, right = typed.lstrip("-").replace("-", "_"), near
    return left.rstrip("s") == right.rstrip("s") or left.replace("_", "") == right.replace("_", "")


CHECKS = (
    missing_srun,
    ntasks_per_node_with_torchrun,
    double_launch,
    spawning_in_each_task,
    ntasks_conflict,
    slurm_ntasks_mismatch,
    ntasks_per_node_missing,
    deepspeed_without_hostfile,
    deprecated_launcher,
    launcher_option_unknown,
)
