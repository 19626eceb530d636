"""Read the accelerate configuration of a run, and set its variables for all ranks."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping

from paceline import env
from paceline.errors import PacelineError
from paceline.launch.plan.accelerate import choice, config_file
from paceline.launch.plan.accelerate.choice import Choice
from paceline.launch.plan.options import Options
from paceline.launch.plan.preferences import abbreviate_home
from paceline.machine import host


def configure(options: Options, source: str) -> Choice:
    """Set the variables of this run's configuration, for this process and all ranks.

    Args:
        options: The options of this launcher.
        source: Text of the script; empty if there is none to read.

    Raises:
        PacelineError: A configuration was named but cannot be used.
    """
    configuration = _choose(options, source, env.snapshot())
    env.update(configuration.environment)
    if configuration.working_folder and configuration.environment:
        _find_modules_in_working_folder()
    return configuration


def _choose(options: Options, source: str, environ: Mapping[str, str]) -> Choice:
    if options.accelerate_config == config_file.NONE:
        return Choice()
    if options.accelerate_config:
        return choice.named(
            config_file.settings_of(options.accelerate_config), options.accelerate_config, environ
        )
    path = config_file.default_path(environ)
    if not path.is_file() or not choice.imports_accelerate(source):
        return Choice()
    try:
        default = config_file.settings_of(str(path))
    except PacelineError:
        return Choice()  # the user has not asked for this file
    return choice.by_default(
        default,
        abbreviate_home(path),
        environ,
        num_gpus=host.gather(environ.get(env.CUDA_DEVICES)).num_gpus,
        has_deepspeed=importlib.util.find_spec("deepspeed") is not None,
    )


def _find_modules_in_working_folder() -> None:
    """Make modules in the working folder importable, as accelerate does with DeepSpeed.

    A forked rank has the launcher's ``sys.path`` except for the first entry.
    """
    folder = os.getcwd()
    env.put(env.PYTHON_PATH, os.pathsep.join(filter(None, (env.read(env.PYTHON_PATH), folder))))
    sys.path.insert(1, folder)
