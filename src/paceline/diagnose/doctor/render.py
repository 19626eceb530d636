"""Render a machine and its findings as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_gpu import Gpu
from paceline.errors import SEVERITIES, Finding
from paceline.machine.ulimits import UNLIMITED

_MOST_IN_MATRIX = 8
_MOST_SETTINGS = 12
_MOST_INTERFACES = 4
_NOTHING_CHANGED = "The doctor changes nothing; what it suggests is yours to set."


def render(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the machine as a short table, then the findings by severity."""
    rows = list(_rows(facts))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {text}".rstrip() for name, text in rows]
    for finding in findings:
        lines += ["", finding.render()]
    lines += ["", _summary(findings), _NOTHING_CHANGED]
    return "\n".join(lines)


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    told = [count(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    return ", ".join(told) if told else "No findings."


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "machine", _machine(facts)
    yield "GPUs", _gpus(facts)
    for place, line in enumerate(_links(facts)):
        yield "links" if place == 0 else "", line
    yield "network", _folded(list(_interfaces(facts))) or "no interface that is up"
    yield "RDMA", ", ".join(_rdma(facts)) or "none"
    yield "CPUs", _cpus(facts)
    yield "memory", _memory(facts)
    yield "limits", _limits(facts)
    yield (
        "disks",
        ", ".join(
            f"{d.path} {size(d.free_bytes)} free of {size(d.total_bytes)}" for d in facts.disks
        )
        or "?",
    )
    yield "software", _software(facts)
    if facts.settings:
        yield "settings", _settings(facts)
    for place, text in enumerate(facts.not_read):
        yield "not read" if place == 0 else "", text


def _machine(facts: Facts) -> str:
    host = facts.host
    kinds = [
        f"container ({host.container})" if host.container else "",
        "virtual machine" if host.virtual else "",
        "Windows Subsystem for Linux" if host.wsl else "",
        "Slurm step" if host.slurm_step else "Slurm job" if host.slurm_job else "",
    ]
    return ", ".join([host.name or "?", *filter(None, kinds)])


def _gpus(facts: Facts) -> str:
    if not facts.gpus:
        on_bus = facts.driver.gpus_on_bus
        return "none of NVIDIA" + (f" that can be asked, {on_bus} on the PCI bus" if on_bus else "")
    groups = Counter(_model(gpu) for gpu in facts.gpus)
    told = " + ".join(f"{count} x {model}" for model, count in groups.items())
    driver = f"driver {facts.driver.version or '?'}" + (
        f" (CUDA {facts.driver.cuda})" if facts.driver.cuda else ""
    )
    shown = (
        "" if facts.visible_devices is None else f", CUDA_VISIBLE_DEVICES={facts.visible_devices}"
    )
    return f"{told}, {driver}{shown}"


def _model(gpu: Gpu) -> str:
    memory = f" {size(gpu.memory_bytes)}" if gpu.memory_bytes else ""
    return f"{gpu.name or 'unknown GPU'}{memory}" + (" (MIG)" if gpu.mig else "")


def _links(facts: Facts) -> Iterator[str]:
    if not facts.pairs:
        return
    links = {(pair.first, pair.second): pair.link for pair in facts.pairs}
    trials = Counter(pair.trial for pair in facts.pairs if pair.trial)
    tried = (
        f" ({', '.join(f'{count} {outcome}' for outcome, count in trials.items())} when tried)"
        if trials
        else ""
    )
    if len(set(links.values())) == 1:
        pairs = "the two" if len(links) == 1 else f"all {len(links)} pairs"
        yield f"{facts.pairs[0].link} between {pairs}{tried}"
        return
    if len(facts.gpus) > _MOST_IN_MATRIX:
        yield (
            ", ".join(f"{link}: {count} pairs" for link, count in Counter(links.values()).items())
            + tried
        )
        return
    numbers = [gpu.index for gpu in facts.gpus]
    yield "      " + "".join(f"GPU{number:<4}" for number in numbers) + tried.strip()
    for one in numbers:
        cells = [
            "X" if one == other else links.get((min(one, other), max(one, other)), "?")
            for other in numbers
        ]
        yield f"GPU{one:<3}" + "".join(f"{cell:7}" for cell in cells)


def _folded(words: Sequence[str]) -> str:
    more = len(words) - _MOST_INTERFACES
    return ", ".join(words[:_MOST_INTERFACES]) + (f" and {more} more" if more > 0 else "")


def _interfaces(facts: Facts) -> Iterator[str]:
    for each in facts.interfaces:
        if not each.loopback:
            rate = f", {each.mbit / 1000:g} Gbit/s" if each.mbit else ""
            yield f"{each.name} ({each.addresses[0]}{rate})" if each.addresses else each.name


def _rdma(facts: Facts) -> Iterator[str]:
    kinds = Counter((port.kind, port.gbit, port.state) for port in facts.rdma)
    for (kind, gbit, state), count in kinds.items():
        yield (
            f"{count} x {kind}"
            + (f" {gbit:g} Gbit/s" if gbit else "")
            + f" ({state.lower() or 'state unknown'})"
        )


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
    known = facts.software
    cuda = f" (CUDA {known.torch_cuda})" if known.torch_cuda else " (without CUDA)"
    parts = [
        f"Python {known.python or '?'}",
        f"torch {known.torch}{cuda}" if known.torch else "torch not installed",
    ]
    return ", ".join([*parts, *([f"NCCL {known.nccl}"] if known.nccl else [])])


def _settings(facts: Facts) -> str:
    told = [
        f"{name}={value}"
        + (f" ({facts.settings_where[name]})" if name in facts.settings_where else "")
        for name, value in sorted(facts.settings.items())
    ]
    more = len(told) - _MOST_SETTINGS
    return ", ".join(told[:_MOST_SETTINGS]) + (f" and {more} more" if more > 0 else "")


def size(number: int | None) -> str:
    """Return a number of bytes as text, ``unlimited`` or ``?``."""
    if number is None:
        return "?"
    if number == UNLIMITED:
        return "unlimited"
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return (
                f"{value:.0f} {unit}"
                if value >= 10 or value == int(value)
                else f"{value:.1f} {unit}"
            )
        value /= 1024
    return f"{value:.1f} TiB"


def _number(number: int | None) -> str:
    return "?" if number is None else "unlimited" if number == UNLIMITED else f"{number}"


def count(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
