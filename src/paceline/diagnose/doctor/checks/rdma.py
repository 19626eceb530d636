"""Check RDMA (InfiniBand, RoCE, EFA): is it present, and would NCCL use it? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.diagnose.doctor.checks.asked import is_on, place, run_container, version
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_network import RdmaPort
from paceline.diagnose.doctor.render import size
from paceline.errors import Finding
from paceline.machine import nccl_lists
from paceline.machine.ulimits import UNLIMITED
from paceline.text.wording import few

# The usual limits (64 KiB, 8 MiB) are below this size: NCCL fails at its first buffers.
_SMALL_LOCK = 64 << 20
_ENOUGH_LOCK = 4 << 30
_CHOOSES_GID = (2, 21)  # since this version NCCL looks for the right GID itself


@dataclass(frozen=True)
class Obstacle:
    """A reason why NCCL does not use RDMA."""

    what: str  # the obstacle
    where: str  # the variable, file or place
    fix: str  # a command or a setting that removes it


def active(facts: Facts) -> list[RdmaPort]:
    """Return the RDMA ports that are up; the others have no working link."""
    return [port for port in facts.rdma if port.state == "ACTIVE"]


def judge_rdma(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about RDMA; none without GPUs, because nothing would use it."""
    ports = active(facts)
    if not facts.gpus:
        return
    obstacles = list(_obstacles(facts, ports)) if ports else []
    efa = any(port.kind == "EFA" for port in ports)
    if obstacles:
        yield _unused(facts, ports, obstacles)
    elif is_on(facts.settings.get("NCCL_IB_DISABLE")) and not efa:
        yield _disabled(facts)
    if ports and not obstacles:
        yield from _locked_memory(facts, ports)
        yield from _gids(facts, ports)


def _obstacles(facts: Facts, ports: Sequence[RdmaPort]) -> Iterator[Obstacle]:
    """Yield the reasons why NCCL does not use these ports."""
    efa = any(port.kind == "EFA" for port in ports)
    # The first one is the headline: a setting, which is undone at once, comes before software.
    if facts.settings.get("NCCL_NET", "").lower() == "socket":
        yield _setting("NCCL_NET", facts, what="NCCL_NET=Socket")
    if not efa:
        yield from _excluding_settings(facts, ports)
    devices = facts.rdma_libraries.devices or ()
    if not any(name.startswith("uverbs") for name in devices):
        yield _no_devices(facts, efa)
    elif efa:
        yield from _efa(facts)
    # None where the loader could not be asked; a plug-in brings what it needs.
    elif facts.rdma_libraries.verbs is False and not facts.rdma_libraries.plugins:
        yield Obstacle(
            "libibverbs is not installed",
            "library path",
            "apt-get install libibverbs1 ibverbs-providers",
        )


def _setting(name: str, facts: Facts, *, what: str) -> Obstacle:
    """Return the obstacle of a variable that must not be set."""
    return Obstacle(what, place(name, facts), f"unset {name}")


def _excluding_settings(facts: Facts, ports: Sequence[RdmaPort]) -> Iterator[Obstacle]:
    """Yield the settings that keep NCCL from using InfiniBand and RoCE ports."""
    disable = facts.settings.get("NCCL_IB_DISABLE")
    if is_on(disable):
        yield _setting("NCCL_IB_DISABLE", facts, what=f"NCCL_IB_DISABLE={disable}")
    selection = facts.settings.get("NCCL_IB_HCA", "")
    if not _selected(selection, ports):
        what = f"NCCL_IB_HCA={selection} matches none of {few([port.device for port in ports])}"
        yield _setting("NCCL_IB_HCA", facts, what=what)


def _selected(setting: str, ports: Sequence[RdmaPort]) -> list[RdmaPort]:
    """Return the ports that ``NCCL_IB_HCA`` selects; all of them if it is unset."""
    name_list = nccl_lists.parse(setting)
    return [port for port in ports if name_list.takes(port.device, port.port)]


