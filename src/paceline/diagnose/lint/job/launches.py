"""Recognise the launches of a job: launcher, options, program, how many processes start where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from paceline.diagnose.lint.job.allocation import AllocatedJob, count_gpus, gpus_of_gres, number
from paceline.diagnose.lint.job.launcher_options import MODULES, TABLES, Table
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.diagnose.lint.job.shell.trace import CommandCall, Trace
from paceline.diagnose.lint.job.shell.values import Arg, Symbols, constant
from paceline.diagnose.lint.job.shell.wrappers import WrappedStart

PYTHON = "python"
# Checks compare launches with each other and with all commands.
MOST_LAUNCHES = 200
# A program's own option for its devices on a node, as Lightning's Trainer calls it.
DEVICES = (r"(?:[\w]+\.)*devices", r"(?:[\w]+\.)*trainer\.gpus")

_PYTHON = re.compile(r"python[0-9.]*$")
_PYTHON_VALUES = ("-W", "-X")
_COUNTS_GPUS = re.compile(r"nvidia-smi|rocm-smi|CUDA_VISIBLE_DEVICES|device_count")


@dataclass(frozen=True)
class Launch:
    """One start of a training script."""

    kind: str  # the launcher's command, or ``python``
    call: CommandCall  # the command
    # the launcher's options, by its own names
    options: Mapping[str, str] = field(default_factory=dict)
    # the options that all launchers have, by their shared names
    says: Mapping[str, str] = field(default_factory=dict)
    program: str = ""  # the script or module, empty if unknown
    arguments: tuple[Arg, ...] = ()  # the program's own arguments
    unknown: tuple[str, ...] = ()  # options that the launcher does not have
    vague: bool = False  # True if more options may come from an unknown variable

    @property
    def spawns(self) -> bool:
        """Whether the program is a launcher, which starts the processes."""
        return self.kind != PYTHON

    @property
    def says_by(self) -> frozenset[str]:
        """The launcher's options for processes, nodes and addresses."""
        return frozenset(TABLES[self.kind].says) if self.spawns else frozenset()

    @property
    def torchrun_like(self) -> bool:
        """Whether the launcher has torchrun's options with their meaning."""
        return self.kind in ("torchrun", "torch.distributed.launch", "paceline run")

    @property
    def script(self) -> str:
        """The program without its folder."""
        return self.program.rsplit("/", 1)[-1]


def find(trace: Trace) -> list[Launch]:
    """Return the launches among the programs that a script starts."""
    launches = (recognise(call, trace.symbols) for call in trace.calls)
    return list(islice((launch for launch in launches if launch is not None), MOST_LAUNCHES))


def recognise(call: CommandCall, symbols: Symbols) -> Launch | None:
    """Return a call as a launch, or None if it is not one."""
    args, name = list(call.args), call.name
    second = args[1].text if len(args) > 1 else ""
    if name in ("torchrun", "torchrun.py", "torchrun_main"):
        return _launcher("torchrun", args[1:], call)
    if name in ("deepspeed", "ds", "composer"):
        return _launcher("composer" if name == "composer" else "deepspeed", args[1:], call)
    if name == "accelerate-launch":
        return _launcher("accelerate launch", args[1:], call)
    if (name, second) in (("accelerate", "launch"), ("paceline", "run")):
        return _launcher(f"{name} {second}", args[2:], call)
    if name in ("fabric", "lightning") and second == "run" and len(args) > 2:
        return _launcher("fabric run", args[3:] if args[2].text == "model" else args[2:], call)
    if _PYTHON.match(name):
        return _python(args, call)
    # A script with a shebang starts without naming Python.
    if name.endswith(".py"):
        return Launch(PYTHON, call, program=args[0].text, arguments=tuple(args[1:]))
    return None


