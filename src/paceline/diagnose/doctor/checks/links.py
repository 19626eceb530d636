"""Check the links between GPUs: peer-to-peer, NVLink, PCI access control, nearby CPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.diagnose.doctor.checks.asked import gpus_in_words, p2p_level, place, visible_gpus
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_gpu import AcsBridge, GpuPair
from paceline.errors import Finding
from paceline.text.wording import few, is_or_are

_SYMPTOMS = {"hang": "the copy did not end", "wrong-data": "what arrived is not what was sent"}
_BETWEEN_GPUS = (
    "traffic between GPUs and to the network takes the way over the CPU: slower, and on some"
    " machines it hangs"
)
# Whether copies between sockets work, and why that matters.
_TRIED = ("works", "over host memory it can be faster than from socket to socket")
_NOT_TRIED = (
    "has not been tried",
    "on some machines such copies hang at NCCL's first communication, or are slower than over host"
    " memory",
)
_TO_NETWORK = "GPUs and network cards exchange data over the CPU, which is slower (GPUDirect RDMA)"


def judge_links(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the links between GPUs, and between them and the CPUs."""
    # MIG slices have no peer-to-peer access.
    whole = {gpu.index for gpu in visible_gpus(facts) if not gpu.mig}
    pairs = [pair for pair in facts.pairs if {pair.first, pair.second} <= whole]
    yield from _fabric(facts)
    yield from _broken(facts, pairs)
    yield from _switched_off(facts, pairs)
    yield from _across_sockets(facts, pairs)
    yield from _access_control(facts, pairs)
    yield from _far_cpus(facts)


def _fabric(facts: Facts) -> Iterator[Finding]:
    out = [gpu for gpu in facts.gpus if gpu.fabric in ("not-started", "in-progress", "failed")]
    if out:
        yield Finding(
            "fabric-manager-down",
            f"{gpus_in_words(out)}: not part of the NVLink fabric ({out[0].fabric})",
            where=gpus_in_words(out),
            evidence=tuple(f"GPU {gpu.index}: fabric {gpu.fabric}" for gpu in out[:8]),
            why=(
                "CUDA does not start (error 802, system not yet initialized), or NCCL hangs at the"
                " first communication"
            ),
            fix=(
                "sudo systemctl restart nvidia-fabricmanager; its version must be that of the"
                " driver"
            )
            + (f", {facts.driver.version}" if facts.driver.version else ""),
        )


def _broken(facts: Facts, pairs: Sequence[GpuPair]) -> Iterator[Finding]:
    broken = [pair for pair in pairs if pair.trial in _SYMPTOMS]
    if not broken:
        return
    hangs = sum(pair.trial == "hang" for pair in broken)
    off = p2p_level(facts.settings) == "LOC"
    first = broken[0]
    yield Finding(
        "p2p-hang",
        f"a copy from GPU to GPU {'hangs' if hangs else 'brings wrong data'} between {first.words}"
        + (f" and {len(broken) - 1} more pairs" if len(broken) > 1 else ""),
        where=few([pair.words for pair in broken]),
        evidence=tuple(
            f"{pair.words} ({pair.link}): {_SYMPTOMS[pair.trial]}" for pair in broken[:8]
        ),
        why=(
            "NCCL copies in this way, though NCCL_P2P_DISABLE=1 keeps it from it; torch's own"
            " copies do in any case"
            if off
            else "NCCL hangs at the first communication, or training silently goes wrong"
        ),
        fix=_repair(off=off, over_nvlink=any(pair.nvlinks for pair in broken)),
        severity="warning" if off else "error",
    )


def _repair(*, off: bool, over_nvlink: bool) -> str:
    if over_nvlink:
        return "NVLink is at fault: nvidia-smi nvlink -s; have the machine looked at"
    repair = "until ACS and IOMMU are off in the BIOS, or the driver is newer"
    if off:
        return f"keep the setting {repair}"
    return f"export NCCL_P2P_DISABLE=1 (slower: over host memory) {repair}"


def _switched_off(facts: Facts, pairs: Sequence[GpuPair]) -> Iterator[Finding]:
    linked = [pair for pair in pairs if pair.nvlinks and pair.trial not in _SYMPTOMS]
    if not linked or p2p_level(facts.settings) != "LOC":
        return
    numbers = {number for pair in linked for number in (pair.first, pair.second)}
    variables = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
    given = {name: facts.settings[name] for name in variables if name in facts.settings}
    # Each by itself: where both are set, the one that keeps NCCL off is the one to unset.
    name = next(name for name, value in given.items() if p2p_level({name: value}) == "LOC")
    yield Finding(
        "p2p-disabled-with-nvlink",
        f"{name}={facts.settings[name]} keeps NCCL off the NVLinks between"
        f" {gpus_in_words(gpu for gpu in facts.gpus if gpu.index in numbers)}",
        where=place(name, facts),
        evidence=(f"{linked[0].link} between {linked[0].words}" + _and_more(linked),),
        why="gradients go through host memory, several times slower than over NVLink",
        fix=f"unset {name}",
        severity="warning",
    )


def _and_more(pairs: Sequence[GpuPair]) -> str:
    return f", and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""


