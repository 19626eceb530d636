"""Validate the command line of ``paceline submit``, and merge it with a profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from paceline.errors import option_contradicted
from paceline.launch.plan import option_values, parsing
from paceline.launch.plan.option import long_form
from paceline.launch.plan.options import Options
from paceline.launch.plan.submit_options import (
    DIRECT,
    FORWARDED,
    GRACE,
    INSTEAD,
    NEVER,
    NEVER_FIX,
    ON_NODE_LOSS,
)
from paceline.slurm import option_rules
from paceline.slurm.profile import Profile
from paceline.slurm.sweep.definition import Sweep
from paceline.text.quoting import CONTROL

DEFAULT_GRACE_S = 120
# Otherwise a hang that cannot be proven wastes the job's hours until torch's timeout.
HANG_TIMEOUT = "15m"
# After the grace period the launcher still has to report, and the script calls Slurm's commands to
# queue the job again, which a busy controller may delay.
SIGNAL_MARGIN_S = 60
_UNLIMITED = "UNLIMITED"
NOTICES = ("SIGUSR1", "SIGUSR2")
_FORWARDED = {option.name for option in FORWARDED}
# Two options that exclude each other, the reason, and the fix.
_EXCLUSIVE = (
    ("requeue", "no_requeue", "", "leave out one of them"),
    (
        "cpus_per_gpu",
        "cpus_per_node",
        "both set the number of CPUs of a node's task",
        "leave out one of them",
    ),
    ("follow", "dry_run", "nothing is submitted", "leave out --follow"),
    (
        "follow",
        "json",
        "one shows the job's output, the other is for a program",
        "paceline submit --json ..., and paceline follow with the run folder that it prints",
    ),
    ("json", "dry_run", "the script is printed", "leave out --json"),
    *(
        (
            "follow",
            name,
            "the elements have an output each",
            "leave out --follow; then paceline jobs SWEEP, and paceline follow SWEEP/0",
        )
        for name in ("array", "param", "again")
    ),
)
# Options of other commands, and those of submit that mean the same.
_SYNONYMS = {
    "nnodes": "nodes",
    "nproc": "nproc-per-node",
    "gpus": "gpus-per-node",
    "gres": "gpus-per-node",
}


@dataclass(frozen=True)
class SubmitRequest:
    """A request for a job."""

    script: str  # the script, module or program, as typed
    script_args: tuple[str, ...] = ()  # arguments of the script
    nodes: str = "1"  # number of nodes or a range, in sbatch's syntax
    gpus: str = ""  # GPUs on each node, ``4`` or ``a100:4``; empty for none
    cpus: int = 0  # CPUs of the one task on each node, 0 for Slurm's default
    cpus_per_gpu: int = 0  # CPUs for each GPU from which ``cpus`` follows, 0 if it was set directly
    cpus_why: str = ""  # reason of ``cpus`` if paceline chose it; empty if the user did
    mem: str = ""  # memory on each node, empty for Slurm's default
    time_s: int | None = None  # time limit, None for Slurm's default or with ``unlimited``
    unlimited: bool = False  # whether a job without a time limit was requested
    account: str = ""  # account to charge, empty for Slurm's default
    partition: str = ""  # partition or a list of them, empty for Slurm's default
    job_name: str = ""  # name of the job
    requeue: bool = True  # whether the job is queued again when it stopped unfinished
    on_node_loss: str = "requeue"  # ``"requeue"`` or ``"fail"``
    grace_s: int = DEFAULT_GRACE_S  # seconds that ranks have to save and end
    # further options of sbatch: long name, and value or None
    sbatch: tuple[tuple[str, str | None], ...] = ()
    # options of ``paceline run``: name, and value or an empty text for a flag
    forwarded: tuple[tuple[str, str], ...] = ()
    run_dir: str = ""  # run folder as typed; empty for a new one
    profile: Profile = field(default_factory=Profile)  # the site's profile
    sweep: Sweep | None = None  # the elements of an array, None for a single job
    # whether the job is one process that makes the call of a function, without a launcher
    direct: bool = False

    @property
    def num_gpus(self) -> int:
        """GPUs on each node."""
        return option_rules.num_gpus(self.gpus)

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes."""
        return int(self.nodes.rpartition("-")[2])

    @property
    def min_nodes(self) -> int:
        """The smallest number of nodes."""
        return int(self.nodes.partition("-")[0])

    @property
    def signal_s(self) -> int:
        """Seconds before the time limit at which Slurm sends the stop signal."""
        return self.grace_s + _margin(_limit(self.time_s))

    @property
    def signal(self) -> str:
        """Name of the stop signal that Slurm sends: ``"TERM"``, or a notice that ranks handle."""
        handled = dict(self.forwarded).get("signals_to_handle", "").split(",")
        return next((name.removeprefix("SIG") for name in NOTICES if name in handled), "TERM")

    def saving_at(self, signal: str) -> SubmitRequest:
        """Return the request for a script that saves at a signal.

        The launcher then forwards this signal to the ranks. Signals that the user chose with
        ``--signals-to-handle`` stay as they are.
        """
        if signal not in NOTICES or "signals_to_handle" in dict(self.forwarded):
            return self
        handled = ",".join((*Options.signals_to_handle, signal))
        return replace(self, forwarded=(*self.forwarded, ("signals_to_handle", handled)))

    def directives(self) -> list[tuple[str, str | None]]:
        """Return the options of sbatch: long names, each with its value or None."""
        time = clock(self.time_s) if self.time_s else ""
        if self.unlimited:
            time = _UNLIMITED
        directives: list[tuple[str, str | None]] = [
            ("array", self.sweep.array if self.sweep else ""),
            ("nodes", self.nodes),
            # with a range, Slurm would allocate no more nodes than the tasks of MIN nodes need
            ("ntasks-per-node", "1" if self.min_nodes == self.max_nodes else ""),
            ("gpus-per-node", self.gpus),
            ("cpus-per-task", str(self.cpus or "")),
            ("mem", self.mem),
            ("time", time),
            ("account", self.account),
            ("partition", self.partition),
        ]
        return [directive for directive in directives if directive[1]] + list(self.sbatch)

    @property
    def options(self) -> Options:
        """The options of ``paceline run`` in the job, as far as they are known before its start."""
        return parsing.parse(
            self.script,
            self.script_args,
            typed={name: value or True for name, value in self.forwarded},
            inherited={},
        )


