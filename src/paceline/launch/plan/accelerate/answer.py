"""Say what the installed accelerate makes of options and a configuration: a program of its own.

It imports accelerate, and with it torch, so its process ends when it has answered. accelerate's
own functions read the options and merge them with the configuration and defaults. They see no
variables and no GPUs: what a login node translates holds for other machines.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any
from unittest import mock


def answer(
    typed: Mapping[str, str],  # options by name; ``""`` for a flag
    text: str | None,  # of the configuration
) -> dict[str, Any]:
    """Return the variables and options of ``accelerate launch``, or the reason to refuse them."""
    try:
        config = None if text is None else _content(text)
    except Exception as error:
        return {"refusal": f"cannot be read: {error}", "unreadable": True}
    place = (config or {}).get("compute_environment", "LOCAL_MACHINE")
    if place != "LOCAL_MACHINE":
        refusal = f"is for {place}, where paceline run does not start anything"
        return {"refusal": refusal, "for_another_launcher": True}
    launch = importlib.import_module("accelerate.commands.launch")
    prepare = importlib.import_module("accelerate.utils.launch")
    try:
        loaded, unknown = (None, []) if config is None else _loaded(config)
        with (
            importlib.import_module("accelerate.utils").clear_environment(),
            mock.patch.object(launch, "default_config_file", ""),
            mock.patch.object(launch, "load_config_from_file", lambda _: loaded),
            mock.patch.object(prepare, "is_fp8_available", lambda: True),  # it may be on nodes only
        ):
            args = _parsed(launch.launch_command_parser(), typed, has_config=config is not None)
            args, _, has_precision = launch._validate_launch_command(args)
            values = {name: str(value) for name, value in vars(args).items() if value}
            fields = [*loaded.deepspeed_config] if loaded else []
            fields += ["mixed_precision"] if has_precision else []
            args.deepspeed_fields_from_accelerate_config = ",".join(map(str, fields))
            environment = _environment(args, prepare)
    except AttributeError:
        raise  # another version of accelerate, whose private names have moved
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return {"refusal": f"is refused by accelerate: {kind}{error}"}
    return {"environment": environment, "values": values, "unknown": unknown}


def _content(text: str) -> dict[str, Any]:
    content = None
    with contextlib.suppress(ValueError):  # JSON with tabs is no YAML
        content = json.loads(text)
    content = importlib.import_module("yaml").safe_load(text) if content is None else content
    if not isinstance(content, dict):
        raise TypeError("it is not a mapping of keys to values")
    return content


def _loaded(config: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return accelerate's object for a configuration, and the keys that it does not know."""
    cluster = importlib.import_module("accelerate.commands.config.config_args").ClusterConfig
    words = ("distributed_type", "mixed_precision", "dynamo_backend", "gpu_ids")
    content = dict(config)
    for key, value in config.items():
        if str(key).endswith("_config") and not isinstance(value or {}, Mapping):
            raise ValueError(f"{key} is not a mapping")  # accelerate passes over it
        if key in words and value is not None:  # YAML reads an unquoted no as False
            content[key] = "no" if value is False else str(value)
    if "distributed_type" in content:
        content["distributed_type"] = str(content["distributed_type"]).upper()
    if content.get("num_processes") in (None, -1):
        content["num_processes"] = 0  # accelerate insists on a number, paceline takes all GPUs
    content = cluster.process_config(content)
    unknown = [key for key in content if key not in cluster.__dataclass_fields__]
    known = {key: value for key, value in content.items() if key not in unknown}
    return cluster(**known), [str(key) for key in unknown]


def _parsed(parser: Any, typed: Mapping[str, str], *, has_config: bool) -> Any:
    parser.error = _refuse
    for action in parser._actions:
        if "$" in typed.get(action.dest, ""):
            action.choices = None
            action.type = _variable if action.type in (int, float) else str
    words = [f"--{name}={text}" if text else f"--{name}" for name, text in typed.items()]
    args = parser.parse_args([*(["--config_file=given"] if has_config else []), *words, "train.py"])
    if args.num_processes is None and not has_config:
        args.num_processes = 0  # in place of the GPUs of this machine
    return args


def _refuse(message: str) -> None:
    raise ValueError(message)


def _variable(text: str) -> Any:
    """Return a number that only the shell knows: accelerate counts with 2, and writes the text."""
    return type("Variable", (int,), {"__str__": lambda _: text})(2)


def _environment(args: Any, prepare: Any) -> dict[str, str]:
    """Return the variables of the ranks; the layout, which is paceline's, is that of one rank."""
    args.num_processes, args.num_machines, args.mpirun_hostfile = 1, 1, None
    args.main_process_port = 0  # any free one: the real one may be in use here
    variables: dict[str, str]
    if args.use_deepspeed and not args.cpu:
        variables = prepare.prepare_deepspeed_cmd_env(args)[1]
    elif (args.use_fsdp or args.use_megatron_lm or args.multi_gpu) and not args.cpu:
        variables = prepare.prepare_multi_gpu_env(args)
    else:
        variables = prepare.prepare_simple_launcher_cmd_env(args)[1]
    if "num_cpu_threads_per_process" not in getattr(args, "nondefault", ()):
        variables.pop("OMP_NUM_THREADS", None)  # accelerate's default is 1, paceline chooses it
    variables.pop("PYTHONPATH", None)  # paceline adds the working folder itself
    return variables


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        answers = [answer(**question) for question in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)