def _across_sockets(facts: Facts, pairs: Sequence[GpuPair]) -> Iterator[Finding]:
    """Yield the finding about peer-to-peer copies between GPUs of different sockets."""
    far = [pair for pair in pairs if _crosses_sockets(pair)]
    level = p2p_level(facts.settings)
    if not far or level not in ("", "SYS"):
        return  # any other level keeps NCCL from it
    # A few copies that were right do not show that the way is the faster one, so that the finding
    # stays, as a hint.
    tried = all(pair.trial == "ok" for pair in far)
    uses = _nccl_crosses(facts, level)
    if tried and not uses:
        return
    outcome, why = _TRIED if tried else _NOT_TRIED
    rates = [pair.gigabytes_per_s for pair in far if pair.gigabytes_per_s]
    numa = {gpu.index: gpu.numa_node for gpu in facts.gpus if gpu.numa_node is not None}
    nodes = [str(numa[index]) for index in (far[0].first, far[0].second) if index in numa]
    on_nodes = f" (NUMA nodes {' and '.join(nodes)})" if len(nodes) == 2 else ""
    evidence = [f"{far[0].link} between {far[0].words}{on_nodes}{_and_more(far)}"]
    if rates:
        evidence.append(f"tried and verified: {min(rates):g} GB/s")
    evidence.append(_nccls_choice(facts, level, uses))
    yield Finding(
        "p2p-across-sockets",
        f"{far[0].words}{_and_more(far)} sit on different sockets or NUMA nodes, and peer-to-peer"
        f" between them {outcome}",
        where=few([pair.words for pair in far]),
        evidence=tuple(evidence),
        why=why,
        fix=_test_first(facts, pairs, uses=uses, tried=tried),
        severity="warning" if uses and not tried else "hint",
    )


def _crosses_sockets(pair: GpuPair) -> bool:
    """Return whether copies between two GPUs pass between sockets and are possible or untried."""
    on_different_sockets = pair.level == "SYS" and not pair.nvlinks
    return on_different_sockets and pair.p2p in ("", "ok") and pair.trial in ("", "ok")


def _test_first(facts: Facts, pairs: Sequence[GpuPair], *, uses: bool, tried: bool) -> str:
    count = len(visible_gpus(facts))
    test = f"all_reduce_perf -b 8 -e 256M -f 2 -g {count} (nccl-tests)"
    if not uses:
        return (
            f"nothing needs to be done; whether NCCL_P2P_LEVEL=SYS is faster: {test}, with and"
            " without it"
        )
    if p2p_level(facts.settings) == "SYS":
        setting, change = "without NCCL_P2P_LEVEL", "unset NCCL_P2P_LEVEL"
    elif any(pair.nvlinks for pair in pairs):
        setting, change = "with NCCL_P2P_LEVEL=NVL", "export NCCL_P2P_LEVEL=NVL"
    else:
        setting, change = "with NCCL_P2P_DISABLE=1", "export NCCL_P2P_DISABLE=1"
    bad = "is slower" if tried else "hangs or is slower"
    return f"test first: {test}, as it is and {setting}; if it {bad} as it is: {change}"


def _nccl_crosses(facts: Facts, level: str) -> bool:
    """Return whether NCCL uses peer-to-peer across sockets here.

    Source: NCCL's src/graph/paths.cc, ncclTopoCheckP2p.
    """
    if level == "SYS":
        return True
    # On AMD's CPUs with two GPUs at most. An unknown vendor counts as AMD: a copy that hangs costs
    # more than a hint in vain.
    return facts.host.cpu_vendor in ("", "AuthenticAMD") and len(visible_gpus(facts)) <= 2


def _nccls_choice(facts: Facts, level: str, uses: bool) -> str:
    if level == "SYS":
        return f"NCCL_P2P_LEVEL={facts.settings['NCCL_P2P_LEVEL']}: NCCL uses it"
    if uses and facts.settings.get("NCCL_P2P_LEVEL"):
        return f"NCCL does not know NCCL_P2P_LEVEL={facts.settings['NCCL_P2P_LEVEL']}, and uses it"
    if uses and not facts.host.cpu_vendor:
        return (
            "unless NCCL_P2P_DISABLE or NCCL_P2P_LEVEL is set, NCCL uses it if the CPUs are AMD's"
        )
    if uses:
        return (
            "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL are not set: between two GPUs on AMD CPUs NCCL"
            " uses it"
        )
    return "by default NCCL uses host memory there; torch's own copies from GPU to GPU do not"


def _access_control(facts: Facts, pairs: Sequence[GpuPair]) -> Iterator[Finding]:
    if facts.host.virtual or p2p_level(facts.settings) == "LOC":
        return  # virtual machines need access control; without peer-to-peer it harms nobody
    over_pci = [pair for pair in pairs if not pair.nvlinks and pair.p2p in ("", "ok")]
    over_pci = [pair for pair in over_pci if pair.trial in ("", "ok", *_SYMPTOMS)]
    tried = bool(over_pci) and all(pair.trial == "ok" for pair in over_pci)
    if facts.bridges is not None:
        yield from _redirecting_bridges(facts, facts.bridges, over_pci, tried=tried)
    # Only root can read bridges. An IOMMU that translates usually comes with access control.
    elif facts.iommu == "translated" and over_pci and not tried:
        yield _likely_access_control(facts, over_pci)