def _python(args: list[Arg], call: CommandCall) -> Launch | None:
    at = 1
    while at < len(args):
        text = args[at].text
        if text in ("-c", "-"):
            return None
        if text == "-m" and at + 1 < len(args):
            return _module(args[at + 1].text, args[at + 2 :], call)
        if not text.startswith("-"):
            break
        at += 2 if text in _PYTHON_VALUES else 1
    if at >= len(args):
        return None
    program = args[at]
    # python /path/to/bin/torchrun is how a launcher of another environment is named.
    if program.text.rsplit("/", 1)[-1] in ("torchrun", "deepspeed", "composer"):
        return _launcher(program.text.rsplit("/", 1)[-1], args[at + 1 :], call)
    if re.search(r"torch/distributed/(run|launch)\.py$", program.text):
        kind = "torchrun" if program.text.endswith("run.py") else "torch.distributed.launch"
        return _launcher(kind, args[at + 1 :], call)
    vague = program.loose
    return Launch(
        PYTHON,
        call,
        program="" if vague else program.text,
        arguments=tuple(args[at + 1 :]),
        vague=vague,
    )


def _module(name: str, rest: list[Arg], call: CommandCall) -> Launch | None:
    if name in MODULES:
        return _launcher(MODULES[name], rest, call)
    second = rest[0].text if rest else ""
    if (name, second) in (("paceline", "run"), ("accelerate", "launch")):
        return _launcher(f"{name} {second}", rest[1:], call)
    return None if name in _TOOLS else Launch(PYTHON, call, program=name, arguments=tuple(rest))


# Modules that are not a training run.
_TOOLS = names(
    "pip venv virtualenv ensurepip site json.tool http.server compileall zipfile pytest ipykernel"
    " jupyter torch.utils.collect_env ray.scripts.scripts tensorboard.main"
)


def _launcher(kind: str, args: list[Arg], call: CommandCall) -> Launch:
    table = TABLES[kind]
    options: dict[str, str] = {}
    unknown: list[str] = []
    vague, at, loose_at = False, 0, -1
    while at < len(args):
        arg = args[at]
        if arg.loose:
            vague, loose_at, at = True, at, at + 1
            continue
        if not arg.text.startswith("-") or len(arg.text) < 2:
            break
        if arg.text == "--":
            at += 1
            break
        unknown_before = len(unknown)
        consumed = _option(table, args, at, options, unknown)
        if len(unknown) > unknown_before and loose_at >= 0:
            # an unknown option after a word that may be the program belongs to the program
            del unknown[unknown_before:]
            at = loose_at
            break
        at += consumed
    program = args[at].text if at < len(args) else ""
    says = {table.says[name]: value for name, value in options.items() if name in table.says}
    _from_environment(kind, call, options, says, table)
    return Launch(
        kind,
        call,
        options,
        says,
        program,
        tuple(args[at + 1 :]),
        tuple(unknown),
        vague or call.chained or bool(unknown),
    )


def _option(
    table: Table, args: list[Arg], at: int, options: dict[str, str], unknown: list[str]
) -> int:
    text = args[at].text
    if text.startswith("--"):
        typed, equals, value = text[2:].partition("=")
        name = table.find(typed)
        # Accelerate adds options with these beginnings in each release.
        if not name and not typed.startswith(
            ("fsdp", "megatron", "fp8", "parallelism", "aws", "dynamo")
        ):
            unknown.append("--" + typed)
    else:
        name, value, equals = table.short.get(text[1], ""), text[2:], text[2:3]
        value = value.removeprefix("=")
    if name in table.flags:
        options[name] = value
        return 1
    if equals:
        options[name or text.partition("=")[0]] = value
        return 1
    following = args[at + 1] if at + 1 < len(args) else None
    if following is None:
        return 1
    # An option that is not in the table is taken for one with a value, unless what follows is an
    # option or the script.
    if not name and (following.text.startswith("-") or following.text.endswith(".py")):
        return 1
    options[name or text] = following.text
    return 2


def _from_environment(
    kind: str, call: CommandCall, options: dict[str, str], says: dict[str, str], table: Table
) -> None:
    """Add the options that torchrun reads from exported ``PET_...`` variables."""
    if kind not in ("torchrun", "torch.distributed.launch", "paceline run"):
        return
    for name, value in call.env.items():
        option = name[4:].lower() if name.startswith("PET_") else ""
        if option in table.values and option not in options and isinstance(value, str):
            options[option] = value
            if option in table.says:
                says[table.says[option]] = value


