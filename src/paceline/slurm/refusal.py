"""Explain why sbatch refused a job, from its error messages."""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.errors import Finding, closest
from paceline.machine.slurm_commands import MISSING, UNANSWERED, Reply

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
    (
        r"dependency",
        "the job that this one waits for is not there",
        "leave out --dependency",
    ),
)
_UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|[Uu]nable to resolve|Could not establish a configuration"
)


def unsure(result: Reply) -> bool:
    """Return whether a job may have been queued although sbatch failed: no answer came in time."""
    return (
        result.status == UNANSWERED
        or "timed out" in result.err
        or "Unable to contact" in result.err
    )


def judge(result: Reply, *, known_options: Callable[[], tuple[str, ...]]) -> Finding:
    """Return why sbatch did not accept a job.

    Args:
        result: Status and output of sbatch.
        known_options: Returns the long names of sbatch's options; called if sbatch rejects an
            option.
    """
    lines = tuple(line.strip() for line in result.err.splitlines() if line.strip())[-6:]
    text = "\n".join(lines)
    if result.status == MISSING:
        return Finding(
            "slurm-unavailable",
            "there is no sbatch here: this is not a login node of a cluster, or Slurm's commands"
            " are not on PATH",
            evidence=lines,
            fix="paceline submit --dry-run ... prints the job script; without Slurm: paceline run",
        )
    if result.status == UNANSWERED or "timed out" in text:
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
