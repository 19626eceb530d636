"""Start a launch: make the plan, import torch, and fork the fork server."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline import counters, env
from paceline.errors import EXIT_OK, PacelineError
from paceline.launch.in_rank import rank_entry
from paceline.launch.plan import plan as planning
from paceline.launch.plan import ports, script, slurm_step
from paceline.launch.plan.accelerate import ask, choice
from paceline.launch.plan.accelerate.choice import AccelerateChoice
from paceline.launch.plan.accelerate.settings import DEEPSPEED
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.preferences import abbreviate_home
from paceline.launch.plan.task import MODULE, PATH, PROGRAM, SCRIPT, RankTask
from paceline.launch.probe import trial_end
from paceline.launch.run import fork_server
from paceline.machine import host, torch_requirements, ulimits
from paceline.text import terminal

if TYPE_CHECKING:
    from paceline.launch.outcome.report import Report


def configure(
    options: Options,
    source: str,  # text of the script; empty if there is none to read
) -> AccelerateChoice:
    """Set the variables of this run's configuration, for this process and all ranks.

    Raises PacelineError if a configuration was named but cannot be used.
    """
    configuration = _choose(options, source, env.snapshot())
    env.update(configuration.environment)
    if DEEPSPEED in configuration.environment:
        _find_modules_in_working_folder()
    return configuration


def _choose(options: Options, source: str, environ: Mapping[str, str]) -> AccelerateChoice:
    if options.accelerate_config == ask.NONE:
        return AccelerateChoice()
    if options.accelerate_config:
        (settings,) = ask.settle({}, file=options.accelerate_config)
        return choice.named(settings, options.accelerate_config, environ)
    path = ask.default_path(environ)
    if not path.is_file() or not choice.imports_accelerate(source):
        return AccelerateChoice()
    try:
        (default,) = ask.settle({}, file=str(path))
    except PacelineError as error:
        return choice.unusable(error.finding, abbreviate_home(path))
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


_SLOW_IMPORT_S = 2.0  # after this time, a person starts to wonder


def run(options: Options) -> int:
    """Run ``paceline run`` to its end.

    In a rank, which is a fork of this process, this returns to the launcher's caller only as the
    script ends: it returns 0 or raises SystemExit.
    """
    torch_requirements.require_installed()
    if options.numa_binding:
        torch_requirements.require_numa_binding()
    trial_end.num_steps()  # refused here, where a person sees it
    if options.check_only:
        from paceline.launch.run import checkup

        return checkup.run(options, _conduct_function)
    source = script.read(options)
    configured = configure(options, source)
    options, plan = _plan(options, source)
    plan = replace(
        plan, accelerate=configured.summary, warnings=(*plan.warnings, *configured.warnings)
    )
    task = RankTask(
        local_rank=0,
        kind=_kind(options),
        target=options.script,
        args=options.script_args,
        method=str(plan.start_method.value),
        python=env.read(env.PYTHON_EXEC) or sys.executable,
        numa_binding=options.numa_binding or "",
    )
    return conduct(options, plan, task).exit_status


def _plan(options: Options, source: str) -> tuple[Options, Plan]:
    """Return the plan, and the options with counts that only torch could provide."""
    environ = env.snapshot()
    facts = host.gather(
        environ.get(env.CUDA_DEVICES),
        granted_cpus=None if options.no_slurm else slurm_step.granted_cpus(environ),
        granted_gpus=options.starter_defaults.num_gpus,
    )
    if options.nproc_per_node in ("xpu", "auto") and not facts.num_gpus:
        count = host.count_devices_by_torch(options.nproc_per_node)
        if count:
            options = replace(options, nproc_per_node=str(count))
    plan = planning.make(options, facts, environ=environ, source=source)
    existing = tuple(rank for rank in options.local_ranks_filter if rank < plan.nproc.value)
    return replace(options, local_ranks_filter=existing or options.local_ranks_filter), plan


def _conduct_function(options: Options, task: RankTask, function: Callable[[], None]) -> Report:
    options, plan = _plan(options, "")
    return conduct(options, plan, task, function)


def _kind(options: Options) -> str:
    if options.no_python:
        return PROGRAM
    if options.module:
        return MODULE
    return PATH if options.run_path else SCRIPT


def conduct(
    options: Options, plan: Plan, task: RankTask, function: Callable[[], None] | None = None
) -> Report:
    """Start the fork server, then everything else; in a rank, run its task."""
    # Not at the top of the module: a refused command must answer at once.
    from paceline.launch.outcome.report import Report
    from paceline.launch.run.launcher import Launcher

    if plan.threads.value is not None:
        env.put(env.OMP_THREADS, str(plan.threads.value))
    # Removed from the environment, which ranks inherit.
    options = replace(options, secret=env.take(env.RUN_SECRET) or "")
    ports.require_free(options, plan)
    handle = (
        -1 if options.no_probe or task.method == "exec" else counters.create(int(plan.nproc.value))
    )
    if task.method == "fork":
        _warm_up(plan.warm_imports)
    server, rank_task = fork_server.fork()
    if rank_task is not None:
        rank_entry.run(rank_task, function)
        return Report(EXIT_OK, [])
    assert server is not None
    ulimits.raise_open_files()  # after the fork: ranks keep the limit that the user has set
    return Launcher(options, plan, task, server, handle).run()


def _warm_up(modules: Sequence[str]) -> None:
    """Import what every rank needs, once, and exclude it from garbage collection.

    So the memory pages of the modules stay shared with the ranks.
    """
    import atexit
    import gc
    from importlib import import_module

    slow = threading.Timer(
        _SLOW_IMPORT_S, _say_to_a_person, ["importing torch (slow on a network file system)"]
    )
    slow.daemon = True
    slow.start()
    try:
        torch_requirements.require()
        import torch.distributed
        import torch.nn.parallel
        import torch.utils.data  # noqa: F401
    finally:
        slow.cancel()
        slow.join()  # ranks are forked from here: no other thread may hold a lock
    for name in modules:
        import_module(name)
    gc.freeze()
    if "triton" in sys.modules:  # torch 2.15's uses nanobind, which prints uncollected objects
        atexit.register(gc.unfreeze)


def _say_to_a_person(text: str) -> None:
    if terminal.columns_of(sys.stderr):
        terminal.say(text)
