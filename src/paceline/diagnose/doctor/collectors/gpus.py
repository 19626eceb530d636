"""Collect GPUs, their driver and links from NVML, and their errors from the kernel log."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from paceline.diagnose.doctor.collectors.processes import describe
from paceline.diagnose.doctor.facts_gpu import (
    Driver,
    Gpu,
    GpuPair,
    GpuProcess,
    MigSlice,
    NvLink,
    Xid,
)
from paceline.machine import files
from paceline.machine.nvml import Nvml, bus_id, decoded

# The kernel log

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:,|:|\b)")
_TIME = re.compile(r"\[\s*(\d+)\.\d+\]")
_MOST = 50
_READ_ALL = 3  # of syslog(2)
_SIZE = 1 << 20


def gather_xids() -> tuple[Xid, ...] | None:
    """Return the errors since boot, the last of each kind and GPU; None if they cannot be read."""
    lines = list(_lines())
    return find_xids("\n".join(lines), now_s=time.monotonic()) if lines else None


def find_xids(text: str, *, now_s: float) -> tuple[Xid, ...]:
    """Return the errors in a kernel log, the last of each kind and GPU. Pure.

    Each line has the seconds since boot: ``[12.3] NVRM: Xid (PCI:0000:3b:00): 79, ...``.
    """
    xids = {}
    for line in text.splitlines():
        match = _XID.search(line)
        if match is None:
            continue
        stamp = _TIME.search(line)
        age = max(0, int(now_s - int(stamp[1]))) if stamp else None
        place = match[1].lower()
        place = place if "." in place else f"{place}.0"
        xids[place, int(match[2])] = Xid(int(match[2]), place, line[match.start() :][:200], age)
    return tuple(xids.values())[-_MOST:]


def _lines() -> Iterator[str]:
    if not sys.platform.startswith("linux"):
        return
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        yield from _ask_syslog()
        return
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    record = os.read(handle, 8192).decode(errors="replace")
                except BrokenPipeError:  # overwritten during the read; the next record is whole
                    continue
                head, _, message = record.partition(";")
                micros = head.split(",")[2] if head.count(",") >= 2 else "0"
                yield f"[{int(micros) // 1_000_000}.0] {message.splitlines()[0] if message else ''}"
    except (OSError, ValueError):
        return
    finally:
        os.close(handle)


def _ask_syslog() -> Iterator[str]:
    buffer = ctypes.create_string_buffer(_SIZE)
    length = ctypes.CDLL(None).klogctl(_READ_ALL, buffer, _SIZE)
    if length > 0:
        yield from buffer.raw[:length].decode(errors="replace").splitlines()


_PCI = Path("/sys/bus/pci/devices")
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive-process"}
_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a driver setting",
    5: "not supported",
}
_SLOWDOWNS = ((0x60, "thermal"), (0x80, "power-brake"), (0x08, "hardware"))
_REMOTES = {0: "gpu", 2: "switch"}
_FABRIC_STATES = {1: "not-started", 2: "in-progress", 3: "completed"}


@dataclass(frozen=True)
class NvmlData:
    """The data that NVML reports for a machine."""

    driver: Driver  # the NVIDIA driver
    gpus: tuple[Gpu, ...] = ()  # the GPUs in NVML's order
    pairs: tuple[GpuPair, ...] = ()  # the connection of each pair of GPUs


def gather_gpus(
    library: Any = None,  # ``pynvml`` or a substitute; None imports it
    pci: Path = _PCI,  # the kernel's folder of PCI devices
) -> NvmlData:
    """Read the driver, the GPUs and their links from NVML."""
    on_bus = count_on_bus(pci)
    try:
        with Nvml(library) as nvml:
            return _read(nvml, on_bus, pci)
    except Exception as error:  # no library, no driver, no device: NVML raises for each
        return NvmlData(Driver(problem=str(error), gpus_on_bus=on_bus))


def count_on_bus(pci: Path = _PCI) -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, including those of other users."""
    return sum(
        files.text(pci / name / "vendor") == "0x10de"
        and files.text(pci / name / "class").startswith("0x03")
        for name in files.names(pci)
    )


