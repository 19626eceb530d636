"""Call sbatch, and read the id of the job that it prints."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from paceline import env
from paceline.machine import slurm_commands as commands
from paceline.slurm.record import JobRecord
from paceline.slurm.request import Request

_ANSWER_S = 60.0
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


@dataclass(frozen=True)
class Answer:
    """The answer of sbatch."""

    reply: commands.Reply  # its status and output
    job_id: str = ""  # id of the job or array; empty if sbatch has not accepted it
    cluster: str = ""  # the cluster that it printed; empty if it printed none

    def show_warnings(self) -> None:
        """Print what sbatch said of a job that it has accepted."""
        warnings = self.reply.err.strip()
        if warnings:
            print(warnings, file=sys.stderr)

    def record(self, requested: Request, *, earlier_ids: tuple[str, ...] = ()) -> JobRecord:
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


def environ(directives: Collection[str]) -> dict[str, str]:
    """Return the environment of sbatch and the job, without variables that override directives.

    Args:
        directives: Options of sbatch that the job script or the command line has.
    """
    dropped = {name for option in directives for name in _OVERRIDING_VARIABLES.get(option, ())}
    return {name: value for name, value in commands.outside().items() if name not in dropped}


def submit(*words: str, environ: Mapping[str, str]) -> Answer:
    """Submit a job script."""
    reply = commands.run("sbatch", "--parsable", *words, timeout_s=_ANSWER_S, environ=environ)
    match = re.search(r"^(\d+)(?:;(\S+))?\s*$", reply.out, re.MULTILINE)
    if reply.status or not match:
        return Answer(reply)
    return Answer(reply, match[1], match[2] or "")
