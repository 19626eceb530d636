"""The facts about a machine, as plain data that travels as JSON; None or empty means unknown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.diagnose.doctor.facts_gpu import AcsBridge, Driver, Gpu, GpuPair, Xid
from paceline.diagnose.doctor.facts_network import RdmaLibraries, RdmaPort
from paceline.diagnose.doctor.reading import read_as
from paceline.machine.interfaces import Interface
from paceline.machine.software import Software


@dataclass(frozen=True)
class Host:
    """The machine.

    Attributes:
        name: Host name.
        cpu_vendor: ``AuthenticAMD``, ``GenuineIntel``, or another name that the kernel reports.
        virtual: Whether it is a virtual machine.
        container: ``docker``, ``podman``, ``kubernetes``, ``apptainer`` or ``container``; empty
            outside a container.
        wsl: Whether Linux runs inside Windows.
        slurm_job: Whether this process belongs to a Slurm job, including its batch script.
        slurm_step: Whether this process belongs to a Slurm step.
        slurm_tasks: Tasks of that step on this node.
        mpi_tasks: Tasks of mpirun on this node, if this process is one; else 0.
    """

    name: str = ""
    cpu_vendor: str = ""
    virtual: bool | None = None
    container: str = ""
    wsl: bool = False
    slurm_job: bool = False
    slurm_step: bool = False
    slurm_tasks: int | None = None
    mpi_tasks: int = 0


@dataclass(frozen=True)
class Limits:
    """The limits of this process; -1 means unlimited.

    Attributes:
        cpus: Number of usable CPUs.
        cpus_reason: Source of that number.
        affinity: The usable CPUs, as ``0-15,32-47``.
        total_cpus: CPUs of the machine.
        numa_cpus: CPUs of each NUMA node, by node number.
        memory_bytes: Memory of the machine.
        memory_limit_bytes: The cgroup's limit.
        shm_bytes: Size of ``/dev/shm``.
        shm_free_bytes: Free space in ``/dev/shm``.
        memlock_bytes: Limit of locked memory.
        lock_any: Whether the kernel allows locked memory beyond that limit.
        open_files: Soft limit of open files.
        open_files_hard: Hard limit of open files.
        stack_bytes: Size of the stack.
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
        path: The folder that was examined.
        total_bytes: Total size.
        free_bytes: Free space for this user.
        free_files: Remaining number of files; None without a limit.
    """

    path: str
    total_bytes: int
    free_bytes: int
    free_files: int | None = None


@dataclass(frozen=True)
class Leftover:
    """A process of this user that an earlier run left behind.

    Attributes:
        pid: Process id.
        command: The command line, shortened.
        rank: Its former rank; empty if unknown.
        run: The folder or the id of its run.
        age_s: Seconds since it started.
        memory_bytes: Memory in use.
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
    """The DataLoader workers of one running process.

    Attributes:
        pid: Process id of the parent.
        command: The command line, shortened.
        workers: Number of workers.
        cpus: Number of CPUs that the workers may use.
    """

    pid: int
    command: str
    workers: int
    cpus: int


@dataclass(frozen=True)
class Facts:
    """One machine, as far as it could be read.

    Attributes:
        host: The kind of machine.
        driver: NVIDIA's driver.
        gpus: The GPUs, in NVML's order.
        pairs: The connection of each pair of GPUs.
        bridges: PCI bridges above GPUs, with their access control; None if they could not be read.
        iommu: ``translated``, ``passthrough`` or ``off`` for the GPUs; empty if unknown.
        xids: GPU errors in the kernel log.
        interfaces: Network interfaces that are up.
        rdma: Ports of RDMA devices: InfiniBand, RoCE, EFA.
        rdma_libraries: Libraries that NCCL would load to use them.
        limits: The limits of this process.
        disks: File systems that a run writes to.
        software: Installed versions.
        visible_devices: ``CUDA_VISIBLE_DEVICES``; None if unset.
        settings: Variables of NCCL, torch, gloo and libfabric, from the environment and NCCL's
            files.
        settings_where: The file of each setting that comes from one.
        leftovers: Processes of earlier runs.
        loaders: Running DataLoader workers.
        not_read: Parts that timed out or failed.
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
        """Return the facts as a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Facts:
        """Build the facts from the output of ``to_json``; ignore unknown keys.

        Raises:
            ValueError: A value has the wrong type.
        """
        return read_as(cls, values)
