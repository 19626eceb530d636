"""Implement ``paceline.submit`` and ``paceline.map``: run Python functions as jobs."""

from __future__ import annotations

import os
import reprlib
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import (
    Finding,
    SetupError,
    UsageError,
    closest,
    option_contradicted,
    option_invalid,
)
from paceline.functions import by_machine, pickles
from paceline.functions.job import Job
from paceline.functions.pickles import Packed
from paceline.launch.plan import folder_errors, parsing
from paceline.launch.plan.option import as_words
from paceline.launch.plan.submit_options import FORWARDED, OWN, SWEEPS
from paceline.machine import host
from paceline.machine.cpus import usable_cpus
from paceline.rundir import sweeps
from paceline.rundir.files import IN_JOB, RUNS, RunDir, discard, new_run_id
from paceline.slurm import option_rules
from paceline.slurm.jobs import submit as submitting
from paceline.slurm.jobs.submit import Fill
from paceline.slurm.sweep.definition import Element, Sweep
from paceline.text.quoting import CONTROL

SLURM, LOCAL = "slurm", "local"
_LONGEST_LABEL = 40


@dataclass(frozen=True)
class _FunctionCall:
    """What becomes jobs."""

    name: str  # name of the function
    fill: Fill  # writes the function and its arguments into a folder
    items: tuple[str, ...] | None = None  # items of a map as short texts, None for a single call


def submit(function: Callable[..., Any], *args: Any, where: str = SLURM, **keywords: Any) -> Job:
    """Run ``function(*args)`` as a job, on all of its ranks.

    Args:
        function: The function. It may be defined in a script or a notebook, or be a lambda; it is
            pickled by cloudpickle. One that ends with ``sys.exit(75)`` is unfinished, and the job
            is queued again.
        *args: Its arguments.
        where: ``"slurm"``, or ``"local"`` for this machine, on which what is asked of Slurm has no
            effect.
        **keywords: Options of ``paceline submit``, with underscores: ``nodes=2``,
            ``gpus_per_node=4``, ``time="2h"``, ``partition=``, ``run_dir=``, ``nproc_per_node=``.

    Returns:
        The job, at once.

    Raises:
        UsageError: The function cannot be pickled, or an option is invalid.
        SetupError: Slurm does not accept the job, or the run folder cannot be written.
    """
    packed = pickles.pack_function(function)
    arguments = pickles.pack_arguments(args)

    def fill(folder: Path) -> None:
        packed.write(RunDir(folder).function)
        arguments.write(RunDir(folder).arguments)

    call = _FunctionCall(pickles.name_of(function), fill)
    return Job(_start(call, keywords, where=where, parallel=1))


def map(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    parallel: int | None = None,
    *,
    where: str = SLURM,
    **keywords: Any,
) -> list[Job]:
    """Run ``function(item)`` for every item, each as a job; in Slurm they are one array.

    Args:
        function: The function, as for ``paceline.submit``.
        items: Its argument in each of the jobs.
        parallel: How many jobs run at a time; None for as many as Slurm allows, or as this machine
            has CPUs.
        where: ``"slurm"``, or ``"local"`` for this machine.
        **keywords: Options of ``paceline submit`` for each of the jobs.

    Returns:
        The jobs in the order of the items, at once; an empty list without items.

    Raises:
        UsageError: The function or an item cannot be pickled, or an option is invalid.
        SetupError: Slurm does not accept the array, or the folder cannot be written.
    """
    values = list(items)
    _require_parallel(parallel)
    packed = pickles.pack_function(function)
    arguments = _packed_items(values)
    if not values:
        return []  # only now: what is wrong with the function shows with an empty list too

    def fill(folder: Path) -> None:
        packed.write(RunDir(folder).function)
        for index, item in enumerate(arguments):
            item.write(RunDir(sweeps.folder_of(folder, index)).arguments)

    call = _FunctionCall(pickles.name_of(function), fill, tuple(_label(value) for value in values))
    folder = _start(call, keywords, where=where, parallel=parallel or 0)
    return [Job(sweeps.folder_of(folder, index)) for index in range(len(values))]


