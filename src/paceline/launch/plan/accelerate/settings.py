"""Convert the options and the configuration of ``accelerate launch`` to settings of a run. Pure.

The conversion follows accelerate 1.15 so that a run trains as before, even for keys that accelerate
ignores in a configuration (``rdzv_backend``, ``same_network``, ``enable_cpu_affinity``). The one
exception is ``OMP_NUM_THREADS``: unless the user sets it, paceline chooses it, because accelerate's
default is one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, option_invalid
from paceline.launch.plan.accelerate import table

HEAD = "HEAD"  # placeholder for the address of node 0 if none is given
_SOURCE = "accelerate's configuration"


@dataclass(frozen=True)
class AccelerateSettings:
    """The settings that ``accelerate launch`` would use."""

    environment: Mapping[str, str]  # variables of the ranks
    options: Mapping[str, str]  # options of ``paceline run`` by name; ``""`` for a flag
    asks: tuple[str, ...] = ()  # descriptions of settings that change the training
    notes: tuple[str, ...] = ()  # settings without a counterpart, or with another implementation
    needs: frozenset[str] = frozenset()  # requirements of the machine: ``gpu``, ``deepspeed``
    # whether ranks find modules in the working folder, as with DeepSpeed
    working_folder: bool = False


def settle(
    typed: Mapping[str, str],  # ``""`` for a flag
    config: Mapping[str, Any] | None,
    *,
    source: str = _SOURCE,  # of the configuration, for messages
) -> AccelerateSettings:
    """Return the settings that ``accelerate launch`` would use.

    Raises UsageError if the configuration requires a TPU or SageMaker, which paceline does not
    support, or contradicts itself.
    """
    values = {**table.DEFAULTS, **{name: _typed_value(name, text) for name, text in typed.items()}}
    notes = []
    if config is not None:
        notes += _add_config(values, config, typed, source)
    else:
        values["use_cpu"] = values["cpu"]
    values["mixed_precision"] = _precision(values, config, source)
    values["dynamo_backend"] = str(values.get("dynamo_backend") or "no")
    if values["tpu"] or values["tpu_use_cluster"]:
        raise _wrong(
            "asks for TPUs, which paceline run does not start", source, fix="accelerate launch ..."
        )
    kind = _kind(values)
    options, layout_notes = _options(values, kind, typed)
    return AccelerateSettings(
        environment=_environment(values, kind, typed, config),
        options=options,
        asks=_asks(values, kind),
        notes=(*notes, *layout_notes, *_without_counterpart(values)),
        needs=_needs(values, kind),
        working_folder=kind == "deepspeed",
    )


# Merging the command line, the configuration and the defaults


def _typed_value(name: str, text: str) -> Any:
    if name == "fp8_override_linear_precision":
        return tuple(_switch(part) for part in text.split(","))
    if name in table.SWITCHES:
        return _switch(text)
    if name in table.TRUTHS:
        return bool(text)
    if name in table.FLOATS:
        return _number(text)
    return text or True


def _switch(text: str) -> int:
    return int(text.lower() in ("y", "yes", "t", "true", "on", "1"))


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _add_config(
    values: dict[str, Any], config: Mapping[str, Any], typed: Mapping[str, str], source: str
) -> list[str]:
    """Add values that the configuration sets and the command line does not; return unknown keys."""
    _check(config, source)
    flags = ("multi_gpu", "tpu", "tpu_use_cluster", "use_deepspeed", "use_fsdp", "use_megatron_lm")
    if not any(values[flag] for flag in flags):
        _take_type(values, config)
    for name, default in table.TOP_LEVEL.items():
        if values.get(name) is None:
            values[name] = config.get(name, default)
    for group, prefix in table.GROUPS.items():
        for key, value in _group(config, group).items():
            name = str(key) if str(key).startswith(prefix) else f"{prefix.rstrip('_')}_{key}"
            if name not in typed:
                values[name] = value
    values["debug"] = values["debug"] or bool(config.get("debug"))
    names = {*table.TOP_LEVEL, *table.GROUPS, *table.PASSED_OVER}
    return [
        f"{key} in {source} is not known, and is left out" for key in config if key not in names
    ]


def _check(config: Mapping[str, Any], source: str) -> None:
    where = config.get("compute_environment", "LOCAL_MACHINE")
    if where != "LOCAL_MACHINE":
        raise _wrong(
            f"is for {where}, where paceline run does not start anything",
            source,
            fix="accelerate launch ...",
        )
    if "distributed_type" not in config:
        raise _wrong("has no distributed_type", source, fix="accelerate config")
    kind = _type(config)
    if kind not in table.ALONE | table.MULTI_DEVICE | set(table.TYPE_FLAGS):
        raise _wrong(
            f"has distributed_type: {kind}, which is not known", source, fix="accelerate config"
        )
    for group in table.GROUPS:
        if not isinstance(config.get(group) or {}, Mapping):
            raise _wrong(f"has {group}, which is not a mapping", source, fix="accelerate config")


def _type(config: Mapping[str, Any]) -> str:
    return _word(config["distributed_type"]).upper()


def _word(value: Any) -> str:
    """Return a word of a configuration; YAML reads an unquoted ``no`` as False."""
    return "no" if value is False else str(value)


def _take_type(values: dict[str, Any], config: Mapping[str, Any]) -> None:
    kind = _type(config)
    if kind in table.MULTI_DEVICE:
        values["multi_gpu"] = True
    elif kind in table.TYPE_FLAGS:
        values[table.TYPE_FLAGS[kind]] = True
    values["use_parallelism_config"] = bool(config.get("parallelism_config"))


def _group(config: Mapping[str, Any], group: str) -> Mapping[Any, Any]:
    if group == "dynamo_config" and "dynamo_backend" in config:  # the form of older versions
        backend = _word(config["dynamo_backend"])
        return {} if backend.upper() == "NO" else {"dynamo_backend": backend}
    values: Mapping[Any, Any] = config.get(group) or {}
    return values


def _precision(values: Mapping[str, Any], config: Mapping[str, Any] | None, source: str) -> str:
    precision = (
        values.get("mixed_precision") or (_config_precision(config) if config else None) or "no"
    )
    if precision.lower() not in table.PRECISIONS:
        choices = ", ".join(table.PRECISIONS)
        raise _wrong(
            f"has mixed_precision: {precision}, which is none of {choices}",
            source,
            fix="mixed_precision: bf16",
        )
    return str(precision).lower()


def _config_precision(config: Mapping[str, Any]) -> str | None:
    if config.get("mixed_precision") is None:
        return "fp16" if config.get("fp16") and "mixed_precision" not in config else None
    return _word(config["mixed_precision"])


def _kind(values: Mapping[str, Any]) -> str:
    """Return the kind of accelerate's launcher that starts the ranks."""
    if values["cpu"]:
        return "simple"
    for kind in ("deepspeed", "fsdp", "megatron_lm"):
        if values[f"use_{kind}"]:
            return kind
    if values["multi_gpu"]:
        return "multi"
    return "simple"


