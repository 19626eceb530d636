"""Check a job against the training script that it starts: ranks, devices, CPUs, address."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch
from paceline.diagnose.lint.job.ranks import ranks_of, resolve, visible_gpus
from paceline.diagnose.lint.job.shell.values import BATCH
from paceline.diagnose.lint.program import ALL_CPUS, Number, Place, Program, Runner
from paceline.errors import Finding

# Names of a script's own settings; a library reads others.
_OWN_SETTING = re.compile(
    r"((NUM|N)_)?(WORKERS|EPOCHS)|(\w+_)?BATCH_SIZE|LR|LEARNING_RATE|(DATA|OUTPUT|CHECKPOINT)_(DIR|PATH)"
)
_RANK_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI_RANK"})


def _pairs(case: Case) -> Iterator[tuple[Launch, Program]]:
    for launch in case.training:
        program = case.program(launch)
        if program is not None:
            yield launch, program


# Lightning


def lightning_ranks(case: Case) -> Iterator[Finding]:
    """Find a Trainer or Fabric of Lightning whose devices or nodes differ from those of the job."""
    for launch, program in _pairs(case):
        runner = program.runner
        # fabric run gives the script devices and nodes itself, in LT_DEVICES and LT_NUM_NODES.
        if runner is None or launch.kind == "fabric run":
            continue
        # Lightning asks for torchrun's variables before Slurm's, so under a launcher in a step the
        # ranks are the launcher's, not the tasks.
        if launch.spawns:
            yield from _under_launcher(case, launch, program, runner)
        elif not case.hides_slurm and not (launch.call.maybe and launch.call.place == BATCH):
            yield from _under_slurm(case, launch, program, runner)


def _under_launcher(
    case: Case, launch: Launch, program: Program, runner: Runner
) -> Iterator[Finding]:
    devices, nodes = resolve(case, launch, runner.devices), resolve(case, launch, runner.num_nodes)
    ranks = ranks_of(case, launch)
    # Only under torchrun's variables does Lightning compare its devices with WORLD_SIZE.
    if not launch.torchrun_like or ranks is None:
        return
    if not devices or not nodes or devices * nodes == ranks[0] * ranks[1]:
        return
    devices_text = '"auto"' if ranks[0] == case.shape(launch).gpus else str(ranks[0])
    yield case.finding(
        "world-size-mismatch",
        f"{launch.kind} starts {_times(*ranks)}, and the {runner.title} asks for"
        f" {_times(devices, nodes)}",
        line=case.line_of(launch, "--nproc", launch.kind.split()[0]),
        more=[case.line_of(launch, "--nnodes", "--nproc")],
        why=_alone(runner, devices, nodes)
        or "Lightning refuses: the product does not match the world size",
        fix=f"{runner.title}(devices={devices_text}, num_nodes={ranks[1]}, ...)",
        severity=case.severity(launch),
        beside=(program, runner.at),
    )


def variable_not_read(case: Case) -> Iterator[Finding]:
    """Find exported settings that only the training script could read, and that it does not."""
    texts = [program.alone for _, program in _pairs(case)]
    if case.trace.sourced or not texts or len(texts) < len(case.training) or "" in texts:
        return
    for name in dict.fromkeys(
        s.name for s in case.trace.settings if _OWN_SETTING.fullmatch(s.name)
    ):
        setting = case.exported(name)
        mentions = re.findall(rf"\b{name}\b", "\n".join((case.code, *texts)))
        if setting is not None and len(mentions) == 1:
            yield case.finding(
                "variable-unknown",
                f"nothing reads {name}: neither this job nor its training script",
                line=setting.line,
                why="it is silently ignored",
                fix=f'os.environ["{name}"] in the script, or an argument in its place',
                severity="hint",
            )


def _times(ranks: int, nodes: int) -> str:
    processes = f"{ranks} process{'es' if ranks > 1 else ''}"
    return f"{processes} on each of {nodes} nodes" if nodes > 1 else f"{processes} on one node"


def _alone(runner: Runner, devices: int, nodes: int) -> str:
    # For one device on one node strategy="auto" is SingleDeviceStrategy, whatever was launched.
    if runner.single and devices == nodes == 1:
        return (
            "with one device and one node it makes no process group: each process trains alone, on"
            " the same data"
        )
    return ""


def _under_slurm(case: Case, launch: Launch, program: Program, runner: Runner) -> Iterator[Finding]:
    in_step = launch.call.step is not None
    devices, nodes = resolve(case, launch, runner.devices), resolve(case, launch, runner.num_nodes)
    if not _ranks_are_tasks(case, launch):
        return
    if not in_step and (devices, nodes) == (1, 1):
        return  # one process on one GPU, as the script requests
    allocation = case.shape(launch) if in_step else case.job
    tasks = allocation.tasks_per_node
    if devices and tasks and devices != tasks:
        yield _devices(case, launch, program, devices=devices, tasks=tasks, nodes=nodes or 1)
    elif in_step and _lacks_tasks_per_node(case, launch):
        yield _tasks_per_node_missing(case, launch, program, tasks or 1)
    if case.job.has_nodes:
        yield from _against_nodes(case, launch, program, requested=nodes, nodes=allocation.nodes)


def _ranks_are_tasks(case: Case, launch: Launch) -> bool:
    """Return whether Lightning takes its ranks from Slurm's tasks."""
    step = launch.call.step
    # In the batch shell Slurm sets SLURM_NTASKS only if tasks were requested. Without the variable
    # Lightning starts the processes itself.
    if step is None:
        return case.job.has_ntasks or case.job.has_tasks_per_node
    return step.kind == "srun" and not step.vague


