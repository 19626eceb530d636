"""Render a machine and its findings as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from paceline.diagnose.doctor.facts import Disk, Facts
from paceline.diagnose.doctor.facts_gpu import Gpu, GpuPair
from paceline.errors import SEVERITIES, Finding
from paceline.machine.ulimits import UNLIMITED
from paceline.text.wording import count, few

_MOST_IN_MATRIX = 8
_MOST_SETTINGS = 12
_MOST_INTERFACES = 4
_NOTHING_CHANGED = "The doctor changes nothing; what it suggests is yours to set."


def render(facts: Facts, findings: Sequence[Finding], *, of_links: bool = False) -> str:
    """Return the machine as a short table, then the findings by severity."""
    rows = list(_link_rows(facts) if of_links else _rows(facts))
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{name:{width}}  {text}".rstrip() for name, text in rows]
    for finding in findings:
        lines += ["", finding.render()]
    lines += ["", _summary(findings), _NOTHING_CHANGED]
    return "\n".join(lines)


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    parts = [count(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    return ", ".join(parts) or "No findings."


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "machine", _machine(facts)
    yield "GPUs", _gpus(facts)
    yield from _link_rows(facts)
    yield "network", few(list(_interfaces(facts)), _MOST_INTERFACES) or "no interface that is up"
    yield "RDMA", ", ".join(_rdma(facts)) or "none"
    yield "CPUs", _cpus(facts)
    yield "memory", _memory(facts)
    yield "limits", _limits(facts)
    yield "disks", ", ".join(map(_disk, facts.disks)) or "?"
    yield "software", _software(facts)
    if facts.settings:
        yield "settings", _settings(facts)
    for place, text in enumerate(facts.not_read):
        yield "not read" if place == 0 else "", text


def _link_rows(facts: Facts) -> Iterator[tuple[str, str]]:
    for place, line in enumerate(_links(facts)):
        yield "links" if place == 0 else "", line


def _disk(disk: Disk) -> str:
    return f"{disk.path} {size(disk.free_bytes)} free of {size(disk.total_bytes)}"


def _machine(facts: Facts) -> str:
    host = facts.host
    slurm = "Slurm job" if host.slurm_job else ""
    kinds = [
        f"container ({host.container})" if host.container else "",
        "virtual machine" if host.virtual else "",
        "Windows Subsystem for Linux" if host.wsl else "",
        "Slurm step" if host.slurm_step else slurm,
        "task of mpirun" if host.mpi_tasks else "",
    ]
    return ", ".join([host.name or "?", *filter(None, kinds)])


def _gpus(facts: Facts) -> str:
    if not facts.gpus:
        on_bus = facts.driver.gpus_on_bus
        return "none of NVIDIA" + (f" that can be asked, {on_bus} on the PCI bus" if on_bus else "")
    groups = Counter(_model(gpu) for gpu in facts.gpus)
    models = " + ".join(f"{number} x {model}" for model, number in groups.items())
    cuda = f" (CUDA {facts.driver.cuda})" if facts.driver.cuda else ""
    text = f"{models}, driver {facts.driver.version or '?'}{cuda}"
    if facts.visible_devices is None:
        return text
    return f"{text}, CUDA_VISIBLE_DEVICES={facts.visible_devices}"


def _model(gpu: Gpu) -> str:
    memory = f" {size(gpu.memory_bytes)}" if gpu.memory_bytes else ""
    return f"{gpu.name or 'unknown GPU'}{memory}" + (" (MIG)" if gpu.mig else "")


def _links(facts: Facts) -> Iterator[str]:
    """Yield the links between GPUs: one line if they are alike or many, else a matrix."""
    if not facts.pairs:
        return
    kinds = Counter(pair.link for pair in facts.pairs)
    outcomes = _outcomes(facts.pairs)
    if len(kinds) == 1:
        pairs = "the two" if len(facts.pairs) == 1 else f"all {len(facts.pairs)} pairs"
        yield f"{facts.pairs[0].link} between {pairs}{outcomes}"
    elif len(facts.gpus) > _MOST_IN_MATRIX:
        yield ", ".join(f"{link}: {number} pairs" for link, number in kinds.items()) + outcomes
    else:
        yield from _matrix(facts, outcomes.strip())


def _outcomes(pairs: Sequence[GpuPair]) -> str:
    """Return the outcomes of the trial copies as text; empty without trials."""
    outcomes = Counter(pair.trial for pair in pairs if pair.trial)
    if not outcomes:
        return ""
    return (
        f" ({', '.join(f'{number} {outcome}' for outcome, number in outcomes.items())} when tried)"
    )


def _matrix(facts: Facts, title: str) -> Iterator[str]:
    """Yield a matrix of the links, with a title at the end of its first line."""
    links = {frozenset((pair.first, pair.second)): pair.link for pair in facts.pairs}
    numbers = [gpu.index for gpu in facts.gpus]
    yield "      " + "".join(f"GPU{number:<4}" for number in numbers) + title
    for one in numbers:
        cells = [
            "X" if one == other else links.get(frozenset((one, other)), "?") for other in numbers
        ]
        yield f"GPU{one:<3}" + "".join(f"{cell:7}" for cell in cells)


def _interfaces(facts: Facts) -> Iterator[str]:
    for interface in facts.interfaces:
        if interface.loopback:
            continue
        rate = f", {interface.mbit / 1000:g} Gbit/s" if interface.mbit else ""
        address = f" ({interface.addresses[0]}{rate})" if interface.addresses else ""
        yield interface.name + address


def _rdma(facts: Facts) -> Iterator[str]:
    kinds = Counter((port.kind, port.gbit, port.state) for port in facts.rdma)
    for (kind, gbit, state), number in kinds.items():
        rate = f" {gbit:g} Gbit/s" if gbit else ""
        yield f"{number} x {kind}{rate} ({state.lower() or 'state unknown'})"


def _cpus(facts: Facts) -> str:
    limits = facts.limits
    nodes = f", {len(limits.numa_cpus)} NUMA nodes" if len(limits.numa_cpus) > 1 else ""
    return f"{limits.cpus} usable ({limits.cpus_reason or '?'}) of {limits.total_cpus}{nodes}"


def _memory(facts: Facts) -> str:
    limit = facts.limits.memory_limit_bytes
    return size(facts.limits.memory_bytes) + (
        f", cgroup limit {size(limit)}" if limit is not None else ""
    )


def _limits(facts: Facts) -> str:
    limits = facts.limits
    return (
        f"/dev/shm {size(limits.shm_bytes)} ({size(limits.shm_free_bytes)} free), "
        f"memlock {size(limits.memlock_bytes)}, open files {_number(limits.open_files)}, "
        f"stack {size(limits.stack_bytes)}"
    )


def _software(facts: Facts) -> str:
    software = facts.software
    cuda = f"CUDA {software.torch_cuda}" if software.torch_cuda else "without CUDA"
    parts = [
        f"Python {software.python or '?'}",
        f"torch {software.torch} ({cuda})" if software.torch else "torch not installed",
    ]
    if software.nccl:
        parts.append(f"NCCL {software.nccl}")
    return ", ".join(parts)


def _settings(facts: Facts) -> str:
    files = {name: f" ({file})" for name, file in facts.settings_where.items()}
    settings = [
        f"{name}={value}{files.get(name, '')}" for name, value in sorted(facts.settings.items())
    ]
    return few(settings, _MOST_SETTINGS)


def size(number: int | None) -> str:
    """Return a number of bytes as text, ``unlimited`` or ``?``."""
    if number is None:
        return "?"
    if number == UNLIMITED:
        return "unlimited"
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            digits = 0 if value >= 10 or value.is_integer() else 1
            return f"{value:.{digits}f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _number(number: int | None) -> str:
    if number is None:
        return "?"
    return "unlimited" if number == UNLIMITED else f"{number}"
