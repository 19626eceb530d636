"""The facts about GPUs, their driver and the links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        version: Its version; empty if unknown.
        cuda: The newest supported CUDA version, as ``12.8``.
        problem: NVML's error message if the driver does not answer; else empty.
        gpus_on_bus: NVIDIA GPUs on the PCI bus, including those of other users.
    """

    version: str = ""
    cuda: str = ""
    problem: str = ""
    gpus_on_bus: int = 0


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU.

    Attributes:
        pid: Process id.
        memory_bytes: GPU memory in use; None if unknown.
        command: The command line, shortened; empty if the process is not visible here.
        user: The user name of the owner.
        alive: Whether the process is visible here.
        graphics: Whether it uses the GPU for graphics only.
    """

    pid: int
    memory_bytes: int | None = None
    command: str = ""
    user: str = ""
    alive: bool = True
    graphics: bool = False


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU.

    Attributes:
        active: Whether it is up.
        remote: ``gpu``, ``switch``, or empty if unknown.
        remote_bus_id: Bus id of the device at the other end.
    """

    active: bool
    remote: str = ""
    remote_bus_id: str = ""


@dataclass(frozen=True)
class MigSlice:
    """A slice of a GPU in MIG mode.

    Attributes:
        uuid: Its id, ``MIG-...``.
        memory_bytes: Memory of the slice.
    """

    uuid: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: Its number in NVML's order, which is that of the PCI bus.
        name: Its model.
        uuid: Its id, ``GPU-...``.
        bus_id: Its address on the PCI bus, ``0000:3b:00.0``.
        problem: NVML's error message if the GPU cannot be queried; else empty.
        memory_bytes: Total memory.
        memory_used_bytes: Memory in use.
        capability: Compute capability, as ``9.0``.
        persistence: Whether persistence mode is on.
        ecc: Whether ECC is on.
        ecc_uncorrected: Uncorrected memory errors since the driver was loaded.
        ecc_uncorrected_ever: Uncorrected memory errors over the GPU's lifetime.
        repair_pending: Whether the next reset replaces bad memory.
        repair_failed: Whether bad memory could not be replaced.
        mig: Whether MIG mode is on.
        mig_slices: The slices in MIG mode.
        compute_mode: ``default``, ``exclusive-process`` or ``prohibited``.
        slowdown: Active reasons for a slowdown: ``thermal``, ``power-brake``, ``hardware``.
        temperature: Temperature in degrees Celsius.
        utilisation: Utilisation in per cent.
        processes: Processes that use it.
        nvlinks: Its NVLinks.
        fabric: State in the fabric of NVLink switches: ``completed``, ``in-progress``,
            ``not-started`` or ``failed``; empty if the GPU is not part of one or does not report
            it.
        numa_node: The NUMA node that it is attached to.
        cpus: CPUs near the GPU, as ``0-15,32-47``.
    """

    index: int
    name: str = ""
    uuid: str = ""
    bus_id: str = ""
    problem: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    capability: str = ""
    persistence: bool | None = None
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
    mig: bool | None = None
    mig_slices: tuple[MigSlice, ...] = ()
    compute_mode: str = ""
    slowdown: tuple[str, ...] = ()
    temperature: int | None = None
    utilisation: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()
    fabric: str = ""
    numa_node: int | None = None
    cpus: str = ""


@dataclass(frozen=True)
class GpuPair:
    """The connection between two GPUs.

    Attributes:
        first: Index of the first GPU.
        second: Index of the second GPU.
        level: Distance on the PCI bus: ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
        nvlinks: Number of NVLinks between them, direct or through switches.
        p2p: The driver's status of peer-to-peer: ``ok`` or an error; empty if unknown.
        trial: Result of a verified copy: ``ok``, ``wrong-data``, ``hang`` or ``not-possible``;
            empty without a trial.
        gigabytes_per_s: Rate of that copy.
    """

    first: int
    second: int
    level: str = ""
    nvlinks: int = 0
    p2p: str = ""
    trial: str = ""
    gigabytes_per_s: float | None = None

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
    """A PCI bridge above GPUs with access control services (ACS).

    Attributes:
        bus_id: Its address on the PCI bus.
        gpus: Indices of the GPUs below it.
        redirects: Active redirections: ``request``, ``completion``, ``upstream``.
    """

    bus_id: str
    gpus: tuple[int, ...] = ()
    redirects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Xid:
    """A GPU error that the driver wrote to the kernel log.

    Attributes:
        number: The Xid, NVIDIA's number of the error.
        bus_id: The GPU's address on the PCI bus.
        line: The log line.
        age_s: Seconds since the error; None if unknown.
    """

    number: int
    bus_id: str = ""
    line: str = ""
    age_s: int | None = None
