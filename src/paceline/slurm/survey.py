"""Query Slurm for partitions, nodes and accounts, in parallel, as each command may take long."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from paceline.machine import slurm_commands as commands
from paceline.slurm import cluster
from paceline.slurm.cluster import Cluster
from paceline.slurm.request import Request

# Without associations the output is empty: a cluster that does not enforce them accepts any user.
_ASSOCIATIONS = (
    "sacctmgr",
    "--noheader",
    "--parsable2",
    "show",
    "associations",
    "format=account,partition",
)
_TRIAL_S = 10.0


def gather(*, account: bool) -> Cluster:
    """Return the partitions and accounts of the cluster, as far as Slurm answers.

    Args:
        account: Whether to query the user's accounts too, which another server answers.
    """
    queries: list[tuple[str, ...]] = [cluster.PARTITIONS, cluster.NODES]
    if account:
        queries.append((*_ASSOCIATIONS[:5], f"users={_user()}", _ASSOCIATIONS[5]))
    with ThreadPoolExecutor(len(queries)) as pool:
        answers = list(pool.map(lambda words: commands.ask(*words), queries))
    return cluster.read(*answers)


def trial(request: Request, *, environ: Mapping[str, str]) -> commands.Reply:
    """Call ``sbatch --test-only``, since only sbatch knows QOS, features and submit plugins."""
    words = [
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in request.directives()
    ]
    return commands.run(
        "sbatch", "--test-only", "--wrap=true", *words, timeout_s=_TRIAL_S, environ=environ
    )


def _user() -> str:
    import getpass

    return getpass.getuser()