def _efa(facts: Facts) -> Iterator[Obstacle]:
    settings, libraries = facts.settings, facts.rdma_libraries
    if settings.get("NCCL_NET_PLUGIN", "").lower() == "none":
        yield _setting("NCCL_NET_PLUGIN", facts, what="NCCL_NET_PLUGIN=none")
    elif not libraries.plugins and not settings.get("NCCL_NET_PLUGIN", "").startswith("/"):
        yield _no_plugin(libraries.plugins_elsewhere)
    provider = settings.get("FI_PROVIDER", "")
    # libfabric: ``^efa`` allows all but this one
    lists_efa = "efa" in provider.removeprefix("^").split(",")
    if provider and lists_efa == provider.startswith("^"):
        yield _setting("FI_PROVIDER", facts, what=f"FI_PROVIDER={provider} leaves EFA out")


def _no_plugin(elsewhere: Sequence[str]) -> Obstacle:
    """Return the obstacle of a missing EFA plugin; ``elsewhere``: those that the loader misses."""
    if not elsewhere:
        return Obstacle(
            "the plugin aws-ofi-nccl (libnccl-net.so) is not installed",
            "the library path",
            "install it (AWS's EFA installer brings it); healthy: NET/OFI Selected provider is efa",
        )
    folder = elsewhere[0].rpartition("/")[0]
    return Obstacle(
        f"the plugin is in {folder}, where the loader does not look",
        "LD_LIBRARY_PATH",
        f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH",
    )


def _no_devices(facts: Facts, efa: bool) -> Obstacle:
    container = facts.host.container
    missing = (
        "/dev/infiniband is missing"
        if facts.rdma_libraries.devices is None
        else "/dev/infiniband cannot be used"
    )
    if container == "apptainer":  # it shows the host's devices unless configured otherwise
        fix = "apptainer exec --bind /dev/infiniband ..., without --containall"
    elif container == "kubernetes":
        resource = (
            "vpc.amazonaws.com/efa: 1" if efa else "the RDMA device plugin's resource (rdma/...)"
        )
        fix = f"ask for the devices in the pod: resources: limits: {resource}"
    elif container:
        fix = (
            f"{run_container(facts)} --device=/dev/infiniband --ulimit memlock=-1"
            " --network=host ..."
        )
    else:
        fix = "sudo modprobe ib_uverbs; ls -l /dev/infiniband shows who may use them"
    return Obstacle(
        f"{missing} here", f"container ({container})" if container else facts.host.name, fix
    )


def _unused(facts: Facts, ports: Sequence[RdmaPort], obstacles: Sequence[Obstacle]) -> Finding:
    first, kinds = obstacles[0], list(dict.fromkeys(port.kind for port in ports))
    # Every faster Ethernet card offers RoCE, but not every network supports it.
    only_roce = kinds == ["RoCE"]
    return Finding(
        "infiniband-unused",
        f"{' and '.join(kinds)} is there, and NCCL would use TCP sockets: {first.what}",
        where=first.where,
        evidence=(
            f"up: {few([port.words for port in ports])}",
            *(f"also: {obstacle.what}" for obstacle in obstacles[1:]),
        ),
        why=(
            "if the network is made for RoCE, gradients between nodes take several times longer"
            " than they could"
            if only_roce
            else "gradients between nodes take several times longer, without an error"
        ),
        fix=first.fix,
        severity="hint" if only_roce else "warning",
    )


def _disabled(facts: Facts) -> Finding:
    down = [port for port in facts.rdma if port.kind != "EFA"]
    return Finding(
        "infiniband-disabled",
        f"NCCL_IB_DISABLE={facts.settings['NCCL_IB_DISABLE']} switches InfiniBand off, "
        + ("and the ports here are down" if down else "and there is none here"),
        where=place("NCCL_IB_DISABLE", facts),
        why="on a node with InfiniBand it makes NCCL several times slower",
        fix="unset NCCL_IB_DISABLE, unless it is there for a reason that you know",
        severity="hint",
    )