def _devices(
    case: Case, launch: Launch, program: Program, *, devices: int, tasks: int, nodes: int
) -> Finding:
    assert program.runner is not None
    runner = program.runner
    in_step = launch.call.step is not None
    starts = "srun starts" if in_step else "the job has"
    srun = "" if in_step else ", and srun before the command"
    refused = (
        "under Slurm each task is one rank: Lightning refuses to start, or trains with fewer ranks"
    )
    return case.finding(
        "slurm-ntasks-mismatch",
        f"the {runner.title} has devices={devices}, and {starts} {tasks}"
        f" task{'s' if tasks > 1 else ''} on a node",
        line=case.directive_line("ntasks-per-node", "ntasks", "nodes"),
        more=[case.line_of(launch, launch.script)],
        why=_alone(runner, devices, nodes) or refused,
        fix=f"#SBATCH --ntasks-per-node={devices}{srun}, or devices={tasks}",
        severity=case.severity(launch),
        beside=(program, runner.at),
    )


def _against_nodes(
    case: Case, launch: Launch, program: Program, *, requested: int | None, nodes: int | None
) -> Iterator[Finding]:
    assert program.runner is not None
    runner = program.runner
    if not requested or not nodes or requested == nodes:
        return
    yield case.finding(
        "slurm-ntasks-mismatch",
        f"the {runner.title} has num_nodes={requested}, and the job has {nodes}"
        f" node{'s' if nodes > 1 else ''}",
        line=case.directive_line("nodes"),
        more=[case.line_of(launch, launch.script)],
        why="Lightning compares it with Slurm's number and refuses to start",
        fix=f"{runner.title}(num_nodes={nodes}, ...)",
        severity=case.severity(launch),
        beside=(program, runner.at),
    )


def _lacks_tasks_per_node(case: Case, launch: Launch) -> bool:
    """Return whether a step has several tasks, and no option says how many run on each node."""
    # Without the option Slurm does not set SLURM_NTASKS_PER_NODE, which Lightning insists on.
    step = launch.call.step
    if case.job.has_tasks_per_node or (step is not None and "ntasks-per-node" in step.options):
        return False
    return (case.shape(launch).tasks or 1) > 1


def _tasks_per_node_missing(case: Case, launch: Launch, program: Program, tasks: int) -> Finding:
    assert program.runner is not None
    return case.finding(
        "slurm-ntasks-mismatch",
        "Lightning is started in several tasks, and --ntasks-per-node is not given",
        line=case.directive_line("ntasks", "nodes"),
        more=[case.line_of(launch, launch.script)],
        why=(
            "Lightning takes the ranks of a node from that option only, and refuses --ntasks"
            " without it"
        ),
        fix=f"#SBATCH --ntasks-per-node={tasks}",
        severity=case.severity(launch),
        beside=(program, program.runner.at),
    )


# ranks


def ranks_without_launcher(case: Case) -> Iterator[Finding]:
    """Find scripts that read RANK and WORLD_SIZE but are started without a launcher."""
    for launch, program in _pairs(case):
        if launch.spawns or _may_set_ranks(case, launch):
            continue
        ranks = ranks_of(case, launch)
        tasks = ranks[0] * ranks[1] if ranks else 1
        if program.needs_ranks is not None:
            why = "torch ends with: environment variable RANK expected, but not set (or KeyError)"
            yield _without_launcher(case, launch, (program, program.needs_ranks), why)
        elif program.adopts_ranks is not None and tasks > 1:
            yield _without_launcher(
                case,
                launch,
                (program, program.adopts_ranks),
                f"each of the {tasks} tasks trains alone",
            )


def _may_set_ranks(case: Case, launch: Launch) -> bool:
    """Return whether something before the script may set the variables of a rank."""
    step = launch.call.step
    # A sourced file may export them, and MPI has ranks of its own.
    if case.trace.sourced or _RANK_VARIABLES & set(launch.call.env):
        return True
    return step is not None and (step.kind != "srun" or step.vague or "mpi" in step.options)


