"""A hand: asks a cluster for what it has, all at the same time, since each command may wait for its time limit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from paceline.slurm import cluster, commands
from paceline.slurm.cluster import Cluster

# A user without an association may still use a cluster that does not enforce them: then there is no line.
_ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "format=account,partition")


def gather(*, account: bool) -> Cluster:
    """Return what the cluster says of itself, as far as it answers.

    Args:
        account: Ask for the user's accounts too, which another server answers.
    """
    asked: list[tuple[str, ...]] = [cluster.PARTITIONS, cluster.NODES]
    if account:
        asked.append((*_ASSOCIATIONS[:5], f"users={_user()}", _ASSOCIATIONS[5]))
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda words: commands.ask(*words), asked))
    return cluster.read(*answers)


def _user() -> str:
    import getpass

    return getpass.getuser()
