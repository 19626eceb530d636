"""Check the GPUs and CPUs of a job against its processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.allocation import GPU_OPTIONS, number
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launcher_options import TABLES
from paceline.diagnose.lint.job.launches import DEVICES, Launch, argument
from paceline.diagnose.lint.job.shell.values import NODE, constant
from paceline.errors import Finding

_NUMBERED = re.compile(r"\d+(,\d+)*")


def gpus_fewer_than_processes(case: Case) -> Iterator[Finding]:
    """Find nodes with fewer GPUs than the launcher or srun starts processes."""
    for launch in case.training:
        spread, processes = case.shape(launch), case.processes(launch)
        if launch.spawns:
            yield from _too_many(case, launch, processes, spread.gpus)
        elif launch.call.step is not None:
            tasks, gpus = spread.tasks_per_node, spread.node_gpus
            if not tasks or not gpus or case.shares_gpus:
                continue
            if tasks > gpus:
                yield _fewer(case, launch, tasks, gpus, f"srun starts {tasks} tasks on a node")


def _too_many(
    case: Case, launch: Launch, processes: int | None, gpus: int | None
) -> Iterator[Finding]:
    if "cpu" in launch.options or launch.options.get("accelerator") == "cpu" or case.shares_gpus:
        return
    if not processes:
        return
    visible = _visible(launch)
    fewer_visible = visible is not None and (gpus is None or visible <= gpus)
    if visible is not None and fewer_visible and processes > visible:
        setting = case.exported("CUDA_VISIBLE_DEVICES")
        yield case.finding(
            "gpus-not-visible",
            f"{launch.kind} starts {processes} processes on a node, CUDA_VISIBLE_DEVICES shows them"
            f" {visible} GPUs",
            line=case.line_of(launch, *_count_texts(launch)),
            more=[setting.line] if setting else [],
            why=(
                "a process without a GPU of its own ends with an invalid device, or two of them"
                " share one"
            ),
            fix=_as_many(case, launch, visible),
            severity=case.severity(launch),
        )
    elif gpus and processes > gpus:
        yield _fewer(
            case, launch, processes, gpus, f"{launch.kind} starts {processes} processes on a node"
        )


def _as_many(case: Case, launch: Launch, visible: int) -> str:
    if case.job.directives.any or launch.call.step is not None:
        return "remove CUDA_VISIBLE_DEVICES; Slurm sets it"
    says = TABLES[launch.kind].says
    option = next((name for name in launch.options if says.get(name) == "nproc"), "")
    if not option or launch.says.get("nnodes", "1") != "1":
        return (
            f"start {visible} process{'es' if visible > 1 else ''} on a node, or name more GPUs in"
            " CUDA_VISIBLE_DEVICES"
        )
    return f"{launch.kind} --{option}={visible}, or name more GPUs in CUDA_VISIBLE_DEVICES"


def _count_texts(launch: Launch) -> tuple[str, ...]:
    return (
        "--nproc",
        "--num_processes",
        "--num-processes",
        "--num_gpus",
        "--devices",
        "-n ",
        launch.kind.split()[0],
    )


def _fewer(case: Case, launch: Launch, processes: int, gpus: int, start: str) -> Finding:
    texts = _count_texts(launch) if launch.spawns else (launch.script,)
    line = (
        case.line_of(launch, *texts)
        if launch.spawns
        else case.directive_line("ntasks-per-node", "ntasks")
    )
    number_of = f"{gpus} GPU" + ("s" if gpus > 1 else "")
    what = f"{start}, which has {number_of}"
    if launch.spawns and case.shape(launch).gpus_per_task:
        what = f"{start.replace('on a node', 'in a task')}, which sees {number_of}"
    return case.finding(
        "gpus-fewer-than-processes",
        what,
        line=line,
        more=[case.directive_line(*GPU_OPTIONS), case.line_of(launch, *texts)],
        why=(
            "each process needs a GPU of its own: invalid device ordinal, or Duplicate GPU detected"
        ),
        fix=(
            f"ask for {processes} GPUs on a node (#SBATCH --gpus-per-node={processes}), or start"
            f" {gpus}"
        ),
        severity=case.severity(launch),
    )


def _visible(launch: Launch) -> int | None:
    value = launch.call.env.get("CUDA_VISIBLE_DEVICES")
    return len(value.split(",")) if isinstance(value, str) and _NUMBERED.fullmatch(value) else None


def nproc_gpus_mismatch(case: Case) -> Iterator[Finding]:
    """Find launchers that start fewer processes than the node has GPUs."""
    if sum(1 for launch in case.training if launch.call.background) > 1:
        return  # several programs share the GPUs
    for launch in case.training:
        spread, processes = case.shape(launch), case.processes(launch)
        if not launch.spawns or launch.call.background or launch.vague or processes is None:
            continue
        gpus = _visible(launch) or spread.gpus
        tasks = 1 if spread.gpus_per_task else spread.tasks_per_node
        if not gpus or not tasks or _other_programs(case):
            continue
        total = processes * tasks
        if total >= gpus:
            continue
        yield case.finding(
            "nproc-gpus-mismatch",
            f"{launch.kind} starts {total} process{'es' if total > 1 else ''} on a node with {gpus}"
            " GPUs",
            line=case.line_of(launch, *_count_texts(launch)),
            more=[case.directive_line(*GPU_OPTIONS)],
            why="the other GPUs are paid for and idle",
            fix=_all_gpus(case, launch, gpus),
            severity="warning",
        )


def _other_programs(case: Case) -> bool:
    """Return whether a background program may use the other GPUs."""
    return any(
        call.background and call.name.startswith(("python", "vllm", "trl"))
        for call in case.trace.calls
    )


def _all_gpus(case: Case, launch: Launch, gpus: int) -> str:
    if launch.kind == "accelerate launch":
        return f"--num_processes={gpus * (case.shape(launch).nodes or 1)}  (the total of all nodes)"
    if launch.torchrun_like:
        return f"--nproc-per-node={gpus}"
    return {"deepspeed": "--num_gpus", "composer": "--nproc", "fabric run": "--devices"}[
        launch.kind
    ] + f"={gpus}"


def gpus_per_task_with_local_rank(case: Case) -> Iterator[Finding]:
    """Find programs that select a GPU by local rank although each task sees only one GPU."""
    for launch in case.training:
        spread = case.shape(launch)
        if launch.spawns or spread.gpus_per_task != 1 or (spread.tasks_per_node or 1) < 2:
            continue
        devices = argument(launch, DEVICES)
        if _gets_local_rank(case, launch):
            use = "is told its local rank"
        elif devices and number(devices[0]) == spread.tasks_per_node:
            use = f"is told to use {devices[0]} devices"
        else:
            continue
        directive = case.job.directives.last("gpus-per-task")
        yield case.finding(
            "gpus-per-task-with-local-rank",
            f"--gpus-per-task=1 shows each task one GPU, number 0, and the program {use}",
            line=directive.line if directive else launch.call.line,
            more=[case.line_of(launch, "SLURM_LOCALID", *(["devices"] if devices else []))],
            why="cuda:1 and above do not exist for the task: invalid device ordinal",
            fix=(
                f"#SBATCH --gpus-per-node={spread.tasks_per_node} in its place, or srun"
                " --gpu-bind=none"
            ),
        )


def _gets_local_rank(case: Case, launch: Launch) -> bool:
    """Return whether a program gets SLURM_LOCALID as an argument or as LOCAL_RANK."""
    rank_argument = argument(launch, (r"local[_-]rank", r"gpu", r"device"))
    if rank_argument and _local(case, rank_argument[0]):
        return True
    exported = launch.call.env.get("LOCAL_RANK")
    return isinstance(exported, str) and _local(case, exported)


def _local(case: Case, text: str) -> bool:
    symbol = case.symbols.only(text)
    return symbol is not None and symbol.name == "SLURM_LOCALID" and symbol.place == NODE


def cpus_per_task_missing(case: Case) -> Iterator[Finding]:
    """Find jobs that request no CPUs, so that Slurm assigns one to each task."""
    job = case.job
    if job.requests_cpus or job.exclusive or job.mixed:
        return
    if not job.requests_gpus or not case.training:
        return
    steps = [launch.call.step for launch in case.training if launch.call.step is not None]
    if any("cpus-per-task" in step.options for step in steps):
        return
    if not steps and (job.ntasks or 1) > (job.nodes or 1):
        return  # tasks are requested instead of CPUs
    launch = case.training[0]
    processes = case.processes(launch)
    yield case.finding(
        "cpus-per-task-missing",
        "no CPUs are asked for: Slurm gives one to each task"
        + (f", here for {processes} processes" if processes and processes > 1 else ""),
        line=case.directive_line("ntasks-per-node", *GPU_OPTIONS),
        why="loader workers and processes share one CPU and the GPUs wait",
        fix=f"#SBATCH --cpus-per-task={8 * (processes or 1)}",
        severity="warning",
    )


def cpus_too_few(case: Case) -> Iterator[Finding]:
    """Find tasks with fewer CPUs than processes or loader workers."""
    if case.job.exclusive and not case.job.requests_cpus:
        return
    for launch in case.training:
        cpus, processes = case.shape(launch).cpus, case.processes(launch)
        step = launch.call.step
        if step is None and (case.job.ntasks or 1) > (case.job.nodes or 1):
            continue  # the batch shell has the CPUs of all tasks on its node
        if cpus is None or processes is None:
            continue
        if processes > cpus:
            yield case.finding(
                "cpus-too-few",
                f"{cpus} CPU{'s' if cpus > 1 else ''} for the {processes} processes that"
                f" {launch.kind} starts",
                line=case.directive_line("cpus-per-task"),
                more=[case.line_of(launch, *_count_texts(launch))],
                why="processes and their loader workers share CPUs and the GPUs wait",
                fix=f"#SBATCH --cpus-per-task={8 * processes}",
                severity="warning",
            )
        if not (program := case.program(launch)) or program.workers is None:
            yield from _workers(case, launch, cpus, processes)


def _workers(case: Case, launch: Launch, cpus: int, processes: int) -> Iterator[Finding]:
    match = argument(
        launch, (r"(?:\w+\.)*(?:data_?loader_)?num[_-]workers", r"(?:\w+\.)*dataloader_num_workers")
    )
    workers = number(match[0]) if match and constant(match[0]) else None
    if match is None or not workers or workers * processes <= cpus:
        return
    if cpus == processes == 1:
        yield case.finding(
            "cpus-too-few",
            f"1 CPU for a process and its {workers} loader workers",
            line=case.directive_line("cpus-per-task"),
            more=[case.line_of(launch, match[1].text.partition("=")[0])],
            why=(
                "the process itself has no CPU of its own: it launches kernels late and the GPU"
                " waits"
            ),
            fix=f"#SBATCH --cpus-per-task={workers + 1}",
            severity="warning",
        )
    name = match[1].text.partition("=")[0]
    yield case.finding(
        "workers-exceed-cpus",
        f"{processes} process{'es' if processes > 1 else ''} with {workers} loader workers each on"
        f" {cpus} CPUs",
        line=case.line_of(launch, name),
        more=[case.directive_line("cpus-per-task")],
        why="workers that share a CPU are not faster, and the GPUs wait",
        fix=(
            f"#SBATCH --cpus-per-task={(workers + 1) * processes}, or {name}"
            f" {max(1, cpus // processes - 1)}"
        ),
        severity="warning",
    )


CHECKS = (
    gpus_fewer_than_processes,
    nproc_gpus_mismatch,
    gpus_per_task_with_local_rank,
    cpus_per_task_missing,
    cpus_too_few,
)
