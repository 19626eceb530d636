"""Collect RDMA ports, and the libraries that NCCL needs to use them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from paceline import env
from paceline.diagnose.doctor.facts_network import Gid, RdmaLibraries, RdmaPort
from paceline.machine import files

_RDMA = Path("/sys/class/infiniband")
_VERBS = Path("/dev/infiniband")
_CACHE = Path("/etc/ld.so.cache")
_MOST_GIDS = 256
_PLUGIN = re.compile(r"libnccl-net(-[\w-]+)?\.so(\.\d+)*$")
# The folders in which AWS's installer, and images that build the EFA plugin, put it.
_KNOWN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
)


def gather_rdma(rdma: Path = _RDMA) -> tuple[RdmaPort, ...]:
    """Return the ports of RDMA devices: InfiniBand, RoCE and EFA."""
    return tuple(
        _port(rdma / device, device, port)
        for device in files.names(rdma)
        for port in files.names(rdma / device / "ports")
        if port.isdigit()
    )


def _port(folder: Path, device: str, port: str) -> RdmaPort:
    place = folder / "ports" / port
    rate = re.match(r"([\d.]+) Gb/sec", files.text(place / "rate"))
    layer = files.text(place / "link_layer")
    return RdmaPort(
        device,
        port=int(port),
        driver=files.link_name(folder / "device" / "driver"),
        state=files.text(place / "state").partition(":")[2].strip(),
        gbit=float(rate[1]) if rate else None,
        link_layer=layer,
        firmware=files.text(folder / "fw_ver"),
        gids=_gids(place) if layer == "Ethernet" else (),
    )


def _gids(place: Path) -> tuple[Gid, ...]:
    gids = []
    indices = sorted(int(name) for name in files.names(place / "gids") if name.isdigit())
    for index in indices[:_MOST_GIDS]:
        value = files.text(place / "gids" / str(index))
        if value.replace(":", "").strip("0"):  # the table is padded with zeros
            kind = files.text(place / "gid_attrs" / "types" / str(index))
            gids.append(Gid(index, value, kind))
    return tuple(gids)


def gather_libraries(verbs: Path = _VERBS, cache: Path = _CACHE) -> RdmaLibraries:
    """Return which devices, libraries and plugins for RDMA are available to a process."""
    listed = _read_cache(cache)
    path = [Path(part) for part in env.snapshot().get("LD_LIBRARY_PATH", "").split(":") if part]
    plugins = [name for name in listed if _PLUGIN.search(name)] + _plugins(path)
    elsewhere = [
        name
        for name in _plugins([Path(folder) for folder in _KNOWN_FOLDERS])
        if name not in plugins
    ]
    usual = [
        Path("/usr/lib"),
        Path("/usr/lib64"),
        Path("/lib64"),
        *Path("/usr/lib").glob("*-linux-gnu"),
    ]
    in_cache = any("libibverbs.so" in name for name in listed)
    return RdmaLibraries(
        devices=_usable_devices(verbs) if verbs.is_dir() else None,
        verbs=in_cache or any((folder / "libibverbs.so.1").exists() for folder in [*path, *usual]),
        plugins=tuple(dict.fromkeys(plugins)),
        plugins_elsewhere=tuple(elsewhere),
    )


def _usable_devices(folder: Path) -> tuple[str, ...]:
    """Return the devices in a folder that this process may open."""
    names = files.names(folder)
    return tuple(name for name in names if os.access(folder / name, os.R_OK | os.W_OK))


def _read_cache(cache: Path) -> list[str]:
    """Return the libraries in the loader's cache, which holds paths that end in a zero byte."""
    try:
        content = cache.read_bytes()
    except OSError:
        return []
    return [
        part.decode(errors="replace") for part in re.findall(rb"(/[^\0]+\.so[^\0]*)\0", content)
    ]


def _plugins(folders: list[Path]) -> list[str]:
    return [
        str(folder / name)
        for folder in folders
        for name in files.names(folder)
        if _PLUGIN.fullmatch(name)
    ]
