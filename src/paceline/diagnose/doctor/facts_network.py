"""The facts about RDMA: its ports, and the libraries that NCCL needs to use them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gid:
    """An address of a RoCE port.

    Attributes:
        index: Position in the port's table.
        value: The address, as the kernel prints it.
        kind: ``IB/RoCE v1`` or ``RoCE v2``.
    """

    index: int
    value: str
    kind: str = ""


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device.

    Attributes:
        device: Name of the device, as ``mlx5_0``.
        port: Port number, from 1.
        driver: The kernel's driver: ``mlx5_core``, ``efa``, ...
        state: ``ACTIVE``, ``DOWN``, ``INIT``, ...
        gbit: Rate in Gbit/s; None if unknown.
        link_layer: ``InfiniBand``, ``Ethernet`` (RoCE) or ``Unspecified`` (EFA).
        firmware: Version of the firmware.
        gids: Addresses of a RoCE port.
    """

    device: str
    port: int = 1
    driver: str = ""
    state: str = ""
    gbit: float | None = None
    link_layer: str = ""
    firmware: str = ""
    gids: tuple[Gid, ...] = ()

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
    """What a process needs to use RDMA devices.

    Attributes:
        devices: Names in ``/dev/infiniband`` that this process can open; None without that folder.
        verbs: Whether ``libibverbs`` is found; None if unknown.
        plugins: NCCL's network plugins that the loader finds.
        plugins_elsewhere: Plugins installed outside the loader's search path.
    """

    devices: tuple[str, ...] | None = None
    verbs: bool | None = None
    plugins: tuple[str, ...] = ()
    plugins_elsewhere: tuple[str, ...] = ()