def _locked_memory(facts: Facts, ports: Sequence[RdmaPort]) -> Iterator[Finding]:
    limit = facts.limits.memlock_bytes
    if limit is None or limit == UNLIMITED or limit >= _ENOUGH_LOCK or facts.limits.lock_any:
        return
    severity = "error" if limit <= _SMALL_LOCK else "warning"
    # Every faster Ethernet card offers RoCE, used or not.
    only_roce = all(port.kind == "RoCE" for port in ports)
    yield Finding(
        "memlock-too-low",
        f"this process may lock {size(limit)} of memory, and {ports[0].kind} needs to lock NCCL's"
        " buffers",
        where="ulimit -l",
        evidence=(f"up: {few([port.words for port in ports])}", f"memlock: {size(limit)}"),
        why="NCCL then fails with: Call to ibv_reg_mr failed with error Cannot allocate memory",
        fix=_more_locked_memory(facts),
        severity="hint" if only_roce else severity,
    )


def _more_locked_memory(facts: Facts) -> str:
    """Return how to raise the limit of locked memory in the environment of this process."""
    container = facts.host.container
    if container == "kubernetes":
        return "in the pod: securityContext: capabilities: add: [IPC_LOCK]"
    if container and container != "apptainer":
        return f"{run_container(facts)} --ulimit memlock=-1 ..."
    return (
        "memlock unlimited in /etc/security/limits.conf; under Slurm also LimitMEMLOCK=infinity in"
        " slurmd's unit"
    )


def _gids(facts: Facts, ports: Sequence[RdmaPort]) -> Iterator[Finding]:
    """Yield the findings about the address tables of RoCE ports.

    NCCL must use the RoCE v2 entry with the interface's address.
    """
    used = _selected(facts.settings.get("NCCL_IB_HCA", ""), ports)
    roce = [port for port in used if port.kind == "RoCE" and port.gids]
    text = facts.settings.get("NCCL_IB_GID_INDEX", "")
    match = re.match(r"\s*\d+", text)
    if roce and match:
        yield from _wrong_gid(facts, roce, int(match[0]))
    elif roce and not text and () != version(facts.software.nccl) < _CHOOSES_GID:
        good = _good_gid(roce[0])
        yield Finding(
            "gid-index-wrong",
            f"NCCL {facts.software.nccl} uses GID 0 of a RoCE port, which is not the one for routed"
            " networks",
            where=few([port.device for port in roce]),
            why="connections between nodes then time out, or only work inside one switch",
            fix=f"export NCCL_IB_GID_INDEX={3 if good is None else good}  # show_gids lists them",
            severity="hint",
        )


def _wrong_gid(facts: Facts, ports: Sequence[RdmaPort], index: int) -> Iterator[Finding]:
    kinds = {port.device: _kind_of_gid(port, index) for port in ports}
    wrong = {device: kind for device, kind in kinds.items() if not kind or "v1" in kind}
    if not wrong:
        return
    lines = [f"{device}: GID {index} is {kind or 'not there'}" for device, kind in wrong.items()]
    good = _good_gid(next(port for port in ports if port.device in wrong))
    yield Finding(
        "gid-index-wrong",
        f"NCCL_IB_GID_INDEX={facts.settings['NCCL_IB_GID_INDEX']}: "
        + (lines[0] if len(lines) == 1 else f"not a RoCE v2 address on {few(list(wrong))}"),
        where=place("NCCL_IB_GID_INDEX", facts),
        evidence=tuple(lines[:8]),
        why="connections between nodes fail, or only work inside one switch",
        fix="unset NCCL_IB_GID_INDEX: NCCL finds the right one from 2.21 on"
        + (f"; here it is {good}" if good is not None else ""),
        severity="warning",
    )


def _kind_of_gid(port: RdmaPort, index: int) -> str:
    """Return the kind of an entry in a port's table: ``?`` if it is unknown, empty if absent."""
    return next((gid.kind or "?" for gid in port.gids if gid.index == index), "")


def _good_gid(port: RdmaPort) -> int | None:
    """Return the index of a port's RoCE v2 address that maps an IPv4 address; None without one."""
    mapped = "0000:0000:0000:0000:0000:ffff:"
    return next(
        (gid.index for gid in port.gids if "v2" in gid.kind and gid.value.startswith(mapped)), None
    )
