"""Call sbatch, and read the id of the job that it prints."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding, closest
from paceline.machine import slurm_commands as commands
from paceline.slurm.record import JobRecord
from paceline.slurm.request import SubmitRequest

_ANSWER_S = 60.0
_TRIAL_S = 10.0
# sbatch prefers these variables to directives; they are removed for directives of the script.
_OVERRIDING_VARIABLES = {
    "job-name": ("SBATCH_JOB_NAME",),
    "nodes": (
        "SBATCH_ARRAY_INX",
        "SBATCH_WAIT",
        "SBATCH_OUTPUT",
        "SBATCH_ERROR",
        "SBATCH_OPEN_MODE",
        "SBATCH_SIGNAL",
    ),
    "requeue": ("SBATCH_NO_REQUEUE", "SBATCH_REQUEUE"),
    "gpus-per-node": ("SBATCH_GPUS_PER_NODE", "SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"),
    "cpus-per-task": ("SBATCH_CPUS_PER_GPU",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "time": (env.SBATCH_TIME,),
    "account": (env.SBATCH_ACCOUNT,),
    "partition": (env.SBATCH_PARTITION,),
    "qos": ("SBATCH_QOS",),
    "constraint": ("SBATCH_CONSTRAINT",),
    "exclusive": ("SBATCH_EXCLUSIVE",),
    "export": ("SBATCH_EXPORT",),
    "reservation": ("SBATCH_RESERVATION",),
}
# Pattern of Slurm's message, its meaning, and the fix. The first match wins.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"[Ii]nvalid job array",
        "the array has more elements, or higher indices, than this cluster allows",
        "scontrol show config | grep MaxArraySize   (then smaller sweeps)",
    ),
    (
        r"account or account/partition",
        "the account is not known here, or not in this partition, or one must be named",
        "sacctmgr show assoc user=$USER format=account,partition,qos   (then --account NAME)",
    ),
    (r"invalid partition", "there is no such partition", "sinfo -s   (then --partition NAME)"),
    (
        r"group not permitted|Access.*partition",
        "the partition is for others",
        "sinfo -s   (then --partition NAME)",
    ),
    (
        r"time limit is invalid",
        "the time is over the partition's limit, or a time must be given",
        "sinfo -o '%R %l'   (then --time)",
    ),
    (
        r"node configuration is not available",
        "no node has the GPUs, CPUs, memory or features that are requested of each",
        "sinfo -o '%R %D %c %m %G %f' shows what nodes have",
    ),
    (
        r"More processors requested|Node count specification|more tasks than",
        "there are not as many nodes or CPUs",
        "sinfo -s   (then fewer --nodes)",
    ),
    (
        r"[Mm]emory (required|specification)|memory.*not available",
        "no node has as much memory",
        "sinfo -o '%R %m'   (then --mem)",
    ),
    (
        r"accounting/QOS|QOSMax|AssocMax|AssocGrp|policy",
        "a limit of the account or QOS is reached: how many jobs, GPUs or hours at a time",
        "sacctmgr show qos format=name,maxtres,maxwall,maxsubmit   (or a smaller job)",
    ),
    (
        r"[Ii]nvalid qos",
        "this account has no such QOS",
        "sacctmgr show assoc user=$USER format=account,qos   (then --qos NAME)",
    ),
    (
        r"gres|GRES",
        "the kind of GPU is not known here",
        "sinfo -o '%R %G'   (then --gpus-per-node KIND:N, or N alone)",
    ),
    (
        r"[Ii]nvalid feature",
        "no node has such a feature",
        "sinfo -o '%R %f'   (then --constraint NAME)",
    ),
    (r"reservation", "the reservation is not there, or is for others", "scontrol show reservation"),
    (r"dependency", "the job that this one waits for is not there", "leave out --dependency"),
)
_UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|[Uu]nable to resolve|Could not establish a configuration"
)


@dataclass(frozen=True)
class SbatchAnswer:
    """The answer of sbatch."""

    reply: commands.Reply  # its status and output
    job_id: str = ""  # id of the job or array; empty if sbatch has not accepted it
    cluster: str = ""  # the cluster that it printed; empty if it printed none

    def show_warnings(self) -> None:
        """Print what sbatch said of a job that it has accepted."""
        warnings = self.reply.err.strip()
        if warnings:
            print(warnings, file=sys.stderr)

    def record(self, requested: SubmitRequest, *, earlier_ids: tuple[str, ...] = ()) -> JobRecord:
        """Return the record of the job or array that was submitted now."""
        return JobRecord(
            job_id=self.job_id,
            earlier_ids=earlier_ids,
            cluster=self.cluster,
            name=requested.job_name,
            script=requested.script,
            nodes=requested.nodes,
            submitted_ns=time.time_ns(),
            on_node_loss=requested.on_node_loss,
        )


def environ(
    directives: Collection[str],  # options of sbatch that the job script or the command line has
) -> dict[str, str]:
    """Return the environment of sbatch and the job, without variables that override directives."""
    dropped = {name for option in directives for name in _OVERRIDING_VARIABLES.get(option, ())}
    return {name: value for name, value in commands.outside().items() if name not in dropped}


def submit(*words: str, environ: Mapping[str, str]) -> SbatchAnswer:
    """Submit a job script."""
    reply = commands.run("sbatch", "--parsable", *words, timeout_s=_ANSWER_S, environ=environ)
    match = re.search(r"^(\d+)(?:;(\S+))?\s*$", reply.out, re.MULTILINE)
    if reply.status or not match:
        return SbatchAnswer(reply)
    return SbatchAnswer(reply, match[1], match[2] or "")


def trial(requested: SubmitRequest, *, environ: Mapping[str, str]) -> commands.Reply:
    """Call ``sbatch --test-only``, since only sbatch knows QOS, features and submit plugins."""
    words = [
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in requested.directives()
    ]
    return commands.run(
        "sbatch", "--test-only", "--wrap=true", *words, timeout_s=_TRIAL_S, environ=environ
    )


def unsure(result: commands.Reply) -> bool:
    """Return whether a job may have been queued although sbatch failed: no answer came in time."""
    return (
        result.status == commands.UNANSWERED
        or "timed out" in result.err
        or "Unable to contact" in result.err
    )


def refusal(
    result: commands.Reply,  # status and output of sbatch
    *,
    # returns the long names of sbatch's options; called if sbatch rejects an option
    known_options: Callable[[], tuple[str, ...]],
) -> Finding:
    """Return why sbatch did not accept a job."""
    lines = tuple(line.strip() for line in result.err.splitlines() if line.strip())[-6:]
    text = "\n".join(lines)
    if result.status == commands.MISSING:
        return Finding(
            "slurm-unavailable",
            "there is no sbatch here: this is not a login node of a cluster, or Slurm's commands"
            " are not on PATH",
            evidence=lines,
            fix="paceline submit --dry-run ... prints the job script; without Slurm: paceline run",
        )
    if result.status == commands.UNANSWERED or "timed out" in text:
        return Finding(
            "slurm-unavailable",
            "sbatch did not answer in time",
            evidence=lines,
            why="the job may have been queued nevertheless",
            fix="squeue --me   (before it is submitted again)",
        )
    if _UNREACHABLE.search(text):
        return Finding(
            "slurm-unavailable",
            "Slurm's controller does not answer",
            evidence=lines,
            fix="scontrol ping",
        )
    if match := re.search(r"unrecognized option '--([\w-]+)", text):
        near = closest(match[1], known_options())
        fix = f"--sbatch --{near}" if near else "sbatch --help lists them"
        return Finding(
            "slurm-refused", f"sbatch has no option --{match[1]}", evidence=lines, fix=fix
        )
    for pattern, meaning, fix in _MEANINGS:
        if re.search(pattern, text):
            return Finding(
                "slurm-refused", f"sbatch refused the job: {meaning}", evidence=lines, fix=fix
            )
    what = f"sbatch refused the job with status {result.status}"
    return Finding(
        "slurm-refused",
        what,
        evidence=lines,
        fix="paceline submit --dry-run ... shows what was requested",
    )


def sbatch_options() -> tuple[str, ...]:
    """Return the long names of sbatch's options."""
    from paceline.diagnose import lint

    return lint.sbatch_options()
