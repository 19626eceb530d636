"""A judge: what ``scontrol`` and ``sinfo`` print, as facts about partitions and their nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.launch.plan.option_values import seconds_of

PARTITIONS = ("scontrol", "show", "partition", "--all", "--oneliner")
# Each partition with each kind of node that it has: --exact, or sinfo would print "16+" for several kinds.
NODES = ("sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%G|%Z")
_NO_LIMIT = ("", "UNLIMITED", "INFINITE", "NONE", "N/A", "(null)")


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition that are alike.

    Attributes:
        count: How many there are.
        cpus: CPUs of each.
        memory_mb: Memory of each.
        gpus: GPUs of each by kind; the kind is empty where the site names none.
        threads: Threads of a core: Slurm gives whole cores.
    """

    count: int
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1

    def num_gpus(self, kind: str = "") -> int:
        """Return the GPUs of each node, of one kind or of all."""
        return self.gpus.get(kind, 0) if kind else sum(self.gpus.values())


@dataclass(frozen=True)
class Partition:
    """A partition and its limits.

    Attributes:
        name: Its name.
        default: Jobs that name none go there.
        up: It takes jobs and starts them.
        max_time_s: Its limit; None where there is none.
        max_nodes: The most nodes of a job; None where there is no limit.
        allow_accounts: Accounts that may use it; empty for all.
        deny_accounts: Accounts that may not.
        max_cpus: The most CPUs of a node that its jobs get; None where there is no limit.
        cpus_per_gpu: CPUs that a job gets for each GPU if it asks for none; None where that is not set.
        whole_nodes: A job has its nodes to itself.
        kinds: Its nodes; empty where they are not known.
    """

    name: str
    default: bool = False
    up: bool = True
    max_time_s: int | None = None
    max_nodes: int | None = None
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    max_cpus: int | None = None
    cpus_per_gpu: int | None = None
    whole_nodes: bool = False
    kinds: tuple[NodeKind, ...] = ()

    @property
    def num_nodes(self) -> int:
        """How many nodes it has."""
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True)
class Cluster:
    """What Slurm says of itself.

    Attributes:
        partitions: In Slurm's order; empty where it does not answer.
        accounts: Those that the user may charge; None where nobody answers.
    """

    partitions: tuple[Partition, ...] = ()
    accounts: tuple[str, ...] | None = None

    def find(self, name: str) -> Partition | None:
        """Return a partition, or None."""
        return next((partition for partition in self.partitions if partition.name == name), None)

    @property
    def default(self) -> Partition | None:
        """The partition of jobs that name none."""
        return next((partition for partition in self.partitions if partition.default), None)


def read(partitions: str | None, nodes: str | None, associations: str | None = None) -> Cluster:
    """Return the facts.

    Args:
        partitions: What the command ``PARTITIONS`` printed, None where it did not answer.
        nodes: What ``NODES`` printed.
        associations: What ``sacctmgr`` printed, a line for each ``account|partition``.
    """
    kinds = _kinds(nodes or "")
    described = tuple(_partition(line, kinds) for line in (partitions or "").splitlines() if "PartitionName=" in line)
    accounts = None
    if associations is not None:
        names = (line.partition("|")[0].strip() for line in associations.splitlines())
        accounts = tuple(dict.fromkeys(filter(None, names))) or None
    return Cluster(described, accounts)


def _partition(line: str, kinds: Mapping[str, list[NodeKind]]) -> Partition:
    values = dict(re.findall(r"(\w+)=(\S*)", line))
    name = values["PartitionName"]
    max_time, max_nodes, max_cpus = (values.get(key, "") for key in ("MaxTime", "MaxNodes", "MaxCPUsPerNode"))
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
    """Return the GPUs of a node by kind: ``gpu:a100:4(S:0-1),nvme:1`` has four of kind ``a100``."""
    counts: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", gres):
        words = re.sub(r"\(.*?\)", "", part).strip().split(":")
        if words[0] != "gpu":
            continue
        has_count = len(words) > 1 and words[-1].isdigit()
        kind = ":".join(words[1:-1] if has_count else words[1:])
        counts[kind] = counts.get(kind, 0) + (int(words[-1]) if has_count else 1)
    return counts
