"""A hand: Slurm's commands, asked with a time limit.

A controller that is down lets its commands wait for minutes, and a login node may have none of them: whoever asks gets
no answer then and goes on without. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from paceline import env

# Each changes what a command prints, or in which form: our reading rests on the forms that we ask for.
_SHAPES = re.compile(r"(SQUEUE|SINFO|SACCT|SACCTMGR)_\w+|SLURM_(TIME_FORMAT|JSON|YAML|BITSTR_LEN)|SCONTROL_\w+|LC_\w+")
_KEPT = re.compile(r"SLURM_(CONF|CLUSTERS|JWT)")

MISSING = 127  # what shells tell of a command that is not there
NOT_STARTED = 126  # what shells tell of one that cannot be run
UNANSWERED = 124  # what timeout(1) tells of one that was ended


@dataclass(frozen=True)
class Said:
    """What a command said.

    Attributes:
        status: Its exit status; as of shells 127 where it is missing, 126 where it cannot be run, 124 where none came.
        out: What it printed to stdout.
        err: What it printed to stderr.
    """

    status: int
    out: str = ""
    err: str = ""


def ask(*words: str, timeout_s: float = 10.0) -> str | None:
    """Return what a command prints to stdout, or None where it is missing, fails or does not answer."""
    said = query(*words, timeout_s=timeout_s)
    return said.out if said.status == 0 else None


def query(*words: str, timeout_s: float = 10.0) -> Said:
    """Return all that a command says that only asks, in the form that we can read."""
    environ = {name: value for name, value in env.snapshot().items() if not _SHAPES.fullmatch(name)}
    return tell(*words, timeout_s=timeout_s, environ={**environ, "LC_ALL": "C"})


def outside() -> dict[str, str]:
    """Return the environment without what Slurm says of this job: sbatch would hand it on to the next one."""
    environ = env.snapshot()
    inside = bool(environ.get(env.JOB_ID))
    return {
        name: value
        for name, value in environ.items()
        if not (inside and name.startswith("SLURM_") and not _KEPT.match(name))
    }


def tell(*words: str, timeout_s: float = 30.0, environ: Mapping[str, str] | None = None) -> Said:
    """Run a command that does something, such as sbatch, and return what it said.

    Args:
        words: The command and its arguments.
        timeout_s: After this time it is ended.
        environ: Its environment; ours by default, since sbatch hands it on to the job.
    """
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environ,
            start_new_session=True,  # site wrappers are shell scripts: with the group their children end too
        )
    except FileNotFoundError:
        return Said(MISSING, err=f"{words[0]}: command not found")
    except OSError as error:
        return Said(NOT_STARTED, err=f"{words[0]}: {error.strerror}")
    with child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return Said(UNANSWERED, err=f"{words[0]}: no answer within {timeout_s:g} s")
            raise
    return Said(child.returncode, out, err)
