"""Check each GPU: is it healthy, free, visible and awake? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.diagnose.doctor.checks.asked import gpus_in_words, version, visible_gpus
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_gpu import Gpu, GpuProcess, MigSlice
from paceline.diagnose.doctor.render import size
from paceline.errors import Finding
from paceline.machine.gpus import entries
from paceline.text.wording import count, few

# The Xids of NVIDIA's catalogue that point to hardware. Programs cause others (13, 31, 43, 45).
_XIDS = {
    48: ("uncorrectable memory error", True),
    62: ("internal micro-controller halted", True),
    63: ("bad memory was taken out of use", False),
    64: ("bad memory could not be taken out of use", True),
    74: ("NVLink error", True),
    79: ("fallen off the bus", True),
    92: ("many correctable memory errors", False),
    94: ("contained memory error", False),
    95: ("uncontained memory error", True),
    119: ("the GPU's system processor does not answer", True),
    120: ("the GPU's system processor failed", True),
    136: ("NVLink training failed", True),
    140: ("unrecovered memory error", True),
    143: ("the GPU could not be initialised", True),
    154: ("the driver asks for a reset or reboot", True),
    158: ("the GPU did not answer in time", True),
}
_DAY_S = 24 * 3600  # the kernel log of a node that stays up holds faults that were repaired since
_SLOWDOWNS = {
    "thermal": "as it is too hot",
    "power-brake": "as the power supply asks for less",
    "hardware": "as the hardware protects itself (heat or power)",
}
_RECOVERED = "to 0x0 "  # of Xid 154: no action is required any more
_REPLACE = (
    "take the node out of use, then nvidia-smi --gpu-reset or a reboot; if it comes back, have it"
    " replaced"
)
_RESET = "reset the GPU when it is free (nvidia-smi --gpu-reset, or a reboot), and watch it"
_MPS = "nvidia-cuda-mps-server"  # lets several processes share a GPU in exclusive mode
_MUCH, _MUCH_BYTES = 0.1, 2 << 30  # of a GPU's memory: more than the driver and a desktop use


def judge_gpus(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about single GPUs."""
    yield from _hardware(facts)
    yield from _busy(facts)
    yield from _slices(facts)
    yield from _slow(facts)
    yield from _asleep(facts)
    yield from _without_bf16(facts)


@dataclass(frozen=True)
class _Sign:
    """A sign of a hardware fault."""

    gpu: Gpu | None  # the GPU; None if no listed GPU has the bus id from the kernel log
    place: str  # the GPU as text
    kind: str | int  # groups signs of the same kind
    line: str  # the line quoted as evidence
    what: str  # a short description
    severe: bool  # whether the GPU must not be used


def _hardware(facts: Facts) -> Iterator[Finding]:
    if "no answer" in facts.driver.problem:
        yield _hung(facts)
    signs = [
        _Sign(gpu, f"GPU {gpu.index}", line, line, line, severe)
        for gpu in facts.gpus
        for line, severe in _faults(gpu, facts)
    ]
    signs += _signs_of_kernel(facts)
    if not signs:
        return
    visible = {gpu.index for gpu in visible_gpus(facts)}  # a hidden GPU affects nobody
    severe = any(sign.severe and (sign.gpu is None or sign.gpu.index in visible) for sign in signs)
    others = len({sign.kind for sign in signs}) - 1
    and_others = f", and {count(others, 'other sign')} of a fault" if others else ""
    where = _where(signs)
    yield Finding(
        "gpu-hardware-error",
        f"{where}: {signs[0].what}{and_others}",
        where=where,
        evidence=tuple(f"{sign.place}: {sign.line}" for sign in signs[:8]),
        why=(
            "a run on a faulty GPU crashes, hangs or computes wrong numbers"
            if severe
            else "it may get worse"
        ),
        fix=_REPLACE if severe else _RESET,
        severity="error" if severe else "warning",
    )


def _signs_of_kernel(facts: Facts) -> Iterator[_Sign]:
    gpus = {gpu.bus_id: gpu for gpu in facts.gpus}
    # The log also names GPUs of other users.
    shared_log = facts.host.container or facts.host.slurm_job
    faults = [xid for xid in facts.xids if xid.number in _XIDS and _RECOVERED not in xid.line]
    for xid in faults:
        gpu = gpus.get(xid.bus_id)
        if shared_log and gpu is None:
            continue
        place = f"GPU {gpu.index}" if gpu is not None else xid.bus_id
        fault, severe = _XIDS[xid.number]
        severe = severe and (xid.age_s is None or xid.age_s < _DAY_S)
        what = f"Xid {xid.number}, {fault}"
        yield _Sign(gpu, place, xid.number, xid.line or f"Xid {xid.number}", what, severe)