def _read(nvml: Nvml, on_bus: int, pci: Path) -> NvmlData:
    _, problem = nvml.ask_why("nvmlDeviceGetCount")
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion")
    driver = Driver(
        version=nvml.text("nvmlSystemGetDriverVersion"),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        problem=problem,
        gpus_on_bus=on_bus,
    )
    gpus: list[Gpu] = []
    handles: dict[int, Any] = {}
    for index, (handle, problem) in enumerate(nvml.handles()):
        if handle is None:
            gpus.append(Gpu(index, problem=problem))
            continue
        handles[index] = handle
        gpus.append(_read_gpu(nvml, index, handle, pci))
    pairs = [_read_pair(nvml, gpus, handles, *places) for places in combinations(handles, 2)]
    return NvmlData(driver, tuple(gpus), tuple(pairs))


def _read_gpu(nvml: Nvml, index: int, handle: Any, pci: Path) -> Gpu:
    place = bus_id(decoded(getattr(nvml.ask("nvmlDeviceGetPciInfo", handle), "busId", "")))
    memory = _memory(nvml, handle)
    uuid, problem = nvml.ask_why("nvmlDeviceGetUUID", handle)
    failed, pending = _repairs(nvml, handle)
    mig = _first(nvml.ask("nvmlDeviceGetMigMode", handle))
    numa = files.number(pci / place / "numa_node") if place else None
    return Gpu(
        index,
        name=nvml.text("nvmlDeviceGetName", handle),
        uuid=decoded(uuid),
        bus_id=place,
        problem=problem if "lost" in problem.lower() else "",
        memory_bytes=getattr(memory, "total", None),
        memory_used_bytes=getattr(memory, "used", None),
        capability=".".join(map(str, nvml.ask("nvmlDeviceGetCudaComputeCapability", handle) or ())),
        persistence=_flag(nvml.ask("nvmlDeviceGetPersistenceMode", handle)),
        ecc=_flag(_first(nvml.ask("nvmlDeviceGetEccMode", handle))),
        ecc_uncorrected=nvml.number("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        ecc_uncorrected_ever=nvml.number("nvmlDeviceGetTotalEccErrors", handle, 1, 1),
        repair_pending=pending,
        repair_failed=failed,
        mig=_flag(mig),
        mig_slices=_slices(nvml, handle) if mig else (),
        compute_mode=_COMPUTE_MODES.get(nvml.ask("nvmlDeviceGetComputeMode", handle), ""),
        slowdown=_slowdown(nvml, handle),
        temperature=nvml.number("nvmlDeviceGetTemperature", handle, 0),
        utilisation=getattr(nvml.ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
        processes=_processes(nvml, handle),
        nvlinks=_nvlinks(nvml, handle),
        fabric=_fabric(nvml, handle),
        numa_node=numa if numa is not None and numa >= 0 else None,
        cpus=files.text(pci / place / "local_cpulist") if place else "",
    )


def _memory(nvml: Nvml, handle: Any) -> Any:
    """Return the memory; only the newer call leaves out the driver's reserve."""
    version = nvml.constant("nvmlMemory_v2", 0)
    newer = nvml.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return newer if newer is not None else nvml.ask("nvmlDeviceGetMemoryInfo", handle)


def _repairs(nvml: Nvml, handle: Any) -> tuple[bool | None, bool | None]:
    """Return whether the repair of bad memory failed, and whether a repair waits for a reset.

    GPUs since Ampere remap rows; earlier ones retire pages.
    """
    rows = nvml.ask("nvmlDeviceGetRemappedRows", handle)
    if rows is not None and len(rows) == 4:
        return bool(rows[3]), bool(rows[2])
    return None, _flag(nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle))


def _slices(nvml: Nvml, handle: Any) -> tuple[MigSlice, ...]:
    slices = []
    for place in range(nvml.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if part is not None:
            uuid = nvml.text("nvmlDeviceGetUUID", part)
            slices.append(MigSlice(uuid, getattr(_memory(nvml, part), "total", None)))
    return tuple(slices)


def _slowdown(nvml: Nvml, handle: Any) -> tuple[str, ...]:
    bits = nvml.number("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # its name before CUDA 12.2
        bits = nvml.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    reasons = tuple(reason for bit, reason in _SLOWDOWNS if (bits or 0) & bit)
    if reasons == ("hardware",):
        return reasons
    return tuple(reason for reason in reasons if reason != "hardware")  # the others are finer


def _processes(nvml: Nvml, handle: Any) -> tuple[GpuProcess, ...]:
    processes = {}
    for function, graphics in (
        ("nvmlDeviceGetGraphicsRunningProcesses", True),
        ("nvmlDeviceGetComputeRunningProcesses", False),
    ):
        for entry in nvml.ask(function, handle) or ():
            process = describe(int(entry.pid))
            processes[entry.pid] = GpuProcess(
                pid=int(entry.pid),
                memory_bytes=getattr(entry, "usedGpuMemory", None),
                command=process.command,
                user=process.user,
                alive=process.alive,
                graphics=graphics,
            )
    return tuple(processes.values())


def _nvlinks(nvml: Nvml, handle: Any) -> tuple[NvLink, ...]:
    links = []
    for link in range(nvml.constant("NVML_NVLINK_MAX_LINKS", 18)):
        state = nvml.number("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            continue
        remote = nvml.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) if state else None
        info = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link) if state else None
        place = bus_id(decoded(getattr(info, "busId", "")))
        links.append(NvLink(bool(state), _REMOTES.get(-1 if remote is None else remote, ""), place))
    return tuple(links)


def _fabric(nvml: Nvml, handle: Any) -> str:
    """Return the state of a GPU in the fabric of NVLink switches, reported since Hopper."""
    try:
        info = nvml.library.c_nvmlGpuFabricInfo_v2_t()
    except AttributeError:  # pynvml before 12.535
        return ""
    if nvml.ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return ""
    state = _FABRIC_STATES.get(info.state, "")
    return "failed" if state == "completed" and info.status else state


def _read_pair(
    nvml: Nvml, gpus: Sequence[Gpu], handles: dict[int, Any], first: int, second: int
) -> GpuPair:
    one, other = handles[first], handles[second]
    level = nvml.number("nvmlDeviceGetTopologyCommonAncestor", one, other)
    read = nvml.number(
        "nvmlDeviceGetP2PStatus", one, other, nvml.constant("NVML_P2P_CAPS_INDEX_READ", 0)
    )
    over = nvml.number(
        "nvmlDeviceGetP2PStatus", one, other, nvml.constant("NVML_P2P_CAPS_INDEX_NVLINK", 2)
    )
    return GpuPair(
        first,
        second,
        level=_LEVELS.get(-1 if level is None else level, ""),
        nvlinks=count_nvlinks(
            gpus[first], gpus[second], driver_says=None if over is None else over == 0
        ),
        p2p="" if read is None else _P2P.get(read, "unknown"),
    )


def count_nvlinks(
    one: Gpu,
    other: Gpu,
    *,
    driver_says: bool | None,  # of an NVLink connection; None if it is unknown
) -> int:
    """Return the number of NVLinks between two GPUs, direct or through switches."""
    active = [link for link in one.nvlinks if link.active]
    direct = sum(link.remote_bus_id == other.bus_id and link.remote != "switch" for link in active)
    if direct:
        return direct
    both = min(len(active), sum(link.active for link in other.nvlinks))
    switched = any(link.remote == "switch" for link in active)
    # A virtual machine may hide the switches: then trust the driver.
    return both if driver_says or (switched and driver_says is None) else 0


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _first(values: Any) -> Any:
    return values[0] if values else None
