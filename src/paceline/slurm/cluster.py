"""Parse partitions, nodes and accounts from ``scontrol``, ``sinfo`` and ``sacctmgr``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.launch.plan.option_values import seconds_of
from paceline.machine import slurm_commands as commands

PARTITIONS = ("scontrol", "show", "partition", "--all", "--oneliner")
# A line for each partition and kind of node: without --exact, sinfo would print "16+" for several
# kinds.
NODES = ("sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%G|%Z")
# Without associations the output is empty: a cluster that does not enforce them accepts any user.
_ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "show", "associations")
_NO_LIMIT = ("", "UNLIMITED", "INFINITE", "NONE", "N/A", "(null)")


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition that are alike."""

    count: int  # number of such nodes
    cpus: int  # CPUs of a node
    memory_mb: int  # memory of a node
    # number of GPUs of a node by kind; the kind is empty if the site does not name it
    gpus: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1  # threads of a core; Slurm allocates whole cores

    def num_gpus(self, kind: str = "") -> int:
        """Return the number of GPUs of a node, of one kind or of all kinds."""
        return self.gpus.get(kind, 0) if kind else sum(self.gpus.values())


@dataclass(frozen=True)
class Partition:
    """A partition and its limits."""

    name: str  # name of the partition
    default: bool = False  # whether it is the partition of jobs that name none
    up: bool = True  # whether it accepts and starts jobs
    max_time_s: int | None = None  # longest time limit of a job, None without a limit
    max_nodes: int | None = None  # largest number of nodes of a job, None without a limit
    allow_accounts: tuple[str, ...] = ()  # accounts that may use it; empty for all
    deny_accounts: tuple[str, ...] = ()  # accounts that may not use it
    # largest number of CPUs that its jobs get on a node, None without a limit
    max_cpus: int | None = None
    # CPUs that a job gets for each GPU by default, None if that is not set
    cpus_per_gpu: int | None = None
    whole_nodes: bool = False  # whether nodes are allocated exclusively
    kinds: tuple[NodeKind, ...] = ()  # kinds of its nodes; empty if they are unknown

    @property
    def num_nodes(self) -> int:
        """Number of its nodes."""
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True)
class Cluster:
    """Partitions and accounts of a Slurm cluster."""

    # partitions in Slurm's order; empty if Slurm does not answer
    partitions: tuple[Partition, ...] = ()
    # accounts that the user may charge, None if Slurm does not answer
    accounts: tuple[str, ...] | None = None

    def find(self, name: str) -> Partition | None:
        """Return the partition of this name, or None."""
        return next((partition for partition in self.partitions if partition.name == name), None)

    @property
    def default(self) -> Partition | None:
        """The partition of jobs that name none."""
        return next((partition for partition in self.partitions if partition.default), None)


def query_cluster(
    *,
    account: bool,  # whether to query the user's accounts too, which another server answers
) -> Cluster:
    """Return the partitions and accounts of the cluster, as far as Slurm answers."""
    # only here: its import takes longer than a dry run may
    from concurrent.futures import ThreadPoolExecutor

    queries: list[tuple[str, ...]] = [PARTITIONS, NODES]
    if account:
        import getpass

        user = f"users={getpass.getuser()}"
        queries.append((*_ASSOCIATIONS, user, "format=account,partition"))
    with ThreadPoolExecutor(len(queries)) as pool:
        answers = list(pool.map(lambda words: commands.ask(*words), queries))
    return read(*answers)


def read(
    partitions: str | None,  # output of the command ``PARTITIONS``, None if it did not answer
    nodes: str | None,
    # output of ``sacctmgr``, a line for each ``account|partition``
    associations: str | None = None,
) -> Cluster:
    """Parse the output of Slurm's commands."""
    kinds = _kinds(nodes or "")
    described = tuple(
        _partition(line, kinds)
        for line in (partitions or "").splitlines()
        if "PartitionName=" in line
    )
    accounts = None
    if associations is not None:
        # An account has a line for each partition that it is bound to.
        names = (line.partition("|")[0].strip() for line in associations.splitlines())
        accounts = tuple(dict.fromkeys(filter(None, names))) or None
    return Cluster(described, accounts)


def _partition(line: str, kinds: Mapping[str, list[NodeKind]]) -> Partition:
    values = dict(re.findall(r"(\w+)=(\S*)", line))
    name = values["PartitionName"]
    max_time, max_nodes, max_cpus = (
        values.get(key, "") for key in ("MaxTime", "MaxNodes", "MaxCPUsPerNode")
    )
    # Not by its key: it stands inside the value of JobDefaults.
    cpus_per_gpu = re.search(r"\bDefCpuPerGPU=(\d+)", line)
    return Partition(
        name=name,
        default=values.get("Default") == "YES",
        up=values.get("State", "UP") == "UP",
        max_time_s=None if max_time in _NO_LIMIT else int(seconds_of(max_time, bare_s=60)) or None,
        max_nodes=int(max_nodes) if max_nodes.isdigit() else None,
        allow_accounts=_names(values.get("AllowAccounts", "")),
        deny_accounts=_names(values.get("DenyAccounts", "")),
        max_cpus=int(max_cpus) if max_cpus.isdigit() else None,
        cpus_per_gpu=int(cpus_per_gpu[1]) if cpus_per_gpu else None,
        whole_nodes=values.get("OverSubscribe") == "EXCLUSIVE",
        kinds=tuple(kinds.get(name, ())),
    )


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("ALL", "NONE", "(null)", "") else tuple(text.split(","))


def _kinds(text: str) -> dict[str, list[NodeKind]]:
    kinds: dict[str, list[NodeKind]] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < 5 or not parts[1].isdigit():
            continue
        name, count, cpus, memory, gres, *threads = parts
        kind = NodeKind(
            int(count),
            _number(cpus),
            _number(memory),
            read_gpus(gres),
            max([1, *(_number(count_text) for count_text in threads)]),
        )
        kinds.setdefault(name.rstrip("*"), []).append(kind)
    return kinds


def _number(text: str) -> int:
    match = re.match(r"\d+", text.strip())
    return int(match[0]) if match else 0


def read_gpus(gres: str) -> dict[str, int]:
    """Return the number of GPUs by kind: ``gpu:a100:4(S:0-1),nvme:1`` has four of kind ``a100``."""
    counts: dict[str, int] = {}
    # Parentheses list sockets or indices, with commas of their own: ``gpu:4(S:0,2)``.
    for part in re.split(r",(?![^(]*\))", gres):
        words = re.sub(r"\(.*?\)", "", part).strip().split(":")
        if words[0] != "gpu":
            continue
        has_count = len(words) > 1 and words[-1].isdigit()
        kind = ":".join(words[1:-1] if has_count else words[1:])
        counts[kind] = counts.get(kind, 0) + (int(words[-1]) if has_count else 1)
    return counts