def _where(signs: Sequence[_Sign]) -> str:
    """Return the GPUs as text, or their bus ids if none of the GPUs is listed."""
    gpus = {sign.gpu.index: sign.gpu for sign in signs if sign.gpu is not None}
    if gpus:
        return gpus_in_words([gpus[index] for index in sorted(gpus)])
    return few([sign.place for sign in signs])


def _hung(facts: Facts) -> Finding:
    return Finding(
        "gpu-hardware-error",
        f"the NVIDIA driver does not answer ({facts.driver.problem})",
        where=facts.host.name,
        evidence=(
            f"NVML: {facts.driver.problem}",
            f"NVIDIA GPUs on the PCI bus: {facts.driver.gpus_on_bus}",
        ),
        why="likely a GPU hangs or is lost: every program that uses one waits for good",
        fix="sudo dmesg -T | grep -i -e nvrm -e xid; then reboot the node",
    )


def _faults(gpu: Gpu, facts: Facts) -> Iterator[tuple[str, bool]]:
    """Yield each fault that NVML reports for a GPU, and whether the GPU must not be used."""
    if gpu.problem:
        yield f"NVML cannot reach it: {gpu.problem}", True
    if gpu.repair_failed:
        yield "bad memory could not be replaced (row remapping failed)", True
    if gpu.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded", True
    if gpu.repair_pending:
        yield "bad memory waits for a reset to be taken out of use", False
    if gpu.nvlinks and not gpu.mig:  # MIG slices have no NVLink
        yield from _missing_links(gpu, facts)


def _missing_links(gpu: Gpu, facts: Facts) -> Iterator[tuple[str, bool]]:
    """Yield a fault if a GPU on NVLink switches has fewer active links than GPUs of its kind."""
    alike = [other for other in facts.gpus if other.name == gpu.name and not other.mig]
    # Only a switch gives all GPUs as many links; in a mesh they may well differ.
    switched = any(link.remote == "switch" for other in alike for link in other.nvlinks)
    active = _active_links(gpu)
    most = max(map(_active_links, alike))
    if switched and active < most:
        yield f"{active} NVLinks are up, on the other GPUs {most}", False


def _active_links(gpu: Gpu) -> int:
    return sum(link.active for link in gpu.nvlinks)


def _busy(facts: Facts) -> Iterator[Finding]:
    # Another finding is about the leftovers, and says how to end them.
    leftovers = {process.pid for process in facts.leftovers}
    gpus: list[Gpu] = []
    holders: list[_Holder] = []
    for gpu in visible_gpus(facts):
        on_gpu = list(_holders(gpu, leftovers, wsl=facts.host.wsl))
        if on_gpu:
            gpus.append(gpu)
            holders += on_gpu
    if not holders:
        return
    exclusive = any(holder.exclusive for holder in holders)
    lines = [holder.line for holder in holders]
    yield Finding(
        "gpu-busy",
        lines[0] if len(lines) == 1 else f"{gpus_in_words(gpus)}: in use",
        where=gpus_in_words(gpus),
        evidence=tuple(lines[:8]),
        why=(
            "no other process can use it"
            if exclusive
            else "less memory is free there, and the ranks on it are slower"
        ),
        fix=_free_gpus(gpus, leftovers),
        severity="error" if exclusive else "warning",
    )


def _free_gpus(gpus: Sequence[Gpu], leftovers: set[int]) -> str:
    """Return how to find out who uses some GPUs."""
    computing = {
        process.pid
        for gpu in gpus
        for process in gpu.processes
        if process.alive and not process.graphics
    }
    pids = sorted(computing - leftovers)
    if not pids:
        return (
            "nvidia-smi on the host, outside containers, shows who holds it; choose free GPUs"
            " meanwhile"
        )
    return (
        "wait, or choose free GPUs with CUDA_VISIBLE_DEVICES; who it is: ps -fp"
        f" {','.join(map(str, pids[:8]))}"
    )


@dataclass(frozen=True)
class _Holder:
    """A reason why a GPU is not free."""

    line: str  # the GPU and what holds it, as text
    exclusive: bool  # whether no other process can use the GPU


