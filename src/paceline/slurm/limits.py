"""Compare a request with the limits of the cluster, before the job waits forever. Pure.

Slurm accepts many impossible jobs and leaves them pending, with a reason that only ``squeue``
shows. Limits that are unknown are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.errors import Finding, UsageError, closest
from paceline.slurm.cluster import Cluster, NodeKind, Partition
from paceline.slurm.request import SubmitRequest, clock
from paceline.text.quoting import word
from paceline.text.wording import few

_NAME = "slurm-request-impossible"
_OVERRULED = ("qos", "reservation")  # their limits may exceed those of the partition
_CPU_OPTIONS = ("mincpus", "extra-node-info", "tres-per-task")
_MOST_NAMED = 8


def judge(
    request: SubmitRequest,
    cluster: Cluster,  # the cluster's partitions and accounts; what is unknown is not checked
) -> list[Finding]:
    """Return the limits that a request exceeds, as warnings where Slurm may accept the job."""
    findings = list(_account(request, cluster))
    if not cluster.partitions:
        return findings
    unknown = [name for name in _names(request.partition) if cluster.find(name) is None]
    if unknown:
        return [*findings, _unknown_partition(unknown[0], request, cluster)]
    candidates = [
        list(_partition(request, partition, cluster))
        for partition in _partitions(request.partition, cluster)
    ]
    # Slurm chooses any possible one of several partitions: the request fails only if none is
    possible = [candidate for candidate in candidates if not _fatal(candidate)]
    best = next(iter(possible + candidates), [])
    return [*findings, *best]


def _names(listed: str) -> list[str]:
    return [name for name in listed.split(",") if name]


def _partitions(listed: str, cluster: Cluster) -> list[Partition]:
    """Return the known partitions of a list such as ``gpu,cpu``, else the default partition."""
    named = [partition for name in _names(listed) if (partition := cluster.find(name))]
    if named or cluster.default is None:
        return named
    return [cluster.default]


def waits_forever(request: SubmitRequest, cluster: Cluster, *, partition: str) -> list[Finding]:
    """Return the limits that keep a job pending although ``sbatch --test-only`` accepts it.

    Without ``EnforcePartLimits`` Slurm accepts a job beyond the limits of its partition, which then
    never starts.
    """
    if any(name in _OVERRULED for name, _ in request.sbatch):
        return []
    # The partition is sbatch's answer: a plug-in of the site may have chosen another one.
    candidates = _partitions(partition or request.partition, cluster)
    by_partition = [list(_limits(request, candidate, cluster)) for candidate in candidates]
    return by_partition[0] if by_partition and all(by_partition) else []


def lacks_cpus(request: SubmitRequest) -> bool:
    """Return whether a job with GPUs requests no CPUs: Slurm would allocate one for its task."""
    has_cpus = request.cpus or any(name in _CPU_OPTIONS for name, _ in request.sbatch)
    return bool(request.gpus) and not has_cpus


def with_cpus(
    request: SubmitRequest,  # the request, without CPUs
    cluster: Cluster,  # the cluster's partitions
) -> SubmitRequest:
    """Return a request for GPUs with their share of the CPUs of a node.

    Raises UsageError if Slurm does not show the hardware of its nodes, or no node has such GPUs.
    """
    partitions = _partitions(request.partition, cluster)
    shares = [share for partition in partitions for share in _shares(request, partition)]
    # The least of all, since Slurm may choose any of these nodes.
    cpus, why = min(shares, default=(0, ""))
    if not cpus:
        raise UsageError(no_cpus(request, "the cluster does not say how many CPUs belong to a GPU"))
    return replace(request, cpus=cpus, cpus_why=why)


def _shares(request: SubmitRequest, partition: Partition) -> Iterator[tuple[int, str]]:
    """Yield for each kind of node how many CPUs belong to the requested GPUs, and why."""
    kind = request.gpus.rpartition(":")[0]
    whole = partition.whole_nodes or any(name == "exclusive" for name, _ in request.sbatch)
    for node in partition.kinds:
        if not _fits(node, request, kind):
            continue
        most = min(node.cpus, partition.max_cpus or node.cpus)
        share = most * request.num_gpus // node.num_gpus()
        why = (
            f"the share of {request.num_gpus} of a node's {node.num_gpus()} GPUs in its {most} CPUs"
        )
        if whole:
            share, why = most, "all CPUs of a node, which the job has to itself"
        elif partition.cpus_per_gpu:
            share = min(most, partition.cpus_per_gpu * request.num_gpus)
            why = f"{partition.cpus_per_gpu} for each GPU, as partition {partition.name} has it"
        # Slurm allocates whole cores: a share that ends within one would take CPUs of another GPU.
        yield max(1, share - share % node.threads), why


def no_cpus(request: SubmitRequest, why: str) -> Finding:
    """Return the finding for a job with GPUs whose number of CPUs paceline cannot choose."""
    return Finding(
        "cpus-per-task-missing",
        f"--gpus-per-node {request.gpus} without CPUs: Slurm would give the ranks of a node one CPU"
        " together",
        where="command line",
        why=why,
        fix="--cpus-per-gpu 8   (the CPUs of a node divided by its GPUs)",
    )


def _fatal(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _account(request: SubmitRequest, cluster: Cluster) -> Iterator[Finding]:
    accounts = cluster.accounts
    if accounts is None or not request.account:
        return
    # Slurm keeps the names of accounts in lower case, whatever case they are typed in.
    if request.account.lower() in (account.lower() for account in accounts):
        return
    near = closest(request.account, accounts)
    yield _impossible(
        f"there is no account {request.account} that this user may charge",
        where=f"--account {word(request.account)}",
        evidence=(f"accounts: {few(accounts, _MOST_NAMED)}",),
        fix=f"--account {near or accounts[0]}",
    )


def _unknown_partition(name: str, request: SubmitRequest, cluster: Cluster) -> Finding:
    names = [partition.name for partition in cluster.partitions]
    near = closest(name, names)
    fitting = [
        partition.name
        for partition in cluster.partitions
        if not _fatal(list(_partition(request, partition, cluster)))
    ]
    return _impossible(
        f"there is no partition {name}",
        where=f"--partition {word(request.partition)}",
        evidence=(f"partitions: {few(names, _MOST_NAMED)}",),
        fix=f"--partition {near or (fitting or names)[0]}",
    )


def _partition(request: SubmitRequest, partition: Partition, cluster: Cluster) -> Iterator[Finding]:
    overruled = any(name in _OVERRULED for name, _ in request.sbatch)
    yield from _nodes(request, partition, cluster)
    if not overruled:
        yield from _limits(request, partition, cluster)
    yield from _accounts_of(request, partition)


def _nodes(request: SubmitRequest, partition: Partition, cluster: Cluster) -> Iterator[Finding]:
    """Check what is requested of each node, and if that is possible the number of nodes."""
    if not partition.kinds:
        return
    kind = request.gpus.rpartition(":")[0]
    findings = [
        *_gpus(request, partition, cluster, kind),
        *_cpus(request, partition),
        *_memory(request, partition),
    ]
    yield from findings
    if findings:
        return
    fitting = sum(node.count for node in partition.kinds if _fits(node, request, kind))
    if request.min_nodes > fitting:
        yield _too_few_nodes(request, partition, cluster, fitting)


def _too_few_nodes(
    request: SubmitRequest, partition: Partition, cluster: Cluster, fitting: int
) -> Finding:
    what = f"partition {partition.name} has {_node_words(fitting)}"
    evidence: tuple[str, ...] = ()
    if fitting < partition.num_nodes:
        what += " with what is asked of each"
        evidence = tuple(_describe(node) for node in partition.kinds[:_MOST_NAMED])
    return _impossible(
        f"{what}, not {request.min_nodes}",
        where=_where(f"--nodes {request.nodes}", request),
        evidence=evidence,
        fix=f"--nodes {fitting}" + _elsewhere(request, partition, cluster),
    )


def _gpus(
    request: SubmitRequest, partition: Partition, cluster: Cluster, kind: str
) -> Iterator[Finding]:
    most = max(node.num_gpus(kind) for node in partition.kinds)
    if request.num_gpus <= most:
        return
    # a job can request a type of GPU only by the name that the site gave it
    kinds = sorted({name for node in partition.kinds for name in node.gpus if name})
    if kind and kind not in kinds:
        yield _unknown_gpu_kind(request, partition, kind, kinds)
    else:
        yield _too_many_gpus(request, partition, cluster, kind, most)


def _unknown_gpu_kind(
    request: SubmitRequest, partition: Partition, kind: str, kinds: Sequence[str]
) -> Finding:
    near = closest(kind, kinds) or next(iter(kinds), "")
    prefix = f"{near}:" if near else ""
    return _impossible(
        f"partition {partition.name} has no GPU {kind}",
        where=_where(f"--gpus-per-node {request.gpus}", request),
        evidence=(f"kinds: {few(kinds, _MOST_NAMED)}" if kinds else "its GPUs have no kinds",),
        fix=f"--gpus-per-node {prefix}{request.num_gpus}",
    )


def _too_many_gpus(
    request: SubmitRequest, partition: Partition, cluster: Cluster, kind: str, most: int
) -> Finding:
    elsewhere = _elsewhere(request, partition, cluster)
    if most:
        limit = f"the most is {most}"
        prefix = f"{kind}:" if kind else ""
        nodes = _more_nodes(request, partition, kind, most)
        fix = f"{nodes}--gpus-per-node {prefix}{most}{elsewhere}"
    else:
        limit = "there are none"
        fix = elsewhere.removeprefix(", or ") or "leave out --gpus-per-node"
    return _impossible(
        f"no node of partition {partition.name} has {request.num_gpus}"
        f" {_gpu_words(kind, request.num_gpus)}; {limit}",
        where=_where(f"--gpus-per-node {request.gpus}", request),
        evidence=tuple(_describe(node) for node in partition.kinds[:_MOST_NAMED]),
        fix=fix,
    )


def _more_nodes(request: SubmitRequest, partition: Partition, kind: str, gpus_per_node: int) -> str:
    """Return ``--nodes N`` for all GPUs, or all such nodes if they are fewer; empty without N."""
    is_fixed = request.min_nodes == request.max_nodes
    total = request.num_gpus * request.max_nodes
    if kind or not is_fixed or total % gpus_per_node:
        return ""
    existing = sum(node.count for node in partition.kinds if node.num_gpus() >= gpus_per_node)
    num_nodes = min(total // gpus_per_node, existing, partition.max_nodes or existing)
    return f"--nodes {num_nodes} "


def _cpus(request: SubmitRequest, partition: Partition) -> Iterator[Finding]:
    most = max(node.cpus for node in partition.kinds)
    if request.cpus <= most or not most:
        return
    if request.cpus_per_gpu:
        typed = f"--cpus-per-gpu {request.cpus_per_gpu}"
        fix = f"--cpus-per-gpu {most // request.num_gpus}"
        what = f"{request.num_gpus} x {request.cpus_per_gpu} = {request.cpus} CPUs"
    else:
        typed = f"--cpus-per-node {request.cpus}"
        fix = f"--cpus-per-node {most}"
        what = f"{request.cpus} CPUs"
    yield _impossible(
        f"no node of partition {partition.name} has {what}; the most is {most}",
        where=_where(typed, request),
        fix=fix,
    )


def _memory(request: SubmitRequest, partition: Partition) -> Iterator[Finding]:
    most = max(node.memory_mb for node in partition.kinds)
    if not most or not request.mem or megabytes(request.mem) <= most:
        return
    yield _impossible(
        f"no node of partition {partition.name} has {request.mem} of memory; the most is"
        f" {_size(most)}",
        where=_where(f"--mem {request.mem}", request),
        fix=f"--mem {_size(most)}",
    )


def _limits(request: SubmitRequest, partition: Partition, cluster: Cluster) -> Iterator[Finding]:
    limit_s = partition.max_time_s
    requested_s = request.time_s or 0
    # Without --time a job gets the partition's default, which is within its limit.
    if limit_s is not None and (request.unlimited or requested_s > limit_s):
        requested = "UNLIMITED" if request.unlimited else clock(requested_s)
        why = "a job that asks for more waits forever, or is refused"
        if request.requeue:
            why += "; with less it is queued again when its time is over, and continues"
        yield _impossible(
            f"the time limit of partition {partition.name} is {clock(limit_s)}",
            where=_where(f"--time {requested}", request),
            why=why,
            fix=f"--time {clock(limit_s)}" + _elsewhere(request, partition, cluster),
        )
    if partition.max_nodes is not None and request.min_nodes > partition.max_nodes:
        yield _impossible(
            f"a job in partition {partition.name} has at most {_node_words(partition.max_nodes)}",
            where=_where(f"--nodes {request.nodes}", request),
            fix=f"--nodes {partition.max_nodes}" + _elsewhere(request, partition, cluster),
        )


def _accounts_of(request: SubmitRequest, partition: Partition) -> Iterator[Finding]:
    account = request.account
    if not account:
        return
    if account in partition.deny_accounts:
        yield _impossible(
            f"partition {partition.name} takes no jobs of account {account}",
            where=f"--account {word(account)}",
            fix="another --account, or another --partition",
        )
    elif partition.allow_accounts and account not in partition.allow_accounts:
        # a warning: in newer versions an account below one of these may use the partition too
        near = closest(account, partition.allow_accounts)
        finding = _impossible(
            f"account {account} is not among those of partition {partition.name}",
            where=f"--account {word(account)}",
            evidence=(f"accounts of the partition: {few(partition.allow_accounts, _MOST_NAMED)}",),
            fix=f"--account {near or partition.allow_accounts[0]}",
        )
        yield replace(finding, severity="warning")


def describe(partition: Partition) -> str:
    """Describe the nodes and the time limit of a partition in a few words."""
    kinds = [_describe(kind) for kind in partition.kinds]
    limit = f"at most {clock(partition.max_time_s)}" if partition.max_time_s else "no time limit"
    return "; ".join([*kinds[:3], limit])


def _elsewhere(request: SubmitRequest, partition: Partition, cluster: Cluster) -> str:
    """Return ``, or --partition NAME`` for another partition that can serve the request, if any."""
    for other in cluster.partitions:
        if other.name == partition.name or not other.up or not other.kinds:
            continue
        alone = Cluster((other,))  # without other partitions, which ends the recursion
        if not any(_partition(request, other, alone)):
            return f", or --partition {other.name}"
    return ""


def _fits(node: NodeKind, request: SubmitRequest, kind: str) -> bool:
    memory = megabytes(request.mem) if request.mem else 0  # --mem=0 is all memory of a node
    enough = not request.gpus or node.num_gpus(kind) >= request.num_gpus
    return enough and node.cpus >= request.cpus and node.memory_mb >= memory


def megabytes(text: str) -> int:
    """Return the megabytes of a size such as ``64G``; a bare number is in megabytes."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if not match:
        return 0
    scale = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[match[2]]
    return int(int(match[1]) * scale)


def _size(memory_mb: int) -> str:
    return f"{memory_mb // 1024}G" if memory_mb >= 10240 else f"{memory_mb}M"


def _describe(kind: NodeKind) -> str:
    gpus = [f"{count} {_gpu_words(name, count)}" for name, count in kind.gpus.items()]
    parts = [", ".join(gpus) or "no GPU", f"{kind.cpus} CPUs", f"{_size(kind.memory_mb)} of memory"]
    return f"{_node_words(kind.count)} with {', '.join(parts)}"


def _gpu_words(kind: str, count: int) -> str:
    return f"{kind} GPU{'' if count == 1 else 's'}".strip()


def _node_words(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _where(typed: str, request: SubmitRequest) -> str:
    if request.partition:
        return f"{typed} --partition {word(request.partition)}"
    return f"{typed}, the default partition"


def _impossible(
    what: str, *, where: str, fix: str, evidence: tuple[str, ...] = (), why: str = ""
) -> Finding:
    return Finding(_NAME, what, where=where, evidence=evidence, why=why, fix=fix)