def _uses_cpu(values: Mapping[str, Any]) -> bool:
    return bool(values["cpu"] or values["use_cpu"])


def _wrong(what: str, source: str, *, fix: str) -> UsageError:
    return option_invalid(f"{source} {what}", where=source, fix=fix)


# Variables of the ranks


def _environment(
    values: Mapping[str, Any], kind: str, typed: Mapping[str, str], config: Mapping[str, Any] | None
) -> dict[str, str]:
    variables = {"ACCELERATE_MIXED_PRECISION": values["mixed_precision"]}
    if values["mixed_precision"] == "fp8":
        variables |= _fp8(values)
    variables |= _of_kind(values, kind, typed, config)
    if kind != "simple" and values["use_parallelism_config"]:
        variables |= _parallelism(values)
    if values["debug"]:
        variables["ACCELERATE_DEBUG_MODE"] = "true"
    if values["enable_cpu_affinity"]:
        variables["ACCELERATE_CPU_AFFINITY"] = "1"
    if values.get("gpu_ids") not in (None, "all"):
        variables["CUDA_VISIBLE_DEVICES"] = str(values["gpu_ids"])
    if values.get("num_cpu_threads_per_process"):
        variables["OMP_NUM_THREADS"] = str(values["num_cpu_threads_per_process"])
    return variables


