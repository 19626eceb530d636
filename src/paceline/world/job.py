"""Read which hosts a PBS or LSF job has, from its variables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline import env


@dataclass(frozen=True)
class BatchJob:
    """A job of PBS or LSF."""

    name: str  # what and which it is, as messages say it: ``PBS job 123.server``
    # its hosts, each once, in the scheduler's order; empty if they are not known here
    hosts: tuple[str, ...] = ()


def read_batch_job(
    environ: Mapping[str, str],
    *,
    # returns the text of a file; empty if it cannot be read
    read_file: Callable[[str], str] = lambda path: "",
) -> BatchJob | None:
    """Return the PBS or LSF job of this process; None outside one.

    LSF gives all tasks its hosts in a variable, ``hostA 4 hostB 4`` (``bsub(1)``). PBS names a file
    with a line for each slot, which exists on the first host only (``qsub(1B)``).
    """
    if environ.get(env.LSF_JOB_ID) and environ.get(env.LSF_HOSTS):
        hosts = environ[env.LSF_HOSTS].split()[::2]
        if environ.get(env.JSM_RANK) and len(hosts) > 1:
            hosts = hosts[1:]  # jsrun's launch node comes first and has no tasks
        return BatchJob(f"LSF job {environ[env.LSF_JOB_ID]}", _each_once(hosts))
    if environ.get(env.PBS_JOB_ID):
        path = environ.get(env.PBS_NODE_FILE, "")
        hosts = read_file(path).split() if path else []
        return BatchJob(f"PBS job {environ[env.PBS_JOB_ID]}", _each_once(hosts))
    return None


def _each_once(hosts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hosts))
