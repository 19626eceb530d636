"""What is known of the network beside its interfaces: RDMA ports, and the libraries that NCCL would use them by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gid:
    """An address of a RoCE port.

    Attributes:
        index: Its place in the port's table.
        value: The address.
        kind: ``IB/RoCE v1`` or ``RoCE v2``.
    """

    index: int
    value: str
    kind: str = ""


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device.

    Attributes:
        device: The device.
        port: Its number.
        driver: The kernel's driver: ``mlx5_core``, ``efa``, ...
        state: ``ACTIVE``, ``DOWN``, ``INIT``, ...
        gbit: Its rate in Gbit/s, None if unknown.
        link_layer: ``InfiniBand``, ``Ethernet`` (RoCE) or ``Unspecified`` (EFA).
        firmware: Version of its firmware.
        gids: Its addresses, of RoCE.
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
        """``EFA``, ``RoCE`` or ``InfiniBand``."""
        if self.driver == "efa":
            return "EFA"
        return "RoCE" if self.link_layer == "Ethernet" else "InfiniBand"

    @property
    def words(self) -> str:
        """The port in words: ``mlx5_0 (InfiniBand, 400 Gbit/s)``."""
        rate = f", {self.gbit:g} Gbit/s" if self.gbit else ""
        return f"{self.device} ({self.kind}{rate})"


@dataclass(frozen=True)
class RdmaLibraries:
    """What a process needs to use RDMA devices.

    Attributes:
        devices: Names in ``/dev/infiniband`` that this process can open; None if the folder is not there.
        verbs: Whether ``libibverbs`` is found; None if that is not known.
        plugins: NCCL's network plugins that the loader finds.
        plugins_elsewhere: Those that are installed where the loader does not look.
    """

    devices: tuple[str, ...] | None = None
    verbs: bool | None = None
    plugins: tuple[str, ...] = ()
    plugins_elsewhere: tuple[str, ...] = ()
