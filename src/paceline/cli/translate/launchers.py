"""Map each launcher's options to options of ``paceline run``, variables and notes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.diagnose.lint.job.launcher_options import FABRIC
from paceline.diagnose.lint.job.shell.wrappers import WrappedStart
from paceline.errors import option_invalid
from paceline.launch.plan.accelerate.settings import DEEPSPEED, HEAD, AccelerateSettings
from paceline.launch.plan.options import RENDEZVOUS_OPTIONS
from paceline.launch.plan.typed_nodes import NODE_OPTIONS

_STATIC_PLACE = ("node_rank", "master_addr", "master_port")
_WRITE_HEAD = "write the address of the first node for HEAD"
_ABOUT_PLACES = ("write ", "in a Slurm step")  # beginnings of notes
_STEPS = {"srun": "Slurm", "mpi": "mpirun"}
_NODES_AND_PLACE = (*NODE_OPTIONS, "rdzv_conf")
_LOCAL_RANK = (
    "{} passes --local_rank to the script, paceline run does not: "
    'parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))'
)


@dataclass(frozen=True)
class Translated:
    """The translation of a launcher's options."""

    options: Mapping[str, str]  # options of ``paceline run`` by name; ``""`` for a flag
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the ranks need
    notes: tuple[str, ...] = ()  # options without a counterpart, and steps left to the user
    working_folder: bool = False  # whether ranks find modules in the working folder
    # the script's own arguments; None if they stay as typed
    arguments: tuple[str, ...] | None = None


def left_to_step(translated: Translated, step: WrappedStart | None) -> Translated:
    """Leave out what names the nodes where srun or mpirun starts the line on each of them.

    What is typed is the same on all nodes, the rank too; ``paceline run`` asks the step.
    """
    options = translated.options
    # An elastic run needs its rendezvous, and these start on one of the nodes, each with its line.
    is_elastic = ":" in options.get("nnodes", "")
    of_one_node = options.get("node_rank", "0").strip("0").isdecimal()
    if step is None or step.kind not in _STEPS or is_elastic or of_one_node:
        return translated
    starts_one = "1" in (step.options.get("nodes"), step.options.get("ntasks"))
    if starts_one or "nodelist" in step.options or options.get("nnodes", "1") == "1":
        return translated
    left_out = [f"--{name.replace('_', '-')}" for name in options if name in _NODES_AND_PLACE]
    note = f"left out, since paceline run asks {_STEPS[step.kind]}: {', '.join(left_out)}"
    return replace(
        translated,
        options={name: value for name, value in options.items() if name not in _NODES_AND_PLACE},
        notes=(*(old for old in translated.notes if not old.startswith(_ABOUT_PLACES)), note),
    )


# torchrun


def torchrun(
    options: Mapping[str, str],  # the options as typed
    *,
    # torchrun's ``PET_...`` variables by option name; paceline run uses them too
    inherited: Mapping[str, str],
    passes_local_rank: bool,  # whether this launcher passes ``--local-rank`` to the script
) -> Translated:
    """Translate torchrun and ``torch.distributed.launch``."""
    left_out = ("use_env", "start_method")
    effective = {name: value for name, value in options.items() if name not in left_out}
    notes = []
    if "start_method" in options:
        notes.append("--start-method has no effect on scripts under torchrun, and is left out")
    for name, rival in _without_effect(effective).items():
        del effective[name]
        notes.append(
            f"--{name.replace('_', '-')} has no effect beside {rival} under torchrun, and is"
            " left out"
        )
    if "nproc_per_node" not in {*effective, *inherited}:
        effective = {"nproc_per_node": "1", **effective}  # paceline run starts one rank per GPU
    if passes_local_rank and "use_env" not in options:
        notes.append(_LOCAL_RANK.format("torch.distributed.launch"))
    return Translated(effective, notes=tuple(notes))