def parse(
    script: str,  # the script, module or program
    script_args: Sequence[str],  # arguments of the script, passed on unchanged
    *,
    # ``{name: text}`` of the options on the command line, True for a flag, a sequence for
    # ``sbatch``
    typed: Mapping[str, Any],
    profile: Profile,  # the site's validated profile
) -> SubmitRequest:
    """Validate the command line and merge it with a profile; the command line takes precedence.

    Raises UsageError if a value is invalid, or options contradict each other or have no effect.
    """
    option_rules.check(typed)
    _refuse_contradictions(typed)
    raw = {**_defaults(profile, typed), **typed}
    forwarded = _forwarded(profile, typed)
    options = parsing.parse(script, tuple(script_args), typed=forwarded, inherited={})
    gpus = (
        ""
        if option_rules.num_gpus(raw.get("gpus_per_node", "")) == 0
        else str(raw["gpus_per_node"])
    )
    cpus, cpus_per_gpu = _cpus(raw, gpus, set(typed))
    ranks = str(forwarded.get("nproc_per_node", ""))
    cpus_why = ""
    # With GPUs it follows from the node's (limits.with_cpus). Without, Slurm would give one CPU.
    if not cpus and not gpus and ranks.isdigit():
        cpus, cpus_why = int(ranks), "one for each rank"
    time_s, unlimited = _time(raw.get("time", ""))
    # ``2-2`` and ``02`` are 2, so that a fixed number of nodes is known as one.
    first, _, last = str(raw.get("nodes", "1")).partition("-")
    low, high = int(first), int(last or first)
    name = raw.get("job_name", "") or _name(script)
    typed_sbatch = _typed_sbatch(typed)
    names = {option for option, _ in typed_sbatch}
    return SubmitRequest(
        script=script,
        script_args=tuple(script_args),
        nodes=f"{low}-{high}" if high > low else str(low),
        gpus=gpus,
        cpus=cpus,
        cpus_per_gpu=cpus_per_gpu,
        cpus_why=cpus_why,
        mem=raw.get("mem", ""),
        time_s=time_s,
        unlimited=unlimited,
        account=raw.get("account", ""),
        partition=raw.get("partition", ""),
        job_name=name,
        requeue=not raw.get("no_requeue"),
        on_node_loss=_on_node_loss(raw, set(typed)),
        grace_s=_grace(options.shutdown_timeout, time_s),
        # what is typed replaces the profile's option of the same name
        sbatch=(*(item for item in profile.sbatch if item[0] not in names), *typed_sbatch),
        forwarded=tuple(
            (key, "" if value is True else str(value))
            for key, value in forwarded.items()
            if key not in GRACE
        ),
        run_dir=raw.get("run_dir", ""),
        profile=profile,
    )