def _redirecting_bridges(
    facts: Facts, bridges: Sequence[AcsBridge], over_pci: Sequence[GpuPair], *, tried: bool
) -> Iterator[Finding]:
    """Yield the finding about bridges with active access control, if GPU traffic passes them."""
    gpus = {pair.first for pair in over_pci} | {pair.second for pair in over_pci}
    # The other controls, such as source validation, leave a transfer on the short way.
    redirecting = [
        bridge for bridge in bridges if {"request", "completion"} & set(bridge.redirects)
    ]
    between_gpus = [bridge for bridge in redirecting if gpus & set(bridge.gpus)]
    # GPUs with NVLink between all of them use PCI for the network alone.
    to_network = not over_pci and any(port.state == "ACTIVE" for port in facts.rdma)
    relevant = redirecting if to_network else between_gpus
    if not relevant:
        return
    # Beyond a host bridge NCCL takes host memory, and then access control between GPUs is idle.
    near = any(pair.level in ("", "PIX", "PXB") for pair in over_pci)
    is_used = near or _nccl_crosses(facts, p2p_level(facts.settings))
    harmful = bool(between_gpus) and not tried and is_used
    why = _BETWEEN_GPUS if between_gpus else _TO_NETWORK
    yield _access_control_is_on(facts, relevant, why=why, tried=tried, harmful=harmful)


def _access_control_is_on(
    facts: Facts, bridges: Sequence[AcsBridge], *, why: str, tried: bool, harmful: bool
) -> Finding:
    ids = [bridge.bus_id for bridge in bridges]
    evidence = [f"redirected to the CPU: {', '.join(bridges[0].redirects)}"]
    if facts.iommu:
        evidence.append(f"IOMMU: {facts.iommu}")
    if tried:
        evidence.append("copies between all pairs of GPUs were tried and are right")
    evidence.append(
        "price of switching it off: devices are no longer isolated from each other (virtual"
        " machines need that)"
    )
    return Finding(
        "acs-enabled",
        f"access control (ACS) is on in {len(ids)} PCI bridge{'s' if len(ids) > 1 else ''} above"
        " the GPUs",
        where=f"PCI bridge {few(ids)}",
        evidence=tuple(evidence),
        why=why,
        fix=(
            f"until the next boot: for b in {' '.join(ids[:16])}; do sudo setpci -s $b"
            " ECAP_ACS+0x6.w=0000; done"
        ),
        severity="warning" if harmful else "hint",
    )


def _likely_access_control(facts: Facts, pairs: Sequence[GpuPair]) -> Finding:
    return Finding(
        "acs-enabled",
        "the IOMMU translates the GPUs' addresses, so access control (ACS) is likely on above them",
        where=facts.host.name,
        evidence=(
            "IOMMU groups of the GPUs are of a DMA type",
            "the bridges can be read by root only",
        ),
        why=(
            f"peer-to-peer copies ({pairs[0].link}) take the way over the CPU: slower, and on some"
            " machines they hang"
        ),
        fix=(
            "look first: sudo paceline doctor; then boot with iommu=pt, or switch the IOMMU off in"
            " the BIOS"
        ),
        severity="hint",
    )


def _far_cpus(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if all CPUs of this process are on another socket than a visible GPU."""
    nodes = {name: _numbers(cpus) for name, cpus in facts.limits.numa_cpus.items()}
    mine = _numbers(facts.limits.affinity)
    if len(nodes) < 2 or not mine:
        return
    far = [
        gpu
        for gpu in visible_gpus(facts)
        if gpu.numa_node is not None and (near := nodes.get(str(gpu.numa_node))) and not near & mine
    ]
    if not far:
        return
    home = [name for name, cpus in nodes.items() if cpus & mine]
    yield Finding(
        "numa-affinity",
        f"this process may use CPUs of NUMA node {', '.join(home)} only, and {gpus_in_words(far)}"
        f" {is_or_are(far)} attached to node"
        f" {few(sorted({str(gpu.numa_node) for gpu in far}))}",
        where=gpus_in_words(far),
        evidence=(
            f"CPUs: {facts.limits.affinity}",
            f"CPUs near GPU {far[0].index}: {far[0].cpus or 'unknown'}",
        ),
        why="what goes from host memory to those GPUs passes between the sockets",
        fix=(
            "srun --cpu-bind=none ... or --gpu-bind=closest; without Slurm: paceline run"
            " --numa-binding node ..."
            if facts.host.slurm_step
            else (
                "paceline run --numa-binding node ...; or leave out what binds this process"
                " (taskset, numactl, cpuset)"
            )
        ),
        severity="hint",
    )


def _numbers(ranges: str) -> set[int]:
    """Return the numbers in a list of ranges such as ``0-15,32-47``."""
    numbers: set[int] = set()
    for part in ranges.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            numbers.update(range(int(first), int(last if last.isdecimal() else first) + 1))
    return numbers