def _without_effect(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that torchrun ignores, each with the option that makes it do so."""
    backend = options.get("rdzv_backend", "static")
    ignored: tuple[str, ...]
    if "standalone" in options:
        ignored = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", *_STATIC_PLACE)
        beside = "--standalone"
    elif backend != "static":
        ignored, beside = _STATIC_PLACE, f"--rdzv-backend {backend}"
    elif "rdzv_endpoint" in options:
        ignored, beside = ("master_addr", "master_port"), "--rdzv-endpoint"
    else:
        return {}
    return {name: beside for name in dict.fromkeys(ignored) if name in options}


# accelerate launch


def accelerate(
    settings: AccelerateSettings,  # the settings that it would use
    *,
    decided: bool,  # whether the line or a configuration says the precision
) -> Translated:
    """Translate ``accelerate launch``."""
    return Translated(
        settings.options,
        _needed(settings, decided=decided),
        _notes(settings),
        working_folder=DEEPSPEED in settings.environment,
    )


def accelerate_with_file(
    settings: AccelerateSettings,  # the settings that it would use
    configured: AccelerateSettings,  # the settings of the configuration alone
    file: str,  # path of the configuration, to pass to paceline run
) -> Translated:
    """Translate ``accelerate launch`` with a configuration."""
    if configured.environment != settings.environment:
        return accelerate(settings, decided=True)
    options = {"accelerate_config": file, **_beside(settings.options, configured.options)}
    return Translated(options, notes=_notes(settings))


def accelerate_with_variable(
    settings: AccelerateSettings,  # the settings that it would use without a configuration
    unset: AccelerateSettings,  # the settings without options and configuration
    file: str,  # the path as typed
) -> Translated:
    """Translate ``accelerate launch`` if the path of its configuration is an unexpanded variable.

    Raises UsageError if options of the line change what ranks get from the unreadable
    configuration.
    """
    if settings.environment != unset.environment:
        raise option_invalid(
            f"other options change what ranks get from {file}, and its content is not known",
            fix=f"write the path of the configuration for {file}",
        )
    return Translated({"accelerate_config": file, **settings.options}, notes=settings.notes)


def _notes(settings: AccelerateSettings) -> tuple[str, ...]:
    endpoint = settings.options.get("rdzv_endpoint", "")
    names_head = not settings.options.get("master_addr", endpoint).startswith(HEAD)
    return settings.notes if names_head else (*settings.notes, _WRITE_HEAD)


def _beside(options: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the options to type in addition to a configuration with other values."""
    rendezvous, others = _divided(options)
    configured_rendezvous, _ = _divided(configured)
    others = {name: value for name, value in others.items() if configured.get(name) != value}
    if rendezvous == configured_rendezvous:
        return others
    one_node = {"nnodes": "1"} if "nnodes" in configured else {}
    return {**others, **one_node, **rendezvous}


def _divided(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the rendezvous, and the others."""
    rendezvous = {name: value for name, value in options.items() if name in RENDEZVOUS_OPTIONS}
    others = {name: value for name, value in options.items() if name not in RENDEZVOUS_OPTIONS}
    return rendezvous, others


def _needed(settings: AccelerateSettings, *, decided: bool) -> dict[str, str]:
    """Return the variables without those that only state the default."""
    variables = dict(settings.environment)
    if variables.get("ACCELERATE_DYNAMO_BACKEND") == "NO":
        variables = {
            name: value
            for name, value in variables.items()
            if not name.startswith("ACCELERATE_DYNAMO_")
        }
    if variables.get("ACCELERATE_USE_CPU") == "False":
        del variables["ACCELERATE_USE_CPU"]
    if not decided and variables["ACCELERATE_MIXED_PRECISION"] == "no":
        del variables["ACCELERATE_MIXED_PRECISION"]
    return variables


# fabric run

_FABRIC_VARIABLES = ("accelerator", "strategy", "devices", "num_nodes", "precision")


def fabric(
    options: Mapping[str, str],
    arguments: Sequence[str],
    *,
    calls_launch: bool | None,  # whether the script calls ``fabric.launch()``, None if unknown
) -> Translated:
    """Translate ``fabric run``, which also accepts its options after the script."""
    trailing, script_arguments = _trailing_options(arguments)
    options = {"devices": "1", "num_nodes": "1", **options, **trailing}
    of_one_process = options.get("strategy") == "dp"
    translated = {"nproc_per_node": "1" if of_one_process else _ranks(options["devices"])}
    notes = []
    if options.get("accelerator") == "tpu":
        notes.append("fabric run does not start TPUs, nor does paceline run")
    if options["num_nodes"] != "1":
        translated |= {
            "nnodes": options["num_nodes"],
            "node_rank": options.get("node_rank", "0"),
            "master_addr": options.get("main_address", HEAD),
            "master_port": options.get("main_port", "29400"),
        }
        notes += [] if "main_address" in options else [_WRITE_HEAD]
    elif "main_port" in options:
        translated["master_port"] = options["main_port"]
    # with it Fabric refuses launch(), without it a script that does not call launch()
    environment = {} if calls_launch else {"LT_CLI_USED": "1"}
    environment |= {
        f"LT_{name.upper()}": options[name] for name in _FABRIC_VARIABLES if name in options
    }
    if calls_launch:
        notes.append("the script calls launch(), which fabric run refuses: LT_CLI_USED is left out")
    elif calls_launch is None:
        notes.append("leave LT_CLI_USED=1 out if the script calls fabric.launch()")
    return Translated(translated, environment, tuple(notes), arguments=tuple(script_arguments))


def _trailing_options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of fabric run after the script, and the script's own arguments."""
    options: dict[str, str] = {}
    script_arguments: list[str] = []
    position = 0
    while position < len(arguments) and arguments[position] != "--":
        name, equals, value = arguments[position].removeprefix("--").partition("=")
        is_option = arguments[position].startswith("--") and name.replace("-", "_") in FABRIC.values
        if not is_option:
            script_arguments.append(arguments[position])
        elif not equals:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
            position += 1
        if is_option:
            options[name.replace("-", "_")] = value
        position += 1
    return options, [*script_arguments, *arguments[position + 1 :]]


def _ranks(devices: str) -> str:
    """Return the number of processes that fabric run starts.

    Its option is a number, a list of devices, all devices, or auto for one.
    """
    if devices == "-1":
        return "gpu"
    if devices == "auto":
        return "1"
    if "," in devices:
        return str(len([part for part in devices.split(",") if part.strip()]))
    return devices


# deepspeed

_DEEPSPEED_NOTES: Mapping[str, str] = {
    "hostfile": "no node is reached through ssh: start this on each node of the hostfile",
    "exclude": "--exclude has no counterpart: set CUDA_VISIBLE_DEVICES to the GPUs that are meant",
    "launcher": "no node is reached through ssh or mpirun: start this on each node",
    "autotuning": "--autotuning has no counterpart",
    "elastic_training": (
        "--elastic_training has no counterpart: --nnodes MIN:MAX --rdzv-backend c10d is torch's own"
    ),
    "bind_cores_to_rank": (
        "--bind_cores_to_rank has no counterpart on CPUs; --numa-binding binds ranks near their GPU"
    ),
    "bind_core_list": "--bind_core_list has no counterpart: start it behind taskset -c",
    "save_pid": "--save_pid has no counterpart: the run folder has the pids",
    "venv_script": "--venv_script has no counterpart: activate the environment on each node",
}


def deepspeed(options: Mapping[str, str]) -> Translated:
    """Translate the deepspeed launcher."""
    translated: dict[str, str] = {}
    environment: dict[str, str] = {}
    notes = [why for name, why in _DEEPSPEED_NOTES.items() if name in options]
    num_gpus = options.get("num_gpus", options.get("num_accelerators"))
    if num_gpus is not None:
        translated["nproc_per_node"] = num_gpus
    if "include" in options:
        slots = re.fullmatch(r"[\w.-]+:(\d+(?:,\d+)*)", options["include"])
        if slots:
            environment["CUDA_VISIBLE_DEVICES"] = slots[1]
            translated["nproc_per_node"] = str(len(slots[1].split(",")))
        else:
            notes.append(
                "--include names several nodes: start this on each, with CUDA_VISIBLE_DEVICES for"
                " its GPUs"
            )
    nodes, meeting_notes = _deepspeed_nodes(options)
    translated |= nodes
    if "enable_each_rank_log" in options:
        translated |= {"log_dir": options["enable_each_rank_log"], "redirects": "3"}
    translated |= {name: "" for name in ("module", "no_python") if name in options}
    if "no_local_rank" not in options:
        notes.append(_LOCAL_RANK.format("deepspeed"))
    return Translated(translated, environment, (*notes, *meeting_notes))


def _deepspeed_nodes(options: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    has_several = "hostfile" in options or options.get("num_nodes", "1") != "1"
    if not has_several:
        port = options.get("master_port")
        return ({} if port is None else {"master_port": port}), []
    advice = {
        "num_nodes": "write the number of nodes for NODES",
        "node_rank": "write 0, 1, ... for NODE_RANK, on each node its own",
        "master_addr": _WRITE_HEAD,
    }
    notes = [note for name, note in advice.items() if name not in options]
    notes.append(
        "in a Slurm step leave out --nnodes, --node-rank and --master-addr: they are taken from"
        " Slurm"
    )
    return {
        "nnodes": options.get("num_nodes", "NODES"),
        "node_rank": options.get("node_rank", "NODE_RANK"),
        "master_addr": options.get("master_addr", HEAD),
        "master_port": options.get("master_port", "29500"),
    }, notes