# how often and where

_Spread = tuple[int | None, int | None]  # nodes, and tasks on each of them


@dataclass(frozen=True)
class Shape:
    """How a step spreads over the nodes."""

    nodes: int | None  # nodes of the step, None if unknown
    tasks_per_node: int | None  # tasks on each, None if unknown
    gpus: int | None  # GPUs that one task sees, None if unknown
    node_gpus: int | None  # GPUs on a node, None if unknown
    gpus_per_task: int | None  # GPUs that are bound to each task, None without a binding
    cpus: int | None  # CPUs of a task, None if unknown

    @property
    def tasks(self) -> int | None:
        """Number of tasks of the step, None if unknown."""
        return self.nodes * self.tasks_per_node if self.nodes and self.tasks_per_node else None


def shape(job: AllocatedJob, step: WrappedStart | None) -> Shape:
    """Return how a step spreads over the job; the batch shell itself is one task on one node."""
    if job.mixed:
        return Shape(None, None, None, None, None, None)
    if step is None:
        return Shape(1, 1, job.gpus_per_node, job.gpus_per_node, None, job.cpus_per_task)
    # mpirun and ssh spread by host files, which are not read.
    if step.kind != "srun" or step.vague or "het-group" in step.options:
        return Shape(None, None, None, None, None, None)
    nodes, tasks = _spread(job, step)
    options = step.options
    requested = options.get("gpus-per-task")
    per_task = job.gpus_per_task if requested is None else count_gpus(requested)
    bind = options.get("gpu-bind", "") or _value(job, "gpu-bind")
    if bind:  # an explicit binding overrides the implicit one of --gpus-per-task
        per_task = number(bind.removeprefix("per_task:"))
    node_gpus = _step_gpus(job, step, tasks)
    if bind and bind != "none" and per_task is None:
        return Shape(nodes, tasks, None, node_gpus, None, _cpus(job, step))
    return Shape(nodes, tasks, per_task or node_gpus, node_gpus, per_task, _cpus(job, step))


def _value(job: AllocatedJob, name: str) -> str:
    directive = job.directives.last(name)
    return directive.value if directive else ""


def _cpus(job: AllocatedJob, step: WrappedStart) -> int | None:
    requested = step.options.get("cpus-per-task")
    return job.cpus_per_task if requested is None else number(requested)


def _step_gpus(job: AllocatedJob, step: WrappedStart, tasks: int | None) -> int | None:
    options = step.options
    if "gpus-per-node" in options:
        return count_gpus(options["gpus-per-node"])
    if "gres" in options:
        return gpus_of_gres(options["gres"]) or job.gpus_per_node
    if "gpus-per-task" in options and not job.requests_gpus:
        per_task = count_gpus(options["gpus-per-task"])
        return per_task * tasks if per_task and tasks else None
    # --gpus is the total of the step, which Slurm may spread unevenly.
    if "gpus" in options:
        return None
    return job.gpus_per_node


def _spread(job: AllocatedJob, step: WrappedStart) -> _Spread:
    """Return the nodes of a step and its tasks on each of them, None for unknown numbers."""
    options = step.options
    if "ntasks-per-node" in options:
        return _spread_per_node(job, options)
    if "ntasks" in options:
        return _spread_in_total(job, options)
    if "nodes" in options:
        nodes = number(options["nodes"])
        # How the job's tasks fit on other nodes is not known, unless each node has one.
        keeps_tasks = nodes == job.nodes or job.tasks_per_node == 1
        return nodes, job.tasks_per_node if keeps_tasks else None
    return None if "nodelist" in options else job.nodes, job.tasks_per_node


