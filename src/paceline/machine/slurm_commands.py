"""Run Slurm's commands with a timeout.

If the controller is down, its commands wait for minutes; a login node may not have them at all.
Callers then continue without an answer. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from paceline import env

# These change the content or format of the output; our parsers rely on the formats we request.
_FORMATS = re.compile(
    r"(SQUEUE|SINFO|SACCT|SACCTMGR)_\w+|SLURM_(TIME_FORMAT|JSON|YAML|BITSTR_LEN)|SCONTROL_\w+|LC_\w+"
)
_OF_SITE = re.compile(r"SLURM_(CONF|CLUSTERS|JWT)")

MISSING = 127  # exit status of shells for a missing command
NOT_STARTED = 126  # exit status of shells for a command that cannot be run
UNANSWERED = 124  # exit status of timeout(1) for a command that it ended


@dataclass(frozen=True)
class Reply:
    """The result of a command."""

    # exit status; as in shells, 127 if the command is missing, 126 if it cannot be run, 124 if it
    # timed out
    status: int
    out: str = ""  # text on stdout
    err: str = ""  # text on stderr


def ask(*words: str, timeout_s: float = 10.0) -> str | None:
    """Return a command's stdout; None if the command is missing, fails or times out."""
    reply = query(*words, timeout_s=timeout_s)
    return reply.out if reply.status == 0 else None


def query(*words: str, timeout_s: float = 10.0) -> Reply:
    """Run a command that only reads, with the output format that our parsers expect."""
    environ = {
        name: value for name, value in env.snapshot().items() if not _FORMATS.fullmatch(name)
    }
    return run(*words, timeout_s=timeout_s, environ={**environ, "LC_ALL": "C"})


def outside() -> dict[str, str]:
    """Return the environment without this job's variables, which sbatch would pass on."""
    environ = env.snapshot()
    if not environ.get(env.JOB_ID):
        return environ
    of_job = {name for name in environ if name.startswith("SLURM_") and not _OF_SITE.match(name)}
    return {name: value for name, value in environ.items() if name not in of_job}


def run(*words: str, timeout_s: float = 30.0, environ: Mapping[str, str] | None = None) -> Reply:
    """Run a command that has an effect, such as sbatch; it is ended after the timeout.

    ``environ`` is what sbatch passes to the job; None means ours.
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
            # site wrappers are shell scripts: ending the group ends their children too
            start_new_session=True,
        )
    except FileNotFoundError:
        return Reply(MISSING, err=f"{words[0]}: command not found")
    except OSError as error:
        return Reply(NOT_STARTED, err=f"{words[0]}: {error.strerror}")
    with child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return Reply(UNANSWERED, err=f"{words[0]}: no answer within {timeout_s:g} s")
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return Reply(child.returncode, out, err)
