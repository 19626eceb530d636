"""The facts about RDMA: its ports, and the libraries that NCCL needs to use them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gid:
    """An address of a RoCE port."""

    index: int  # position in the port's table
    value: str  # the address, as the kernel prints it
    kind: str = ""  # ``IB/RoCE v1`` or ``RoCE v2``


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device."""

    device: str  # name of the device, as ``mlx5_0``
    port: int = 1  # port number, from 1
    driver: str = ""  # the kernel's driver: ``mlx5_core``, ``efa``, ..
    state: str = ""  # ``ACTIVE``, ``DOWN``, ``INIT``, ..
    gbit: float | None = None  # rate in Gbit/s; None if unknown
    link_layer: str = ""  # ``InfiniBand``, ``Ethernet`` (RoCE) or ``Unspecified`` (EFA)
    firmware: str = ""  # version of the firmware
    gids: tuple[Gid, ...] = ()  # addresses of a RoCE port

    @property
    def kind(self) -> str:
        """The protocol: ``EFA``, ``RoCE`` or ``InfiniBand``."""
        if self.driver == "efa":
            return "EFA"
        return "RoCE" if self.link_layer == "Ethernet" else "InfiniBand"

    @property
    def words(self) -> str:
        """The port as text: ``mlx5_0 (InfiniBand, 400 Gbit/s)``."""
        rate = f", {self.gbit:g} Gbit/s" if self.gbit else ""
        return f"{self.device} ({self.kind}{rate})"


@dataclass(frozen=True)
class RdmaLibraries:
    """What a process needs to use RDMA devices."""

    # names in ``/dev/infiniband`` that this process can open; None without that folder
    devices: tuple[str, ...] | None = None
    verbs: bool | None = None  # whether ``libibverbs`` is found; None if unknown
    plugins: tuple[str, ...] = ()  # NCCL's network plugins that the loader finds
    plugins_elsewhere: tuple[str, ...] = ()  # plugins installed outside the loader's search path
