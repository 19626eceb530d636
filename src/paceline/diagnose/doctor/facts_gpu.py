"""The facts about GPUs, their driver and the links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver."""

    version: str = ""  # its version; empty if unknown
    cuda: str = ""  # the newest supported CUDA version, as ``12.8``
    problem: str = ""  # NVML's error message if the driver does not answer; else empty
    gpus_on_bus: int = 0  # NVIDIA GPUs on the PCI bus, including those of other users


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU."""

    pid: int  # process id
    memory_bytes: int | None = None  # GPU memory in use; None if unknown
    command: str = ""  # the command line, shortened; empty if the process is not visible here
    user: str = ""  # the user name of the owner
    alive: bool = True  # whether the process is visible here
    graphics: bool = False  # whether it uses the GPU for graphics only


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU."""

    active: bool  # whether it is up
    remote: str = ""  # ``gpu``, ``switch``, or empty if unknown
    remote_bus_id: str = ""  # bus id of the device at the other end


@dataclass(frozen=True)
class MigSlice:
    """A slice of a GPU in MIG mode."""

    uuid: str  # its id, ``MIG-...``
    memory_bytes: int | None = None  # memory of the slice


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int  # its number in NVML's order, which is that of the PCI bus
    name: str = ""  # its model
    uuid: str = ""  # its id, ``GPU-...``
    bus_id: str = ""  # its address on the PCI bus, ``0000:3b:00.0``
    problem: str = ""  # NVML's error message if the GPU cannot be queried; else empty
    memory_bytes: int | None = None  # total memory
    memory_used_bytes: int | None = None  # memory in use
    capability: str = ""  # compute capability, as ``9.0``
    persistence: bool | None = None  # whether persistence mode is on
    ecc: bool | None = None  # whether ECC is on
    ecc_uncorrected: int | None = None  # uncorrected memory errors since the driver was loaded
    ecc_uncorrected_ever: int | None = None  # uncorrected memory errors over the GPU's lifetime
    repair_pending: bool | None = None  # whether the next reset replaces bad memory
    repair_failed: bool | None = None  # whether bad memory could not be replaced
    mig: bool | None = None  # whether MIG mode is on
    mig_slices: tuple[MigSlice, ...] = ()  # the slices in MIG mode
    compute_mode: str = ""  # ``default``, ``exclusive-process`` or ``prohibited``
    # active reasons for a slowdown: ``thermal``, ``power-brake``, ``hardware``
    slowdown: tuple[str, ...] = ()
    temperature: int | None = None  # temperature in degrees Celsius
    utilisation: int | None = None  # utilisation in per cent
    processes: tuple[GpuProcess, ...] = ()  # processes that use it
    nvlinks: tuple[NvLink, ...] = ()  # its NVLinks
    # state in the fabric of NVLink switches: ``completed``, ``in-progress``, ``not-started`` or
    # ``failed``; empty if the GPU is not part of one or does not report it
    fabric: str = ""
    numa_node: int | None = None  # the NUMA node that it is attached to
    cpus: str = ""  # CPUs near the GPU, as ``0-15,32-47``


@dataclass(frozen=True)
class GpuPair:
    """The connection between two GPUs."""

    first: int  # index of the first GPU
    second: int  # index of the second GPU
    level: str = ""  # distance on the PCI bus: ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``
    nvlinks: int = 0  # number of NVLinks between them, direct or through switches
    p2p: str = ""  # the driver's status of peer-to-peer: ``ok`` or an error; empty if unknown
    # result of a verified copy: ``ok``, ``wrong-data``, ``hang`` or ``not-possible``; empty without
    # a trial
    trial: str = ""
    gigabytes_per_s: float | None = None  # rate of that copy

    @property
    def link(self) -> str:
        """The link as ``nvidia-smi topo -m`` names it."""
        return f"NV{self.nvlinks}" if self.nvlinks else self.level or "?"

    @property
    def words(self) -> str:
        """The two GPUs as text."""
        return f"GPU {self.first} and GPU {self.second}"


@dataclass(frozen=True)
class AcsBridge:
    """A PCI bridge above GPUs with access control services (ACS)."""

    bus_id: str  # its address on the PCI bus
    gpus: tuple[int, ...] = ()  # indices of the GPUs below it
    # active redirections: ``request``, ``completion``, ``upstream``
    redirects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Xid:
    """A GPU error that the driver wrote to the kernel log."""

    number: int  # the Xid, NVIDIA's number of the error
    bus_id: str = ""  # the GPU's address on the PCI bus
    line: str = ""  # the log line
    age_s: int | None = None  # seconds since the error; None if unknown
