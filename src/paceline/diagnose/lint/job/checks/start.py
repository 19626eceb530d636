"""Check where and how often programs start: srun, tasks and launchers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launcher_options import TABLES
from paceline.diagnose.lint.job.launches import Launch, nnodes, requested_devices
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.errors import Finding, closest

# Programs that start themselves on the nodes, and programs that are not a training run.
_SELF_SPREADING = re.compile(
    r"launch|submit|dispatch|schedul|orchestr|\bray\b|dask|spark|slurm|sweep|mpi|spawn", re.I
)
_BEFOREHAND = re.compile(
    r"prepare|preproc|download|convert|token|setup|install|check|split|build|make_|create|generate"
    r"|extract|collect|test|eval|infer|predict|merge|export|plot|report|summar|analy|stat|parse"
    r"|get_|cache|index|post",
    re.I,
)
# The switch of torch's ImageNet example and of its many descendants: one process for each GPU by
# mp.spawn.
_SPAWNS = re.compile(r"--(multiprocessing|mp)[-_]distributed")
_IS_TEST = re.compile(r"(^|/)test\w*\.py$")
_NO_PROGRAMS = names(
    "cd echo module ml export source . conda mamba mkdir ulimit date hostname nvidia-smi pwd set"
)
_INTERPRETER = re.compile(r"python[\d.]*|bash|sh")
_SPREADERS = names("ssh pdsh clush mpirun mpiexec ray parallel horovodrun dask spark-submit")


def missing_srun(case: Case) -> Iterator[Finding]:
    """Find jobs with several nodes or tasks whose program only starts on the first node."""
    job = case.job
    # Where something larger than a tool is started in a step, a start in the batch shell is likely
    # on purpose.
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
                severity=case.severity(launch) if requested_devices(launch) else "warning",
            )


def _needs_srun_per_task(case: Case, launch: Launch) -> bool:
    """Return whether a program expects one task per GPU, as Lightning does under Slurm."""
    # Lightning asks for as many tasks as GPUs. Another number may be a request for CPUs, which one
    # program uses for itself.
    tasks = case.job.tasks_per_node
    if tasks is None or tasks < 2 or tasks != case.job.gpus_per_node:
        return False
    if launch.spawns or case.hides_slurm:
        return False
    program = case.program(launch)
    return program is None or program.spawns is None


def _called(launch: Launch) -> str:
    return launch.kind if launch.spawns else launch.script or "the program"


def _spreads_itself(case: Case, launch: Launch) -> bool:
    """Return whether a program may start itself on the nodes, or another check covers it."""
    # It reaches the other nodes by ssh, and its hostfile has a check of its own.
    if launch.kind == "deepspeed":
        return True
    if launch.kind == "accelerate launch":
        return _is_configured(launch)
    if launch.spawns:
        return launch.vague and launch.call.maybe
    # A script that lists the hosts is likely to start something on each.
    if not launch.program or case.names_hosts:
        return True
    # test.py may be what several tasks with GPUs are asked for, if the job does nothing else.
    is_only = _IS_TEST.search(launch.script) is not None and _does_nothing_else(case, launch)
    patterns = (_SELF_SPREADING,) if is_only else (_SELF_SPREADING, _BEFOREHAND)
    return any(pattern.search(launch.script) for pattern in patterns)


def _does_nothing_else(case: Case, launch: Launch) -> bool:
    """Return whether a job asks for several tasks with GPUs, and starts this program only."""
    if not case.job.requests_gpus or (case.job.tasks_per_node or 1) < 2 or launch.arguments:
        return False
    return all(call.name in _NO_PROGRAMS for call in case.trace.calls if call is not launch.call)


def _is_configured(launch: Launch) -> bool:
    """Return whether a file may configure Accelerate for several nodes."""
    if launch.vague or {"deepspeed_hostfile", "mpirun_hostfile"} & set(launch.options):
        return True
    # A command that numbers this machine is one of several, each of which something has to start.
    numbers_machines = {"nnodes", "node_rank", "addr"} & set(launch.says)
    return "config_file" in launch.options and not numbers_machines


def ntasks_per_node_with_torchrun(case: Case) -> Iterator[Finding]:
    """Find jobs with several tasks per node whose launcher starts once, without srun."""
    tasks = case.job.tasks_per_node
    # On several nodes it is an error and not a hint, which missing_srun reports.
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
    """Find launchers that srun starts in several tasks of a node, each for all its processes."""
    for launch in case.training:
        tasks = case.shape(launch).tasks_per_node
        if not launch.spawns or launch.call.step is None or launch.call.maybe:
            continue
        effect = _effect_of_each(case, launch, tasks) if tasks and tasks > 1 else ""
        if not effect:
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


def _effect_of_each(case: Case, launch: Launch, tasks: int) -> str:
    """Return what the launcher does in each of several tasks, empty if that may be right."""
    spread, processes = case.shape(launch), case.processes(launch)
    node_range = nnodes(launch)
    if processes is None:
        return ""
    # One agent for each task is right if the launcher counts each task as a node, and if it starts
    # one process or no more than the GPUs that are bound to the task.
    counts_tasks = (
        node_range is None or spread.nodes is None or node_range[1] >= spread.nodes * tasks
    )
    if counts_tasks and processes <= (spread.gpus_per_task or 0):
        return ""
    if processes > 1:
        return _starts(processes, tasks, spread.node_gpus)
    if node_range is None or counts_tasks:
        return ""
    return f"counts as a node, of which it expects {node_range[1]}"


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
    on_gpus = f" with {gpus} GPUs" if gpus else ""
    return f"starts {processes} processes: {tasks * processes} on a node{on_gpus}"


def deepspeed_without_hostfile(case: Case) -> Iterator[Finding]:
    """Find the deepspeed launcher on several nodes without a hostfile."""
    for launch in case.training:
        # A script that names a host file may write it to where deepspeed looks for it.
        if launch.kind != "deepspeed" or launch.vague or case.names_hosts:
            continue
        node_range = nnodes(launch)
        on_several = case.job.several_nodes and (
            launch.call.step is None or case.shape(launch).nodes != 1
        )
        expected = node_range[0] if node_range else 1
        # With --no_ssh somebody starts it on each node, with a node rank.
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


def interpreter_as_script(case: Case) -> Iterator[Finding]:
    """Find launchers whose script is an interpreter: ``torchrun python train.py``."""
    for launch in case.launches:
        is_told = {"no_python", "module"} & set(launch.options) or launch.kind == "paceline run"
        if not launch.spawns or is_told or launch.vague:
            continue
        if not _INTERPRETER.fullmatch(launch.script):
            continue
        yield case.finding(
            "script-missing",
            f"{launch.kind} takes {launch.script} for the script",
            line=case.line_of(launch, launch.script),
            why=f"each rank runs `python {launch.script}`, which ends with: can't open file",
            fix=f"leave out {launch.script}: {launch.kind} starts Python itself",
            severity=case.severity(launch),
        )


def launcher_option_unknown(case: Case) -> Iterator[Finding]:
    """Find options that the launcher does not have but that resemble one of its options."""
    for launch in case.launches:
        for typed in launch.unknown:
            table = TABLES[launch.kind]
            near = closest(typed.lstrip("-").replace("-", "_"), [*table.values, *table.flags])
            # An option that resembles none may be of another version, and is left alone, unless
            # the script gets it too.
            is_of_script = typed in [argument.text for argument in launch.arguments]
            if not near and not is_of_script:
                continue
            yield case.finding(
                "option-unknown",
                f"{launch.kind} has no option {typed}",
                line=case.line_of(launch, typed),
                why="the launcher refuses to start, or takes what follows for the script",
                fix=f"--{near}" if near else f"leave {typed} to the script, which gets it too",
                severity="error" if len(near) > 3 and _near(typed, near) else "warning",
            )


def _near(typed: str, near: str) -> bool:
    """Return whether two options differ in dashes and underscores, or in a final s only."""
    typed = typed.lstrip("-").replace("-", "_")
    if typed.rstrip("s") == near.rstrip("s"):
        return True
    return typed.replace("_", "") == near.replace("_", "")


CHECKS = (
    missing_srun,
    ntasks_per_node_with_torchrun,
    double_launch,
    spawning_in_each_task,
    deepspeed_without_hostfile,
    deprecated_launcher,
    interpreter_as_script,
    launcher_option_unknown,
)