def _of_kind(
    values: Mapping[str, Any], kind: str, typed: Mapping[str, str], config: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the variables that one kind of accelerate's launchers sets."""
    if kind == "deepspeed":
        return _deepspeed(values, typed, config)
    variables = {"ACCELERATE_DYNAMO_BACKEND": values["dynamo_backend"].upper()}
    variables |= {f"ACCELERATE_{name.upper()}": str(values[name]) for name in table.DYNAMO}
    if kind == "simple":
        return variables | _cpu(values)
    if values["use_fsdp"]:
        variables |= _fsdp(values)
    if values["use_megatron_lm"]:
        variables |= _megatron(values)
    return variables


def _cpu(values: Mapping[str, Any]) -> dict[str, str]:
    use_cpu = _uses_cpu(values)
    variables = {"ACCELERATE_USE_CPU": str(use_cpu)}
    if use_cpu:
        variables |= {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    return variables


def _fp8(values: Mapping[str, Any]) -> dict[str, str]:
    names = sorted(name for name in values if name.startswith("fp8_") and values[name] is not None)
    variables = {f"ACCELERATE_{name.upper()}": str(values[name]) for name in names}
    variables.pop("ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION")
    parts = zip(("FPROP", "DGRAD", "WGRAD"), values["fp8_override_linear_precision"], strict=False)
    return variables | {f"ACCELERATE_FP8_OVERRIDE_{part}": str(value) for part, value in parts}


def _fsdp(values: Mapping[str, Any]) -> dict[str, str]:
    names = {
        **table.FSDP,
        **{name: to for name, to in table.FSDP_OPTIONAL.items() if values.get(name) is not None},
    }
    variables = {
        to: _written(values[name], name in table.FSDP_AS_WRITTEN) for name, to in names.items()
    }
    return {"ACCELERATE_USE_FSDP": "true", **variables}


def _deepspeed(
    values: Mapping[str, Any], typed: Mapping[str, str], config: Mapping[str, Any] | None
) -> dict[str, str]:
    fields = list(_group(config, "deepspeed_config")) if config is not None else []
    if (
        config is not None
        and "mixed_precision" not in typed
        and _config_precision(config) is not None
    ):
        fields.append("mixed_precision")
    names = {name: to for name, to in table.DEEPSPEED.items() if values.get(name) is not None}
    variables = {
        to: _written(values[name], name in table.DEEPSPEED_AS_WRITTEN) for name, to in names.items()
    }
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": ",".join(map(str, fields)).lower(),
        **variables,
    }


def _written(value: Any, as_it_is: bool) -> str:
    return str(value) if as_it_is else str(value).lower()


def _megatron(values: Mapping[str, Any]) -> dict[str, str]:
    options = {name: values.get(f"megatron_lm_{name}") for name in table.MEGATRON}
    variables = {
        f"MEGATRON_LM_{name.upper()}": str(value)
        for name, value in options.items()
        if value is not None
    }
    return {"ACCELERATE_USE_MEGATRON_LM": "true", **variables}


def _parallelism(values: Mapping[str, Any]) -> dict[str, str]:
    names = list(table.PARALLELISM)
    for size, more in table.PARALLELISM_OF.items():
        if _count(values[f"parallelism_config_{size}"]) > 1:
            names += more
    variables = {
        f"PARALLELISM_CONFIG_{name.upper()}": str(values.get(f"parallelism_config_{name}"))
        for name in names
    }
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **variables}


def _count(value: Any) -> int:
    text = str(value)
    return int(text) if text.isdecimal() else 0


# Number of ranks, and the rendezvous of nodes