def _packed_items(values: Sequence[Any]) -> list[Packed]:
    packed = []
    for index, value in enumerate(values):
        try:
            packed.append(pickles.pack_arguments((value,)))
        except UsageError as error:
            what = error.finding.what.replace("the arguments", f"item {index}", 1)
            raise UsageError(replace(error.finding, what=what)) from None
    return packed


def _require_parallel(parallel: Any) -> None:
    is_count = isinstance(parallel, int) and not isinstance(parallel, bool) and parallel > 0
    if parallel is None or is_count:
        return
    what = f"parallel={parallel!r}: parallel is a number of jobs from 1, or None"
    raise option_invalid(what, where="keyword arguments", fix="parallel=8")


def _label(value: Any) -> str:
    """Return an item as a short text for tables."""
    try:
        text = reprlib.repr(value)
    except Exception:  # of a user's __repr__
        text = type(value).__name__
    return CONTROL.sub(" ", text)[:_LONGEST_LABEL]


def _start(call: _FunctionCall, keywords: Mapping[str, Any], *, where: str, parallel: int) -> Path:
    """Start the jobs of a call, and return their folder."""
    if where not in (SLURM, LOCAL):
        what = f"where={where!r}: a job runs in Slurm, or on this machine"
        fix = f'where="{SLURM}", or where="{LOCAL}"'
        raise option_invalid(what, where="keyword arguments", fix=fix)
    if where == LOCAL:
        gpus = _gpu_shares(typed_options(keywords).get("gpus_per_node", ""))
        return _start_here(call, for_machine(keywords), parallel=parallel, gpus=gpus)
    return _start_in_slurm(call, typed_options(keywords), parallel=parallel)


def _start_in_slurm(call: _FunctionCall, typed: Mapping[str, Any], *, parallel: int) -> Path:
    options_of_job = {"job_name": call.name, **typed, "module": True}
    requested = submitting.parse(IN_JOB, (), typed=options_of_job)
    folder = _folder(call, requested.run_dir, requested.profile.runs)
    is_direct = not _runs_many(typed, requested.profile.run) and requested.nodes == "1"
    requested = replace(
        requested, run_dir=str(folder), direct=is_direct and requested.num_gpus <= 1
    )
    if call.items is not None:
        elements = (Element(index, {"item": item}, ()) for index, item in enumerate(call.items))
        requested = replace(requested, sweep=Sweep(tuple(elements), parallel))
    try:
        submitting.queue(requested, fill=call.fill)
    except SetupError as error:
        if shutil.which("sbatch") is None:  # whatever else Slurm refuses has its own fix
            fix = f'where="{LOCAL}" runs it on this machine, without Slurm'
            raise SetupError(replace(error.finding, fix=fix)) from None
        raise
    return folder


def _gpu_shares(per_job: str) -> tuple[str, ...]:
    """Return the GPUs of each job that runs at a time on this machine, empty without a choice."""
    option_rules.check({"gpus_per_node": per_job} if per_job else {})
    if not option_rules.num_gpus(per_job):
        return ()
    # A job's CUDA_VISIBLE_DEVICES replaces ours, so that its entries are ours: in a job of Slurm
    # with GPUs 2 and 3, 0 would be somebody else's. CUDA shows fewer where an entry is wrong.
    visible = env.read(env.CUDA_DEVICES)
    count = host.gather(visible).num_gpus
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return by_machine.shares(names[:count], per_job=option_rules.num_gpus(per_job))


def _start_here(
    call: _FunctionCall, typed: dict[str, Any], *, parallel: int, gpus: Sequence[str]
) -> Path:
    folder = _folder(call, typed.pop("run_dir", ""), "")
    forwarded = {**typed, "module": True}
    parsing.parse(IN_JOB, (), typed=forwarded, inherited={})  # refuses what cannot work
    has_many_gpus = bool(gpus) and "," in gpus[0]
    runs_many = has_many_gpus or _runs_many(typed, ())
    words = _words(typed) if runs_many else ("call", by_machine.RUN_DIR)
    together = parallel or len(gpus) or usable_cpus()[0]
    jobs = [folder]
    if call.items is not None:
        jobs = [sweeps.folder_of(folder, index) for index in range(len(call.items))]
    queue = by_machine.new_queue(
        jobs,
        parallel=min(together, len(gpus) or together),
        command=(*submitting.own_command(), *words),
        gpus=gpus,
    )
    try:
        for job in jobs:
            RunDir(job).create()
        call.fill(folder)
        by_machine.start(folder, queue)
    except OSError as error:
        discard(folder)
        raise SetupError(folder_errors.unusable(folder, error, option="run_dir=")) from None
    return folder


