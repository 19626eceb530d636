"""The facts about a machine, as plain data that travels as JSON; None or empty means unknown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.diagnose.doctor.facts_gpu import AcsBridge, Driver, Gpu, GpuPair, Xid
from paceline.diagnose.doctor.facts_network import RdmaLibraries, RdmaPort
from paceline.machine.interfaces import Interface
from paceline.machine.software import Software
from paceline.text.plain_data import read_as


@dataclass(frozen=True)
class Host:
    """The machine."""

    name: str = ""  # host name
    # ``AuthenticAMD``, ``GenuineIntel``, or another name that the kernel reports
    cpu_vendor: str = ""
    virtual: bool | None = None  # whether it is a virtual machine
    # ``docker``, ``podman``, ``kubernetes``, ``apptainer`` or ``container``; empty outside a
    # container
    container: str = ""
    wsl: bool = False  # whether Linux runs inside Windows
    # whether this process belongs to a Slurm job, including its batch script
    slurm_job: bool = False
    slurm_step: bool = False  # whether this process belongs to a Slurm step
    slurm_tasks: int | None = None  # tasks of that step on this node
    mpi_tasks: int = 0  # tasks of mpirun on this node, if this process is one; else 0


@dataclass(frozen=True)
class ProcessLimits:
    """The limits of this process; -1 means unlimited."""

    cpus: int = 0  # number of usable CPUs
    cpus_reason: str = ""  # source of that number
    affinity: str = ""  # the usable CPUs, as ``0-15,32-47``
    total_cpus: int = 0  # CPUs of the machine
    # CPUs of each NUMA node, by node number
    numa_cpus: dict[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None  # memory of the machine
    memory_limit_bytes: int | None = None  # the cgroup's limit
    shm_bytes: int | None = None  # size of ``/dev/shm``
    shm_free_bytes: int | None = None  # free space in ``/dev/shm``
    memlock_bytes: int | None = None  # limit of locked memory
    lock_any: bool = False  # whether the kernel allows locked memory beyond that limit
    open_files: int | None = None  # soft limit of open files
    open_files_hard: int | None = None  # hard limit of open files
    stack_bytes: int | None = None  # size of the stack


@dataclass(frozen=True)
class Disk:
    """A file system that a run writes to."""

    path: str  # the folder that was examined
    total_bytes: int  # total size
    free_bytes: int  # free space for this user
    free_files: int | None = None  # remaining number of files; None without a limit


@dataclass(frozen=True)
class Leftover:
    """A process of this user that an earlier run left behind."""

    pid: int  # process id
    command: str = ""  # the command line, shortened
    rank: str = ""  # its former rank; empty if unknown
    run: str = ""  # the folder or the id of its run
    age_s: int = 0  # seconds since it started
    memory_bytes: int = 0  # memory in use
    ports: tuple[int, ...] = ()  # TCP ports that it listens on


@dataclass(frozen=True)
class LoaderGroup:
    """The DataLoader workers of one running process."""

    pid: int  # process id of the parent
    command: str  # the command line, shortened
    workers: int  # number of workers
    cpus: int  # number of CPUs that the workers may use


@dataclass(frozen=True)
class Facts:
    """One machine, as far as it could be read."""

    host: Host = field(default_factory=Host)  # the kind of machine
    driver: Driver = field(default_factory=Driver)  # NVIDIA's driver
    gpus: tuple[Gpu, ...] = ()  # the GPUs, in NVML's order
    pairs: tuple[GpuPair, ...] = ()  # the connection of each pair of GPUs
    # PCI bridges above GPUs, with their access control; None if they could not be read
    bridges: tuple[AcsBridge, ...] | None = None
    iommu: str = ""  # ``translated``, ``passthrough`` or ``off`` for the GPUs; empty if unknown
    xids: tuple[Xid, ...] = ()  # GPU errors in the kernel log
    interfaces: tuple[Interface, ...] = ()  # network interfaces that are up
    rdma: tuple[RdmaPort, ...] = ()  # ports of RDMA devices: InfiniBand, RoCE, EFA
    # libraries that NCCL would load to use them
    rdma_libraries: RdmaLibraries = field(default_factory=RdmaLibraries)
    limits: ProcessLimits = field(default_factory=ProcessLimits)  # the limits of this process
    disks: tuple[Disk, ...] = ()  # file systems that a run writes to
    software: Software = field(default_factory=Software)  # installed versions
    visible_devices: str | None = None  # ``CUDA_VISIBLE_DEVICES``; None if unset
    # variables of NCCL, torch, gloo and libfabric, from the environment and NCCL's files
    settings: dict[str, str] = field(default_factory=dict)
    # the file of each setting that comes from one
    settings_where: dict[str, str] = field(default_factory=dict)
    leftovers: tuple[Leftover, ...] = ()  # processes of earlier runs
    loaders: tuple[LoaderGroup, ...] = ()  # running DataLoader workers
    not_read: tuple[str, ...] = ()  # parts that timed out or failed

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Facts:
        """Build the facts from the output of ``to_json``; ignore unknown keys.

        Raises ValueError if a value has the wrong type.
        """
        return read_as(cls, values)
