"""Check the GPUs and CPUs of a job against its processes."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.lint.job.allocation import GPU_OPTIONS, number
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launcher_options import TABLES
from paceline.diagnose.lint.job.launches import DEVICES, Launch, argument
from paceline.diagnose.lint.job.ranks import visible_gpus
from paceline.diagnose.lint.job.shell.values import NODE, constant
from paceline.errors import Finding

# A program's own option for its loader workers.
_WORKERS = (r"(?:\w+\.)*(?:data_?loader_)?num[_-]workers", r"(?:\w+\.)*dataloader_num_workers")


def gpus_fewer_than_processes(case: Case) -> Iterator[Finding]:
    """Find nodes with fewer GPUs than the launcher or srun starts processes."""
    for launch in case.training:
        spread, processes = case.shape(launch), case.processes(launch)
        if launch.spawns:
            yield from _too_many(case, launch, processes, spread.gpus)
        elif launch.call.step is not None:
            tasks, gpus = spread.tasks_per_node, spread.node_gpus
            # With MPS, shards or --ntasks-per-gpu several processes on a GPU are meant.
            if not tasks or not gpus or case.shares_gpus:
                continue
            if tasks > gpus:
                yield _fewer(case, launch, tasks, gpus, f"srun starts {tasks} tasks on a node")


def _too_many(
    case: Case, launch: Launch, processes: int | None, gpus: int | None
) -> Iterator[Finding]:
    # --cpu of accelerate, --accelerator=cpu of fabric
    on_cpus = "cpu" in launch.options or launch.options.get("accelerator") == "cpu"
    if on_cpus or case.shares_gpus or not processes:
        return
    visible = visible_gpus(launch)
    # A list of more GPUs than the job has does not give the processes more.
    fewer_visible = visible is not None and (gpus is None or visible <= gpus)
    if visible is not None and fewer_visible and processes > visible:
        yield _not_visible(case, launch, processes, visible)
    elif gpus and processes > gpus:
        start = f"{launch.kind} starts {processes} processes on a node"
        yield _fewer(case, launch, processes, gpus, start)


def _not_visible(case: Case, launch: Launch, processes: int, visible: int) -> Finding:
    setting = case.exported("CUDA_VISIBLE_DEVICES")
    return case.finding(
        "gpus-not-visible",
        f"{launch.kind} starts {processes} processes on a node, CUDA_VISIBLE_DEVICES shows them"
        f" {visible} GPUs",
        line=case.line_of(launch, *_count_texts(launch)),
        more=[setting.line] if setting else [],
        why="a process without its own GPU ends with an invalid device, or two of them share one",
        fix=_as_many(case, launch, visible),
        severity=case.severity(launch),
    )


def _as_many(case: Case, launch: Launch, visible: int) -> str:
    if case.job.directives.any or launch.call.step is not None:
        return "remove CUDA_VISIBLE_DEVICES; Slurm sets it"
    # The fix names the option as typed. The number of processes of accelerate is the total of all
    # nodes, so for several nodes it is said in words.
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
    gpu_count = f"{gpus} GPU" + ("s" if gpus > 1 else "")
    summary = f"{start}, which has {gpu_count}"
    line = case.directive_line("ntasks-per-node", "ntasks")
    command_line = case.line_of(launch, launch.script)
    if launch.spawns:
        line = command_line = case.line_of(launch, *_count_texts(launch))
        if case.shape(launch).gpus_per_task:
            summary = f"{start.replace('on a node', 'in a task')}, which sees {gpu_count}"
    return case.finding(
        "gpus-fewer-than-processes",
        summary,
        line=line,
        more=[case.directive_line(*GPU_OPTIONS), command_line],
        why="each process needs its own GPU: invalid device ordinal, or Duplicate GPU detected",
        fix=(
            f"ask for {processes} GPUs on a node (#SBATCH --gpus-per-node={processes}), or start"
            f" {gpus}"
        ),
        severity=case.severity(launch),
    )


def nproc_gpus_mismatch(case: Case) -> Iterator[Finding]:
    """Find launchers that start fewer processes than the node has GPUs."""
    # Two launchers side by side, each on half of the GPUs, is how searches and servers are run.
    in_background = sum(1 for launch in case.training if launch.call.background)
    if in_background > 1 or _other_programs(case):
        return  # several programs share the GPUs
    for launch in case.training:
        counts = _processes_and_gpus(case, launch)
        if counts is None or counts[0] >= counts[1]:
            continue
        processes, gpus = counts
        yield case.finding(
            "nproc-gpus-mismatch",
            f"{launch.kind} starts {processes} process{'es' if processes > 1 else ''} on a node"
            f" with {gpus} GPUs",
            line=case.line_of(launch, *_count_texts(launch)),
            more=[case.directive_line(*GPU_OPTIONS)],
            why="the other GPUs are paid for and idle",
            fix=_all_gpus(case, launch, gpus),
            severity="warning",
        )


def _processes_and_gpus(case: Case, launch: Launch) -> tuple[int, int] | None:
    """Return the processes of a launcher on a node and the GPUs there, None if unknown."""
    if not launch.spawns or launch.call.background or launch.vague:
        return None
    spread, processes = case.shape(launch), case.processes(launch)
    # CUDA_VISIBLE_DEVICES narrows what Slurm has given, for this launch only.
    gpus = visible_gpus(launch) or spread.gpus
    # With GPUs bound to tasks the number is that of one task, as its processes are.
    tasks = 1 if spread.gpus_per_task else spread.tasks_per_node
    if processes is None or not gpus or not tasks:
        return None
    return processes * tasks, gpus


def _other_programs(case: Case) -> bool:
    """Return whether a background program may use the other GPUs."""
    # Reinforcement learning on language models runs a server for inference beside the training.
    return any(
        call.background and call.name.startswith(("python", "vllm", "trl"))
        for call in case.trace.calls
    )


def _all_gpus(case: Case, launch: Launch, gpus: int) -> str:
    if launch.kind == "accelerate launch":
        return f"--num_processes={gpus * (case.shape(launch).nodes or 1)}  (the total of all nodes)"
    if launch.torchrun_like:
        return f"--nproc-per-node={gpus}"
    options = {"deepspeed": "--num_gpus", "composer": "--nproc", "fabric run": "--devices"}
    return f"{options[launch.kind]}={gpus}"


def gpus_per_task_with_local_rank(case: Case) -> Iterator[Finding]:
    """Find programs that select a GPU by local rank although each task sees only one GPU."""
    for launch in case.training:
        spread = case.shape(launch)
        # The only task of a node has local rank 0, and its GPU is number 0.
        if launch.spawns or spread.gpus_per_task != 1 or (spread.tasks_per_node or 1) < 2:
            continue
        devices = argument(launch, DEVICES)
        if _gets_local_rank(case, launch):
            use = "gets its local rank"
        elif devices and number(devices[0]) == spread.tasks_per_node:
            use = f"is to use {devices[0]} devices"
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
    # An exclusive job has all CPUs of its nodes, and one without GPUs has no GPU to wait.
    if not job.requests_gpus or job.exclusive or job.mixed or not case.training:
        return
    if job.requests_cpus or _requests_cpus_otherwise(case):
        return
    processes = case.processes(case.training[0])
    several = f", here for {processes} processes" if processes and processes > 1 else ""
    yield case.finding(
        "cpus-per-task-missing",
        f"no CPUs are asked for: Slurm gives one to each task{several}",
        line=case.directive_line("ntasks-per-node", *GPU_OPTIONS),
        why="loader workers and processes share one CPU and the GPUs wait",
        fix=f"#SBATCH --cpus-per-task={8 * (processes or 1)}",
        severity="warning",
    )


def _requests_cpus_otherwise(case: Case) -> bool:
    """Return whether a step requests CPUs, or the job requests tasks instead of CPUs."""
    # Without srun all processes run in the batch shell, which has the CPUs of all tasks of its
    # node: --ntasks-per-node=8 is then a request for eight CPUs.
    steps = [launch.call.step for launch in case.training if launch.call.step is not None]
    if not steps:
        return (case.job.ntasks or 1) > (case.job.nodes or 1)
    return any("cpus-per-task" in step.options for step in steps)


def cpus_too_few(case: Case) -> Iterator[Finding]:
    """Find tasks with fewer CPUs than processes or loader workers."""
    if case.job.exclusive and not case.job.requests_cpus:
        return  # the job has all CPUs of its nodes
    for launch in case.training:
        cpus, processes = case.shape(launch).cpus, case.processes(launch)
        if cpus is None or processes is None or case.has_cpus_of_all_tasks(launch):
            continue
        if processes > cpus:
            yield _fewer_cpus(case, launch, cpus, processes)
        program = case.program(launch)
        # The script's own number of workers is judged by loader_workers, which shows its line.
        if program is None or program.workers is None:
            yield from _workers(case, launch, cpus, processes)


def _fewer_cpus(case: Case, launch: Launch, cpus: int, processes: int) -> Finding:
    return case.finding(
        "cpus-too-few",
        f"{cpus} CPU{'s' if cpus > 1 else ''} for the {processes} processes that {launch.kind}"
        " starts",
        line=case.directive_line("cpus-per-task"),
        more=[case.line_of(launch, *_count_texts(launch))],
        why="processes and their loader workers share CPUs and the GPUs wait",
        fix=f"#SBATCH --cpus-per-task={8 * processes}",
        severity="warning",
    )


def _workers(case: Case, launch: Launch, cpus: int, processes: int) -> Iterator[Finding]:
    """Find too few CPUs for the loader workers that the program's own option requests."""
    match = argument(launch, _WORKERS)
    workers = number(match[0]) if match and constant(match[0]) else None
    # As many workers as CPUs is usual: the process itself mostly waits for its GPU.
    if match is None or not workers or workers * processes <= cpus:
        return
    name = match[1].text.partition("=")[0]
    if cpus == processes == 1:
        yield case.finding(
            "cpus-too-few",
            f"1 CPU for a process and its {workers} loader workers",
            line=case.directive_line("cpus-per-task"),
            more=[case.line_of(launch, name)],
            why="the process itself has no CPU: it launches kernels late and the GPU waits",
            fix=f"#SBATCH --cpus-per-task={workers + 1}",
            severity="warning",
        )
    # One CPU for the process, which launches kernels, and one for each worker.
    enough, fewer = (workers + 1) * processes, max(1, cpus // processes - 1)
    yield case.finding(
        "workers-exceed-cpus",
        f"{processes} process{'es' if processes > 1 else ''} with {workers} loader workers each on"
        f" {cpus} CPUs",
        line=case.line_of(launch, name),
        more=[case.directive_line("cpus-per-task")],
        why="workers that share a CPU are not faster, and the GPUs wait",
        fix=f"#SBATCH --cpus-per-task={enough}, or {name} {fewer}",
        severity="warning",
    )


CHECKS = (
    gpus_fewer_than_processes,
    nproc_gpus_mismatch,
    gpus_per_task_with_local_rank,
    cpus_per_task_missing,
    cpus_too_few,
)
