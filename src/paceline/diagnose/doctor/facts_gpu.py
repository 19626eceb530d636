"""What is known of GPUs, their driver and the links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        version: Its version.
        cuda: The newest CUDA that it serves, as ``12.8``.
        problem: Why it does not answer, in NVML's words; empty if it does or there is none.
        gpus_on_bus: NVIDIA GPUs on the PCI bus, whoever may use them.
    """

    version: str = ""
    cuda: str = ""
    problem: str = ""
    gpus_on_bus: int = 0


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU.

    Attributes:
        pid: Its number.
        memory_bytes: GPU memory that it holds, None if unknown.
        command: What it runs, shortened; empty if it is not visible here.
        user: Who started it.
        alive: Whether it is visible here.
        graphics: Whether it only draws.
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
        remote_bus_id: Where it leads to.
    """

    active: bool
    remote: str = ""
    remote_bus_id: str = ""


@dataclass(frozen=True)
class MigSlice:
    """A part of a GPU that is divided (MIG).

    Attributes:
        uuid: Its id, ``MIG-...``.
        memory_bytes: Its memory.
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
        bus_id: Its place on the PCI bus, ``0000:3b:00.0``.
        problem: Why it cannot be asked, in NVML's words.
        memory_bytes: Its memory.
        memory_used_bytes: What of it is in use.
        capability: Its compute capability, as ``9.0``.
        persistence: Whether the driver stays loaded for it without users.
        ecc: Whether ECC is on.
        ecc_uncorrected: Uncorrected memory errors since the driver was loaded.
        ecc_uncorrected_ever: Uncorrected memory errors in its life.
        repair_pending: Whether bad memory is taken out of use at the next reset.
        repair_failed: Whether bad memory could not be replaced.
        mig: Whether it is divided.
        mig_slices: Its parts.
        compute_mode: ``default``, ``exclusive-process`` or ``prohibited``.
        slowdown: Why it is slowed down now: ``thermal``, ``power-brake``, ``hardware``.
        temperature: Its temperature in degrees Celsius.
        utilisation: How busy it is, in per cent.
        processes: Who uses it.
        nvlinks: Its NVLinks.
        fabric: How far it has come into the fabric of NVLink switches: ``completed``, ``in-progress``,
            ``not-started`` or ``failed``; empty if it takes no part or does not tell.
        numa_node: The NUMA node that it is attached to.
        cpus: CPUs near it, as ``0-15,32-47``.
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
    """What lies between two GPUs.

    Attributes:
        first: Number of the one.
        second: Number of the other.
        level: How far apart they are on the PCI bus: ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
        nvlinks: NVLinks between them, directly or over switches.
        p2p: What the driver says of peer-to-peer between them: ``ok`` or why not; empty if unknown.
        trial: What a copy showed that was verified: ``ok``, ``wrong-data``, ``hang`` or ``not-possible``; empty if
            none was made.
        gigabytes_per_s: How fast that copy was.
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
        """The two GPUs, in words."""
        return f"GPU {self.first} and GPU {self.second}"


@dataclass(frozen=True)
class AcsBridge:
    """A PCI bridge above GPUs that has access control services (ACS).

    Attributes:
        bus_id: Its place on the PCI bus.
        gpus: Numbers of the GPUs below it.
        redirects: Which of its redirections are on: ``request``, ``completion``, ``upstream``.
    """

    bus_id: str
    gpus: tuple[int, ...] = ()
    redirects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Xid:
    """An error of a GPU that the driver has written to the kernel's log.

    Attributes:
        number: Its kind.
        bus_id: The GPU's place on the PCI bus.
        line: The line.
        age_s: How long ago, None if unknown.
    """

    number: int
    bus_id: str = ""
    line: str = ""
    age_s: int | None = None