def _holders(gpu: Gpu, leftovers: set[int], *, wsl: bool) -> Iterator[_Holder]:
    """Yield why a GPU is not free, leftovers apart. WSL uses memory that it does not report."""
    where = f"GPU {gpu.index}"
    if gpu.compute_mode == "prohibited":
        yield _Holder(f"{where}: compute mode Prohibited: no process may compute on it", True)
    # A desktop draws on the GPU too, and takes little of it.
    computing = [process for process in gpu.processes if not process.graphics]
    # MPS has its server in the list, which holds an exclusive GPU for all its clients.
    programs = [process for process in computing if not process.command.startswith(_MPS)]
    shared = len(programs) < len(computing)
    exclusive = gpu.compute_mode == "exclusive-process" and not shared
    for process in programs:
        if process.pid not in leftovers:
            yield _Holder(f"{where}: {_words(process)}", exclusive)
    # NVML lists no process of another container or of another namespace of process ids.
    if not gpu.processes and not gpu.mig and not wsl and _is_filled(gpu):
        used, total = size(gpu.memory_used_bytes), size(gpu.memory_bytes)
        line = f"{where}: {used} of {total} are held by a process that is not visible here"
        yield _Holder(line, False)


def _is_filled(gpu: Gpu) -> bool:
    """Return whether more of a GPU's memory is in use than a driver and a desktop need."""
    used, total = gpu.memory_used_bytes, gpu.memory_bytes
    if not used or not total:
        return False
    return used > max(_MUCH * total, _MUCH_BYTES)


def _words(process: GpuProcess) -> str:
    """Return a process and the memory that it holds, as text."""
    memory = f" holds {size(process.memory_bytes)}" if process.memory_bytes else " uses it"
    if not process.alive:
        return f"pid {process.pid}, which is not visible here,{memory}"
    who = f" of {process.user}" if process.user else ""
    return f"pid {process.pid}{who} ({process.command or 'unknown command'}){memory}"


def _slices(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each GPU of which this process could use several MIG slices."""
    for gpu in facts.gpus:
        slices = _visible_slices(gpu, facts.visible_devices)
        if len(slices) > 1:
            yield Finding(
                "mig-slices-of-one-gpu",
                f"GPU {gpu.index} is divided into slices (MIG), {len(slices)} of which ranks"
                " could get",
                where=f"GPU {gpu.index}",
                evidence=tuple(f"{part.uuid} {size(part.memory_bytes)}" for part in slices[:7]),
                why=(
                    "NCCL takes ranks on slices of one GPU for ranks on one GPU, and slices have no"
                    " peer-to-peer"
                ),
                fix=(
                    f"one rank per GPU: sudo nvidia-smi -i {gpu.index} -mig 0, or one rank:"
                    f" CUDA_VISIBLE_DEVICES={slices[0].uuid}"
                ),
                severity="warning",
            )


def _visible_slices(gpu: Gpu, setting: str | None) -> list[MigSlice]:
    """Return a GPU's slices that ``CUDA_VISIBLE_DEVICES`` names; all of them if it is unset."""
    if setting is None:
        return list(gpu.mig_slices)
    listed = [entry for entry in entries(setting) if entry]
    if str(gpu.index) in listed:
        return list(gpu.mig_slices)
    return [part for part in gpu.mig_slices if part.uuid.startswith(tuple(listed))]


def _slow(facts: Facts) -> Iterator[Finding]:
    slow = [gpu for gpu in facts.gpus if gpu.slowdown]
    if slow:
        yield Finding(
            "gpu-slowdown",
            f"{gpus_in_words(slow)}: slowed down, {_SLOWDOWNS.get(slow[0].slowdown[0], 'now')}",
            where=gpus_in_words(slow),
            evidence=tuple(
                f"GPU {gpu.index}: {', '.join(gpu.slowdown)}"
                + (f", {gpu.temperature} degrees Celsius" if gpu.temperature is not None else "")
                for gpu in slow[:8]
            ),
            why="the slowest GPU sets the pace of all ranks",
            fix=(
                "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at fans, air flow and power"
                " cables"
            ),
            severity="warning",
        )


def _asleep(facts: Facts) -> Iterator[Finding]:
    # None where the driver does not say. Under WSL the driver of Windows holds the GPU.
    asleep = [gpu for gpu in facts.gpus if gpu.persistence is False]
    if asleep and not facts.host.wsl:
        yield Finding(
            "persistence-off",
            f"{gpus_in_words(asleep)}: persistence mode is off",
            where=gpus_in_words(asleep),
            why=(
                "the driver starts a GPU again for its first user, which costs seconds at every"
                " start of a run"
            ),
            fix="sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1",
            severity="hint",
        )


def _without_bf16(facts: Facts) -> Iterator[Finding]:
    old = [
        gpu for gpu in visible_gpus(facts) if gpu.capability and version(gpu.capability) < (8, 0)
    ]
    if old:
        yield Finding(
            "bf16-emulated",
            f"{gpus_in_words(old)}: {old[0].name} computes bf16 by emulation (compute capability"
            f" {old[0].capability})",
            where=gpus_in_words(old),
            why="bf16 is slower there than 32 bits, and torch does not say so",
            fix="use 16 bits with a loss scale instead: Session(precision='16-mixed')",
            severity="hint",
        )
