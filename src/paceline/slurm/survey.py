"""A hand: asks a cluster for what it has, all at the same time, since each command may wait for its time limit."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from paceline.machine import slurm_commands as commands
from paceline.slurm import cluster
from paceline.slurm.cluster import Cluster
from paceline.slurm.request import Request

# A user without an association may still use a cluster that does not enforce them: then there is no line.
_ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "format=account,partition")
_TRIAL_S = 10.0


def gather(*, account: bool) -> Cluster:
    """Return what the cluster says of itself, as far as it answers.

    Args:
        account: Ask for the user's accounts too, which another server answers.
    """
    queries: list[tuple[str, ...]] = [cluster.PARTITIONS, cluster.NODES]
    if account:
        queries.append((*_ASSOCIATIONS[:5], f"users={_user()}", _ASSOCIATIONS[5]))
    with ThreadPoolExecutor(len(queries)) as pool:
        answers = list(pool.map(lambda words: commands.ask(*words), queries))
    return cluster.read(*answers)


def trial(request: Request, *, environ: Mapping[str, str]) -> commands.Said:
    """Return what sbatch says of a request without queueing it: only it knows QOS, features and what a site changes."""
    words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in request.directives()]
    return commands.tell("sbatch", "--test-only", "--wrap=true", *words, timeout_s=_TRIAL_S, environ=environ)


def _user() -> str:
    import getpass

    return getpass.getuser()