def _runs_many(typed: Mapping[str, Any], of_profile: Collection[str]) -> bool:
    """Return whether a launcher starts the call: an option of ``paceline run`` asks for it."""
    return bool(of_profile) or any(option.name in typed for option in FORWARDED)


def _words(typed: Mapping[str, Any]) -> tuple[str, ...]:
    options_of_run = [
        word
        for name, value in typed.items()
        for word in as_words(name, "" if value is True else str(value))
    ]
    run_dir = ("--run-dir", by_machine.RUN_DIR)
    return ("run", "--no-slurm", *run_dir, *options_of_run, "-m", IN_JOB)


def _folder(call: _FunctionCall, run_dir: str, runs: str) -> Path:
    """Return the folder of a call: a new one, or ``run_dir``, which must be empty."""
    if not run_dir:
        run_id = new_run_id(call.name, now_s=time.time(), salt=os.urandom(2).hex())
        suffix = "-map" if call.items is not None else ""
        return Path(os.path.abspath(os.path.join(runs or RUNS, run_id + suffix)))
    folder = Path(os.path.abspath(run_dir))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = f"{folder} is not empty, and the call of a function needs a new folder"
        fix = "another run_dir=, or leave it out"
        raise option_contradicted(what, where="run_dir=", fix=fix)
    return folder


# Turn keyword arguments into options of ``paceline submit``.


# What has no meaning for a function: the script's kind, what is printed, and what map decides.
_NEVER = {
    "module",
    "no_python",
    "run_path",
    "dry_run",
    "follow",
    "json",
    *(option.name for option in OWN if option.group == SWEEPS),
}
_OPTIONS = {option.name: option for option in (*OWN, *FORWARDED) if option.name not in _NEVER}
# What a machine without Slurm can obey: options of paceline run, and where the run folder is.
_OF_MACHINE = {option.name for option in FORWARDED if option.name not in _NEVER} | {"run_dir"}


def typed_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as the command line would have them: ``{name: text}``.

    Names have underscores. None and False leave an option out; True is a flag, and a tuple of texts
    an option that may be given several times. Raises UsageError if an option does not exist, or a
    value is of the wrong kind.
    """
    return {
        name: _value(name, value)
        for name, value in keywords.items()
        if value is not None and value is not False
    }


def for_machine(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that a machine without Slurm obeys.

    What is asked of Slurm has no effect here: the machine is what it is. The same program then runs
    in both places.
    """
    return {name: value for name, value in typed_options(keywords).items() if name in _OF_MACHINE}


def _value(name: str, value: Any) -> Any:
    option = _OPTIONS.get(name)
    if option is None:
        raise UsageError(_unknown(name))
    if option.flag:
        if value is not True:
            raise UsageError(_invalid(name, value, "is True or False"))
        return True
    if option.many:
        return (str(value),) if isinstance(value, str) else tuple(str(part) for part in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise UsageError(_invalid(name, value, "is a text or a number"))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _unknown(name: str) -> Finding:
    near = closest(name, _OPTIONS)
    return Finding(
        "option-unknown",
        f"{name}= is not an option of paceline submit",
        where="keyword arguments",
        why="arguments that the function takes by name: functools.partial(function, name=value)",
        fix=f"{near}=" if near else "paceline submit --help-all lists them",
    )


def _invalid(name: str, value: Any, rule: str) -> Finding:
    what = f"{name}={value!r}: {name} {rule}"
    return Finding("option-invalid", what, where="keyword arguments", fix=f"{name}=...")