def _without_launcher(
    case: Case, launch: Launch, beside: tuple[Program, Place], why: str
) -> Finding:
    by = "srun" if launch.call.step is not None else "the job"
    srun = "srun --ntasks-per-node=1 " if launch.call.step is not None else ""
    return case.finding(
        "rank-env-missing",
        f"{launch.script} takes its rank from RANK and WORLD_SIZE, and {by} starts it without a"
        " launcher",
        line=case.line_of(launch, launch.script),
        why=why,
        fix=f"{srun}paceline run {launch.script} ...  (or {srun}torchrun ...)",
        severity=case.severity(launch),
        beside=beside,
    )


def spawned_twice(case: Case) -> Iterator[Finding]:
    """Find scripts that spawn the processes of a node although the job starts them too."""
    for launch, program in _pairs(case):
        ranks = ranks_of(case, launch)
        # One process for each node that spawns the others is how torch's examples do it.
        if program.spawns is None or ranks is None or ranks[0] < 2:
            continue
        spawned = resolve(case, launch, program.spawns[0])
        if not spawned or spawned < 2:
            continue
        starter = launch.kind if launch.spawns else "srun"
        yield case.finding(
            "double-launch",
            f"{starter} starts {ranks[0]} processes on a node, and each of them spawns {spawned}",
            line=case.line_of(launch, "--nproc", launch.script),
            why="processes fight over GPUs, ports and ranks",
            fix=f"python {launch.script}  (once on a node), or remove mp.spawn from the script",
            severity=case.severity(launch),
            beside=(program, program.spawns[1]),
        )


def launched_twice(case: Case) -> Iterator[Finding]:
    """Find scripts that call ``launch()`` of Fabric although ``fabric run`` starts them."""
    for launch, program in _pairs(case):
        if launch.kind == "fabric run" and program.launches is not None:
            yield case.finding(
                "double-launch",
                "fabric run starts the script, and the script calls launch(), which Fabric refuses",
                line=case.line_of(launch, "fabric"),
                why="RuntimeError: ... launched through the CLI ... not allowed",
                fix=f"paceline run {launch.script}, or torchrun in place of fabric run",
                severity=case.severity(launch),
                beside=(program, program.launches),
            )


# CPUs, GPUs, addresses, data


def loader_workers(case: Case) -> Iterator[Finding]:
    """Find scripts whose loader workers need more CPUs than their ranks have."""
    for launch, program in _pairs(case):
        if program.workers is None or case.has_cpus_of_all_tasks(launch):
            continue
        number, place = program.workers
        excess = _excess(case, launch, number)
        if excess is None:
            continue
        summary, fix = excess
        yield case.finding(
            "workers-exceed-cpus",
            summary,
            line=case.directive_line("cpus-per-task"),
            more=[case.line_of(launch, launch.script)],
            why="workers that share a CPU are not faster, and the GPUs wait",
            fix=fix,
            severity="warning",
            beside=(program, place),
        )


def _excess(case: Case, launch: Launch, workers: Number) -> tuple[str, str] | None:
    """Return what exceeds the CPUs of a task, and the fix, or None if the workers have enough."""
    shape, processes = case.shape(launch), case.processes(launch)
    if shape.cpus is None or processes is None:
        return None
    on_node = processes * (shape.tasks_per_node or 1)
    # os.cpu_count() ignores the CPUs that Slurm has given: all of the node, in each process.
    if workers.kind == ALL_CPUS and on_node > 1:
        return _all_cpus(on_node, processes)
    per_process = resolve(case, launch, workers)
    # With fewer CPUs than processes the workers are not the point: cpus-too-few says so.
    if per_process and per_process * processes > shape.cpus >= processes:
        return _too_many_workers(processes, per_process, shape.cpus)
    return None


def _all_cpus(on_node: int, in_task: int) -> tuple[str, str]:
    summary = (
        f"each of {on_node} processes on a node starts a loader worker for every CPU of the node"
    )
    share = f" // {in_task}" if in_task > 1 else ""
    return summary, f"num_workers=len(os.sched_getaffinity(0)){share} - 1"