def _spread_per_node(job: AllocatedJob, options: Mapping[str, str]) -> _Spread:
    """Return the nodes and tasks per node of a step with ``--ntasks-per-node``."""
    per_node = number(options["ntasks-per-node"])
    if "nodes" in options:
        nodes = number(options["nodes"])
        return nodes if nodes != 0 else job.nodes, per_node
    total = number(options.get("ntasks", ""))
    return _divided(total, per_node) if total and per_node else job.nodes, per_node


def _spread_in_total(job: AllocatedJob, options: Mapping[str, str]) -> _Spread:
    """Return the nodes and tasks per node of a step with ``--ntasks`` only."""
    total = number(options["ntasks"])
    nodes = number(options.get("nodes", ""))
    if total is None or ("nodes" in options and nodes is None):
        return None, None
    if not nodes and job.nodes:
        # srun never spreads fewer tasks over more nodes than there are tasks.
        nodes = min(job.nodes, total)
    if not nodes:
        return (1, 1) if total == 1 else (None, None)
    return nodes, _divided(total, nodes)


def _divided(count: int, parts: int) -> int | None:
    """Return a count divided by a number of parts, None if there is a remainder."""
    return count // parts if count % parts == 0 else None


def counts_gpus(symbols: Symbols, text: str) -> bool:
    """Return whether a value is the number of available GPUs, counted by a command or by Slurm."""
    symbol = symbols.only(text)
    if symbol is None:
        return False
    is_set_by_slurm = symbol.name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK")
    return is_set_by_slurm or bool(_COUNTS_GPUS.search(symbol.command))


def processes(launch: Launch, spread: Shape, symbols: Symbols) -> int | None:
    """Return the number of processes of one start of a launcher on its node, None if unknown."""
    if not launch.spawns:
        return 1
    text = launch.says.get("nproc")
    if text is None:
        return _default(launch, spread)
    # --num_processes counts all machines together.
    if launch.kind == "accelerate launch":
        return _share(text, launch.says.get("nnodes", "1"))
    if text in ("gpu", "auto", "-1") or counts_gpus(symbols, text):
        return spread.gpus
    if launch.kind == "fabric run" and re.fullmatch(r"\d+(,\d+)+,?", text):
        return len([part for part in text.split(",") if part])
    return number(text) if constant(text) else None


def _default(launch: Launch, spread: Shape) -> int | None:
    if launch.vague or launch.kind == "accelerate launch":
        return None
    # These start one process unless told; deepspeed, composer and paceline run take all GPUs.
    if launch.kind in ("torchrun", "torch.distributed.launch", "fabric run"):
        return 1
    if launch.kind == "deepspeed" and {"include", "exclude"} & set(launch.options):
        match = re.fullmatch(r"[\w.-]+:(\d+(?:,\d+)*)", launch.options.get("include", ""))
        return len(match[1].split(",")) if match else None
    return spread.gpus


def _share(total: str, machines: str) -> int | None:
    processes, nodes = number(total), number(machines)
    return _divided(processes, nodes) if processes and nodes else None


def nnodes(launch: Launch) -> tuple[int, int] | None:
    """Return the launcher's minimum and maximum number of nodes, None if unknown."""
    text = launch.says.get("nnodes")
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    return (int(match[1]), int(match[2] or match[1])) if match else None


def argument(launch: Launch, forms: Sequence[str]) -> tuple[str, Arg] | None:
    """Return the value of a program's own argument, named without dashes, and the argument."""
    pattern = re.compile(rf"-{{0,2}}({'|'.join(forms)})(?:=(.*))?$", re.DOTALL)
    for at, arg in enumerate(launch.arguments):
        match = pattern.match(arg.text)
        # Hydra's `trainer.devices=4` has no dashes, but then always an equals sign.
        if match is None or (match[2] is None and not arg.text.startswith("-")):
            continue
        if match[2] is not None:
            return match[2], arg
        if at + 1 < len(launch.arguments):
            return launch.arguments[at + 1].text, arg
    return None


def requested_devices(launch: Launch) -> int:
    """Return the number of devices that the program's own option requests, 0 if unknown."""
    match = argument(launch, DEVICES)
    return number(match[0]) or 0 if match else 0