def _options(
    values: Mapping[str, Any], kind: str, typed: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    machines = str(values.get("num_machines") or 1)
    processes = str(values.get("num_processes") or "")
    per_node, notes = _per_node(processes, machines)
    if kind == "simple" and per_node.isdecimal():
        per_node, more = _alone(values, per_node, typed)
        notes += more
    options = {"nproc_per_node": per_node} if per_node else {}
    options |= _meeting(values, machines)
    options |= {
        name: str(values[name]) for name in table.SHARED if name in typed and name != "rdzv_backend"
    }
    options |= {name: "" for name in table.SHARED_FLAGS if values.get(name)}
    return options, notes


def _per_node(processes: str, machines: str) -> tuple[str, list[str]]:
    """Return the ranks per node, empty if unknown, and notes; numbers may be shell variables."""
    if processes in ("", "0", "-1"):
        return "", []
    if processes.isdecimal() and machines.isdecimal():
        return str(max(int(processes) // max(int(machines), 1), 1)), []
    if machines == "1":
        return processes, []
    return "", [
        f"--num_processes {processes} counts all nodes: add --nproc-per-node with the ranks of one,"
        " if not all GPUs"
    ]


def _alone(
    values: Mapping[str, Any], per_node: str, typed: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the ranks per node if accelerate starts one process, even if more were requested."""
    on_cpus = _uses_cpu(values)
    if per_node == "1" or not (on_cpus or "num_processes" in typed):
        return "1", []
    if values.get("mpirun_hostfile") or not on_cpus:
        return per_node, []
    return per_node, [
        f"accelerate launch starts one process on CPUs unless mpirun does; this starts {per_node}"
    ]


def _meeting(values: Mapping[str, Any], machines: str) -> dict[str, str]:
    port = values.get("main_process_port")
    named_port = str(port) if port not in (None, "", 0, "0") else ""
    if machines == "1":
        return {"master_port": named_port} if named_port else {}
    head = str(values.get("main_process_ip") or HEAD)
    if values["rdzv_backend"] != "static":
        endpoint = f"{head}:{named_port or 29500}"
        return {
            "nnodes": machines,
            "rdzv_backend": str(values["rdzv_backend"]),
            "rdzv_endpoint": endpoint,
        }
    rank = values.get("machine_rank")
    return {
        "nnodes": machines,
        "node_rank": str(rank if rank is not None else 0),
        "master_addr": head,
        "master_port": named_port or "29500",
    }


# Descriptions


def _asks(values: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    backend, stage = values["dynamo_backend"].lower(), values.get("zero_stage")
    is_simple, is_deepspeed, is_fsdp = (kind == name for name in ("simple", "deepspeed", "fsdp"))
    conditions = {
        f"mixed precision {values['mixed_precision']}": values["mixed_precision"] != "no",
        "DeepSpeed": is_deepspeed and stage is None,
        f"DeepSpeed ZeRO stage {stage}": is_deepspeed and stage is not None,
        f"torch.compile with {backend}": not is_deepspeed and backend != "no",
        "FSDP2": is_fsdp and str(values["fsdp_version"]) == "2",
        "FSDP": is_fsdp and str(values["fsdp_version"]) != "2",
        "Megatron-LM": kind == "megatron_lm",
        "a parallelism_config": not is_simple and values["use_parallelism_config"],
        "CPUs only": is_simple and _uses_cpu(values),
        "accelerate's debug mode": values["debug"],
    }
    return tuple(words for words, is_requested in conditions.items() if is_requested)


def _needs(values: Mapping[str, Any], kind: str) -> frozenset[str]:
    needs = (
        {"gpu"}
        if values["mixed_precision"] in ("fp16", "fp8") or kind in ("fsdp", "deepspeed")
        else set()
    )
    return frozenset(needs | ({"deepspeed"} if kind == "deepspeed" else set()))


def _without_counterpart(values: Mapping[str, Any]) -> list[str]:
    return [
        f"--{name}: {why}" for name, why in table.WITHOUT_COUNTERPART.items() if values.get(name)
    ]
