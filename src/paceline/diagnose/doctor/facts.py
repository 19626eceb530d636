"""What is known of a machine: plain data that travels as JSON. Unknown is None or empty, never guessed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.diagnose.doctor.facts_gpu import AcsBridge, Driver, Gpu, GpuPair, Xid
from paceline.diagnose.doctor.facts_network import RdmaLibraries, RdmaPort
from paceline.diagnose.doctor.reading import read_as
from paceline.machine.interfaces import Interface


@dataclass(frozen=True)
class Host:
    """The machine.

    Attributes:
        name: Its host name.
        cpu_vendor: ``AuthenticAMD``, ``GenuineIntel``, or what the kernel says.
        virtual: Whether it is a virtual machine.
        container: ``docker``, ``podman``, ``kubernetes``, ``apptainer`` or ``container``; empty outside one.
        wsl: Whether Linux runs inside Windows.
        slurm_job: Whether this process is part of a Slurm job, of its batch script too.
        slurm_step: Whether this process is part of a Slurm step.
        slurm_tasks: Tasks of that step on this node.
    """

    name: str = ""
    cpu_vendor: str = ""
    virtual: bool | None = None
    container: str = ""
    wsl: bool = False
    slurm_job: bool = False
    slurm_step: bool = False
    slurm_tasks: int | None = None


@dataclass(frozen=True)
class Limits:
    """What this process may use; a limit of -1 is none.

    Attributes:
        cpus: CPUs that it may use.
        cpus_reason: Where that number comes from.
        affinity: Those CPUs, as ``0-15,32-47``.
        total_cpus: CPUs of the machine.
        numa_cpus: CPUs of each NUMA node, by its number.
        memory_bytes: Memory of the machine.
        memory_limit_bytes: The cgroup's limit.
        shm_bytes: Size of ``/dev/shm``.
        shm_free_bytes: What of it is free.
        memlock_bytes: Memory that it may lock.
        lock_any: Whether the kernel lets it lock memory beyond that limit.
        open_files: Files that it may open (soft).
        open_files_hard: To which it may raise that itself.
        stack_bytes: Size of its stack.
    """

    cpus: int = 0
    cpus_reason: str = ""
    affinity: str = ""
    total_cpus: int = 0
    numa_cpus: dict[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    lock_any: bool = False
    open_files: int | None = None
    open_files_hard: int | None = None
    stack_bytes: int | None = None


@dataclass(frozen=True)
class Disk:
    """A file system that a run writes to.

    Attributes:
        path: Where it was looked at.
        total_bytes: Its size.
        free_bytes: What is free for this user.
        free_files: Files that may still be made; None if there is no such limit.
    """

    path: str
    total_bytes: int
    free_bytes: int
    free_files: int | None = None


@dataclass(frozen=True)
class Software:
    """Installed versions; empty where not installed or not known.

    Attributes:
        python: Of Python.
        torch: Of torch.
        torch_cuda: The CUDA that torch was built with; empty for a build without.
        nccl: Of the NCCL that was installed with torch.
        paceline: Ours.
    """

    python: str = ""
    torch: str = ""
    torch_cuda: str = ""
    nccl: str = ""
    paceline: str = ""


@dataclass(frozen=True)
class Leftover:
    """A process of this user that an earlier run has left behind.

    Attributes:
        pid: Its number.
        command: What it runs, shortened.
        rank: The rank that it was, empty if unknown.
        run: The run that it belonged to: a folder or an id.
        age_s: How long ago it started.
        memory_bytes: Memory that it holds.
        ports: TCP ports that it listens on.
    """

    pid: int
    command: str = ""
    rank: str = ""
    run: str = ""
    age_s: int = 0
    memory_bytes: int = 0
    ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoaderGroup:
    """The DataLoader workers of one process that runs now.

    Attributes:
        pid: The process.
        command: What it runs, shortened.
        workers: How many workers it has.
        cpus: CPUs that they may use.
    """

    pid: int
    command: str
    workers: int
    cpus: int


@dataclass(frozen=True)
class Facts:
    """One machine, as far as it could be read.

    Attributes:
        host: The machine.
        driver: NVIDIA's driver.
        gpus: Its GPUs, in NVML's order.
        pairs: What lies between every two of them.
        bridges: PCI bridges above GPUs and what their access control redirects; None if that could not be read.
        iommu: ``translated``, ``passthrough`` or ``off``, of the GPUs; empty if unknown.
        xids: Errors of GPUs in the kernel's log.
        interfaces: Network interfaces that are up.
        rdma: Ports of RDMA devices: InfiniBand, RoCE, EFA.
        rdma_libraries: What NCCL would load to use them.
        limits: What this process may use.
        disks: Where a run writes.
        software: Installed versions.
        visible_devices: ``CUDA_VISIBLE_DEVICES``; None if unset.
        settings: Variables of NCCL, torch, gloo and libfabric, from the environment and NCCL's files.
        settings_where: Of those that come from a file, its name.
        leftovers: Processes of earlier runs.
        loaders: DataLoader workers that run now.
        not_read: Parts that took too long or failed.
    """

    host: Host = field(default_factory=Host)
    driver: Driver = field(default_factory=Driver)
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    bridges: tuple[AcsBridge, ...] | None = None
    iommu: str = ""
    xids: tuple[Xid, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    rdma_libraries: RdmaLibraries = field(default_factory=RdmaLibraries)
    limits: Limits = field(default_factory=Limits)
    disks: tuple[Disk, ...] = ()
    software: Software = field(default_factory=Software)
    visible_devices: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    settings_where: dict[str, str] = field(default_factory=dict)
    leftovers: tuple[Leftover, ...] = ()
    loaders: tuple[LoaderGroup, ...] = ()
    not_read: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Facts:
        """Return the facts that ``to_json`` made; what is absent is unknown, what we do not know is left out.

        Raises:
            ValueError: A value is of another kind than it must be.
        """
        return read_as(cls, values)