def _forwarded(profile: Profile, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``paceline run`` in the job.

    Nobody watches a job, so there is a hang timeout by default.
    """
    forwarded = dict(profile.run)
    forwarded |= {name: value for name, value in typed.items() if name in _FORWARDED}
    # Without the probe nobody sees a hang, and the option would be an error.
    has_own_policy = bool({"hang_timeout", "no_probe"} & set(forwarded))
    if has_own_policy or forwarded.get("on_hang") == "report":
        return forwarded
    return {**forwarded, "hang_timeout": HANG_TIMEOUT}


def _defaults(profile: Profile, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile's defaults without those that a typed option excludes."""
    defaults = dict(profile.slurm)
    for first, second in (("cpus_per_gpu", "cpus_per_node"), ("requeue", "no_requeue")):
        for name, rival in ((first, second), (second, first)):
            if name in typed:
                defaults.pop(rival, None)
    return defaults


def _refuse_contradictions(typed: Mapping[str, Any]) -> None:
    for first, second, reason, fix in _EXCLUSIVE:
        if typed.get(first) and typed.get(second):
            what = f"{long_form(first)} and {long_form(second)} exclude each other"
            raise option_contradicted(f"{what}: {reason}" if reason else what, fix=fix)


def _cpus(raw: Mapping[str, Any], gpus: str, typed: set[str]) -> tuple[int, int]:
    """Return the CPUs of a node's task, and those for each GPU, 0 if they were not set so."""
    if "cpus_per_gpu" in raw and gpus:
        count = int(raw["cpus_per_gpu"])
        return count * option_rules.num_gpus(gpus), count
    if "cpus_per_gpu" in typed:
        raise option_contradicted(
            "--cpus-per-gpu has no effect without --gpus-per-node", fix="--gpus-per-node 1"
        )
    return int(raw.get("cpus_per_node", 0)), 0


def _on_node_loss(raw: Mapping[str, Any], typed: set[str]) -> str:
    choice = raw.get("on_node_loss", "")
    if raw.get("no_requeue"):
        if choice == "requeue" and "on_node_loss" in typed:
            what = (
                "--on-node-loss requeue and --no-requeue exclude each other: one of them queues the"
                " job again"
            )
            raise option_contradicted(what, fix="leave out --no-requeue")
        return "fail"
    return str(choice) or ON_NODE_LOSS[0]


def _time(text: str) -> tuple[int | None, bool]:
    if not text:
        return None, False
    if option_rules.UNLIMITED.fullmatch(text):
        return None, True
    return ceil(option_values.seconds_of(text, bare_s=60)), False


def sbatch_time(text: str) -> str:
    """Return a time limit as typed in sbatch's syntax."""
    time_s, is_unlimited = _time(text)
    return _UNLIMITED if is_unlimited else clock(time_s or 0)


def _grace(grace_s: int | None, time_s: int | None) -> int:
    limit_s = _limit(time_s)
    if grace_s is None:
        # With the margin at most half of a short job goes to its end.
        return DEFAULT_GRACE_S if limit_s is None else min(DEFAULT_GRACE_S, limit_s // 4)
    least_s = grace_s + _margin(limit_s)
    if limit_s is not None and least_s >= limit_s:
        what = (
            f"--grace-s {grace_s} leaves nothing of --time {clock(limit_s)}: the job would get the"
            " stop signal at once"
        )
        raise option_contradicted(what, fix=f"--time {clock(4 * least_s)}, or a shorter --grace-s")
    return grace_s


def _limit(time_s: int | None) -> int | None:
    """Return the effective time limit: Slurm rounds up to minutes."""
    return None if time_s is None else max(60, -(-time_s // 60) * 60)


def _margin(limit_s: int | None) -> int:
    """Decide how long before the grace period Slurm signals: a quarter of the limit at most."""
    return SIGNAL_MARGIN_S if limit_s is None else min(SIGNAL_MARGIN_S, limit_s // 4)


def _name(script: str) -> str:
    """Return a job name: that of the script without the folder and ``.py``."""
    stem = re.sub(r"\.pyw?$", "", script.rstrip("/").rpartition("/")[2])
    return CONTROL.sub(" ", stem).encode("utf-8", "replace").decode() or "run"


def _typed_sbatch(typed: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    """Return the typed options that become lines of the job script as they are."""
    direct = tuple(
        (option.long[2:], None if option.flag else typed[option.name])
        for option in DIRECT
        if typed.get(option.name)
    )
    through_sbatch = option_rules.sbatch_options(typed.get("sbatch", ()))
    for name, _ in direct:
        if any(name == other for other, _ in through_sbatch):
            what = f"--{name} and --sbatch --{name} set the same"
            raise option_contradicted(what, fix=f"leave out --sbatch --{name}")
    return (*direct, *through_sbatch)


def clock(seconds: float) -> str:
    """Return a time in the format of sbatch and squeue: ``04:00:00``, ``1-12:00:00``."""
    minutes, second = divmod(ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02d}:{minute:02d}:{second:02d}"


def instead_of_sbatchs(word: str) -> tuple[str, str]:
    """Return why submit does not have an option of sbatch, and what to use; empty for others."""
    from paceline.diagnose.lint import sbatch_option

    name = word.lstrip("-").replace("_", "-")
    is_short = len(name) == 1
    sbatch_name, kind = sbatch_option(name) if word.startswith("--") or is_short else ("", "")
    if name in _SYNONYMS:
        return "", f"--{_SYNONYMS[name]}"
    if sbatch_name in NEVER:
        return NEVER[sbatch_name], NEVER_FIX.get(sbatch_name, "leave it out")
    if sbatch_name in INSTEAD:
        return "", INSTEAD[sbatch_name]
    if sbatch_name and (sbatch_name == name or is_short):
        return "", f"--sbatch --{sbatch_name}" + ("=VALUE" if kind == "value" else "")
    return "", ""
