"""Convert what accelerate answers to settings of a run. Pure.

It decides for the ranks; what becomes an option of ``paceline run`` is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, option_invalid

ANOTHER_LAUNCHER = "accelerate launch ..."  # the fix for what paceline does not start
LINE = "the command line"  # in place of a file, where there is none
DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
HEAD = "HEAD"  # placeholder for the address of node 0 if none is given
# Options with the same meaning in torchrun and paceline run.
_SHARED = ["rdzv_conf", "max_restarts", "monitor_interval", "role", "tee", "log_dir"]
_SHARED += ["module", "no_python"]
_NO_SSH = "no node is reached through ssh: start paceline run on each node"
_NODES = "start paceline run on the nodes that are meant"
# Options of accelerate launch without a counterpart, and the reasons.
_WITHOUT_COUNTERPART = {
    "mpirun_hostfile": "mpirun is not used: start paceline run on each node",
    "deepspeed_hostfile": _NO_SSH,
    "deepspeed_inclusion_filter": _NODES,
    "deepspeed_exclusion_filter": _NODES,
    "deepspeed_multinode_launcher": _NO_SSH,
    "quiet": "only the likely cause of a failure is printed anyway",
}


@dataclass(frozen=True)
class AccelerateSettings:
    """The settings that ``accelerate launch`` would use."""

    environment: Mapping[str, str]  # variables of the ranks
    options: Mapping[str, str]  # options of ``paceline run`` by name; ``""`` for a flag
    asks: tuple[str, ...] = ()  # descriptions of settings that change the training
    notes: tuple[str, ...] = ()  # settings without a counterpart, or with another implementation


def convert(typed: Mapping[str, str], answer: Mapping[str, Any], source: str) -> AccelerateSettings:
    """Return the settings in the answer for the options that were typed."""
    if "refusal" in answer:
        name = "input-unreadable" if "unreadable" in answer else "option-invalid"
        what = f"{source} {' '.join(answer['refusal'].split())}"
        fix = "accelerate launch --help" if source == LINE else "accelerate config"
        if answer.get("for_another_launcher"):
            fix = ANOTHER_LAUNCHER
        raise UsageError.of(name, what, where=source, fix=fix)
    values, variables = answer["values"], answer["environment"]
    if "tpu" in values:
        what = f"{source} asks for TPUs, which paceline run does not start"
        raise option_invalid(what, where=source, fix=ANOTHER_LAUNCHER)
    options, notes = _options(values, typed, starts_one="ACCELERATE_USE_CPU" in variables)
    unknown = [f"{key} in {source} is not known, and is left out" for key in answer["unknown"]]
    without = [f"--{name}: {why}" for name, why in _WITHOUT_COUNTERPART.items() if name in values]
    return AccelerateSettings(
        dict(sorted(variables.items(), key=lambda item: not item[0].startswith("ACCELERATE_"))),
        options,
        asks=_asks(variables),
        notes=(*unknown, *notes, *without),
    )


# Number of ranks, and the rendezvous of nodes


def _options(
    values: Mapping[str, str], typed: Mapping[str, str], *, starts_one: bool
) -> tuple[dict[str, str], list[str]]:
    machines = values.get("num_machines", "1")
    per_node, notes = _per_node(values.get("num_processes", ""), machines)
    if starts_one and per_node.isdecimal():
        per_node, more = _alone(values, per_node, typed)
        notes += more
    options = {"nproc_per_node": per_node} if per_node else {}
    shared = {name: typed[name] for name in _SHARED if name in typed}
    return {**options, **_meeting(values, machines), **shared}, notes


def _per_node(processes: str, machines: str) -> tuple[str, list[str]]:
    """Return the ranks per node, empty if unknown, and notes; numbers may be shell variables."""
    if not processes:
        return "", []
    if processes.isdecimal() and machines.isdecimal():
        return str(max(int(processes) // int(machines), 1)), []
    if machines == "1":
        return processes, []
    return "", [
        f"--num_processes {processes} counts all nodes: add --nproc-per-node with the ranks of one,"
        " if not all GPUs"
    ]


def _alone(
    values: Mapping[str, str], per_node: str, typed: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the ranks per node if accelerate starts one process, even if more were requested."""
    on_cpus = "cpu" in values or "use_cpu" in values
    if per_node == "1" or not (on_cpus or "num_processes" in typed):
        return "1", []
    starts = f"starts one process on CPUs unless mpirun does; this starts {per_node}"
    starts_more = on_cpus and "mpirun_hostfile" not in values
    return per_node, [f"accelerate launch {starts}"] if starts_more else []


def _meeting(values: Mapping[str, str], machines: str) -> dict[str, str]:
    port = values.get("main_process_port", "")
    if machines == "1":
        return {"master_port": port} if port else {}
    head, backend = values.get("main_process_ip", HEAD), values["rdzv_backend"]
    port = port or "29500"
    if backend != "static":
        place = {"rdzv_backend": backend, "rdzv_endpoint": f"{head}:{port}"}
        return {"nnodes": machines, **place}
    node_rank = values.get("machine_rank", "0")
    place = {"node_rank": node_rank, "master_addr": head, "master_port": port}
    return {"nnodes": machines, **place}


# Descriptions


def _asks(variables: Mapping[str, str]) -> tuple[str, ...]:
    precision = variables["ACCELERATE_MIXED_PRECISION"]
    backend = variables.get("ACCELERATE_DYNAMO_BACKEND", "NO").lower()
    stage = variables.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")
    deepspeed = f"DeepSpeed ZeRO stage {stage}" if stage else "DeepSpeed"
    fsdp = "FSDP2" if variables.get("FSDP_VERSION") == "2" else "FSDP"
    conditions = {
        f"mixed precision {precision}": precision != "no",
        deepspeed: DEEPSPEED in variables,
        f"torch.compile with {backend}": backend != "no",
        fsdp: "ACCELERATE_USE_FSDP" in variables,
        "Megatron-LM": "ACCELERATE_USE_MEGATRON_LM" in variables,
        "a parallelism_config": "ACCELERATE_USE_PARALLELISM_CONFIG" in variables,
        "CPUs only": variables.get("ACCELERATE_USE_CPU") == "True",
        "accelerate's debug mode": "ACCELERATE_DEBUG_MODE" in variables,
    }
    return tuple(words for words, is_requested in conditions.items() if is_requested)