def _too_many_workers(processes: int, per_process: int, cpus: int) -> tuple[str, str]:
    starters = f"{processes} process{'es' if processes > 1 else ''}"
    summary = (
        f"{starters} with {per_process} loader workers each on {cpus} CPU{'s' if cpus > 1 else ''}"
    )
    enough = (per_process + 1) * processes
    fewer = max(1, cpus // processes - 1)
    return summary, f"#SBATCH --cpus-per-task={enough}, or num_workers={fewer}"


def rendezvous_replaced(case: Case) -> Iterator[Finding]:
    """Find scripts that replace the launcher's address or port."""
    for launch, program in _pairs(case):
        ranks = ranks_of(case, launch)
        if ranks is None:
            continue
        if program.port is not None and ranks[0] * ranks[1] > 1:
            yield from _port_replaced(case, launch, program, *program.port)
        if program.address is not None and ranks[1] > 1:
            address, place = program.address
            yield case.finding(
                "master-addr-wrong",
                f"the script replaces MASTER_ADDR by {address}, which means each of the {ranks[1]}"
                " nodes itself",
                line=case.line_of(launch, launch.script),
                more=[case.directive_line("nodes")],
                why="the nodes do not meet",
                fix='remove the line, or os.environ.setdefault("MASTER_ADDR", ...)',
                severity=case.severity(launch),
                beside=(program, place),
            )


def _port_replaced(
    case: Case, launch: Launch, program: Program, port: str, place: Place
) -> Iterator[Finding]:
    # torchrun's agent hosts the store of its ranks (TORCHELASTIC_USE_AGENT_STORE), so they all only
    # connect. Without an agent rank 0 would open the replaced port itself, and they would meet.
    if (
        launch.kind not in ("torchrun", "torch.distributed.launch")
        or launch.says.get("port") == port
    ):
        return
    yield case.finding(
        "master-unreachable",
        f"the script replaces torchrun's MASTER_PORT by {port}, where nothing listens",
        line=case.line_of(launch, launch.kind.split()[0]),
        why=(
            "the ranks meet in the store of torchrun, whose port is in that variable: they wait in"
            " vain"
        ),
        fix='remove the line, or os.environ.setdefault("MASTER_PORT", ...)',
        severity=case.severity(launch),
        beside=(program, place),
    )


def device_by_rank(case: Case) -> Iterator[Finding]:
    """Find scripts that select a GPU by a rank greater than the number of visible GPUs."""
    if case.shares_gpus:
        return
    for launch, program in _pairs(case):
        if program.selects is None:
            continue
        kind, place = program.selects
        by_rank = _by_global_rank if kind == "global" else _by_local_rank
        yield from by_rank(case, launch, (program, place))


def _by_global_rank(case: Case, launch: Launch, beside: tuple[Program, Place]) -> Iterator[Finding]:
    ranks = ranks_of(case, launch)
    gpus = visible_gpus(launch) or case.shape(launch).gpus
    # With fewer GPUs than the ranks of a node even the local rank would be too large, which
    # gpus-fewer-than-processes reports.
    if ranks is None or not gpus or not ranks[0] * ranks[1] > gpus >= ranks[0]:
        return
    yield case.finding(
        "invalid-device-ordinal",
        "the script selects its GPU by the rank in the whole run, 0 to"
        f" {ranks[0] * ranks[1] - 1}, and sees {gpus} GPU{'s' if gpus > 1 else ''}",
        line=case.line_of(launch, launch.script),
        more=[case.directive_line("nodes")],
        why="on the second node, or with one GPU for each task, that GPU does not exist",
        fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        severity=case.severity(launch),
        beside=beside,
    )


def _by_local_rank(case: Case, launch: Launch, beside: tuple[Program, Place]) -> Iterator[Finding]:
    ranks, gpus = ranks_of(case, launch), case.shape(launch).gpus_per_task
    # The ranks of a launcher are in one task and see the same GPUs.
    if launch.spawns or ranks is None or not gpus or ranks[0] <= gpus:
        return
    directive = case.job.directives.last("gpus-per-task")
    yield case.finding(
        "gpus-per-task-with-local-rank",
        f"--gpus-per-task={gpus} shows each task GPUs from number 0 on, and the script selects one"
        " by its local rank",
        line=directive.line if directive else launch.call.line,
        more=[launch.call.line],
        why="cuda:1 and above do not exist for the task: invalid device ordinal",
        fix=f"#SBATCH --gpus-per-node={ranks[0]} in its place, or srun --gpu-bind=none",
        severity=case.severity(launch),
        beside=beside,
    )


def downloads_at_once(case: Case) -> Iterator[Finding]:
    """Find scripts in which all ranks download the same files into one folder at the same time."""
    for launch, program in _pairs(case):
        ranks = ranks_of(case, launch)
        if program.downloads is None or ranks is None or ranks[0] * ranks[1] < 2:
            continue
        yield case.finding(
            "download-on-every-rank",
            f"{ranks[0] * ranks[1]} ranks download the data set into one folder at the same time",
            line=case.line_of(launch, launch.script),
            why="where the files are not there yet, the ranks write them over each other",
            fix=(
                "download before the job, or let local rank 0 go first and the others wait at a"
                " barrier"
            ),
            severity="hint",
            beside=(program, program.downloads),
        )


CHECKS = (
    lightning_ranks,
    ranks_without_launcher,
    spawned_twice,
    launched_twice,
    loader_workers,
    rendezvous_replaced,
    device_by_rank,
    downloads_at_once,
    variable_not_read,
)
