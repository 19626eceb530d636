"""Collect all facts about this machine, each part with a timeout; one failure affects one part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from paceline import env
from paceline.diagnose.doctor.collectors import gpus, host, network, peers, processes
from paceline.diagnose.doctor.facts import Facts, Host, Leftover, LoaderGroup, ProcessLimits
from paceline.diagnose.doctor.facts_gpu import Driver, Gpu, GpuPair
from paceline.diagnose.doctor.facts_network import RdmaLibraries
from paceline.machine import interfaces, software
from paceline.machine.deadline import within_why

_Part = TypeVar("_Part")
# Without persistence mode the driver initializes each GPU again, which takes seconds.
_DRIVER_S = 45.0
_PART_S = 2.0
_PROCESSES_S = 5.0
_IDLE_BYTES = 1 << 30  # the driver and a desktop use less
_NO_SETTINGS: tuple[dict[str, str], dict[str, str]] = ({}, {})
_NO_PROCESSES: tuple[tuple[Leftover, ...], tuple[LoaderGroup, ...]] = ((), ())


@dataclass
class _Parts:
    """Reads one part after the other, and records which parts were not read and why."""

    not_read: list[str] = field(default_factory=list)

    def ask(
        self, name: str, read: Callable[[], _Part], otherwise: _Part, seconds: float = _PART_S
    ) -> _Part:
        part, reason = within_why(seconds, read, otherwise)
        if reason:
            self.not_read.append(f"{name}: {reason}")
        return part

    def for_root(
        self, name: str, read: Callable[[], _Part | None], gpus: tuple[Gpu, ...]
    ) -> _Part | None:
        """Read a part that is None where only root may read it; without GPUs, do not report it."""
        part: _Part | None = self.ask(name, read, None)
        is_reported = any(line.startswith(f"{name}:") for line in self.not_read)
        if part is None and gpus and not is_reported:
            self.not_read.append(f"{name}: this user may not read it")
        return part


def gather() -> Facts:
    """Collect the facts about this machine without changing anything."""
    parts = _Parts()
    silent = gpus.NvmlData(
        Driver(problem=f"no answer within {_DRIVER_S:g} s", gpus_on_bus=gpus.count_on_bus())
    )
    nvml = parts.ask("GPUs", gpus.gather_gpus, silent, _DRIVER_S)
    settings, where = parts.ask("settings", host.gather_settings, _NO_SETTINGS)
    leftovers, loaders = parts.ask(
        "processes", processes.gather_processes, _NO_PROCESSES, _PROCESSES_S
    )
    versions = parts.ask("versions", software.installed, software.Software())
    return Facts(
        host=parts.ask("host", host.gather_host, Host()),
        driver=nvml.driver,
        gpus=nvml.gpus,
        pairs=_tried(nvml, parts) if versions.torch_cuda else nvml.pairs,
        bridges=parts.for_root("PCI bridges", lambda: peers.gather_bridges(nvml.gpus), nvml.gpus),
        iommu=parts.ask("IOMMU", lambda: peers.gather_iommu(nvml.gpus), ""),
        xids=parts.for_root("kernel log", gpus.gather_xids, nvml.gpus) or (),
        interfaces=parts.ask("interfaces", interfaces.gather, ()),
        rdma=parts.ask("RDMA", network.gather_rdma, ()),
        rdma_libraries=parts.ask("RDMA libraries", network.gather_libraries, RdmaLibraries()),
        limits=parts.ask("limits", host.gather_limits, ProcessLimits()),
        disks=parts.ask("disks", host.gather_disks, ()),
        software=versions,
        visible_devices=env.visible_devices(),
        settings=settings,
        settings_where=where,
        leftovers=leftovers,
        loaders=loaders,
        not_read=tuple(parts.not_read),
    )


def is_used(gpu: Gpu) -> bool:
    """Return whether a process computes on a GPU now."""
    computing = any(not process.graphics for process in gpu.processes)
    return computing or (gpu.memory_used_bytes or 0) > _IDLE_BYTES


def _tried(nvml: gpus.NvmlData, parts: _Parts) -> tuple[GpuPair, ...]:
    """Return the pairs of GPUs with the results of the trial copies between them."""
    if not any(pair.p2p in ("", "ok", "unknown") for pair in nvml.pairs):
        return nvml.pairs
    if any(map(is_used, nvml.gpus)):  # a trial uses some memory that another run may need
        parts.not_read.append("peer-to-peer copies: not tried, as GPUs are in use")
        return nvml.pairs
    trials = peers.try_pairs([gpu.uuid for gpu in nvml.gpus])
    if not trials:
        parts.not_read.append(
            f"peer-to-peer copies: torch made none between two GPUs within {peers.LIMIT_S:g} s"
        )
    return tuple(_with_trial(pair, trials.get((pair.first, pair.second))) for pair in nvml.pairs)


def _with_trial(pair: GpuPair, trial: peers.PeerTrial | None) -> GpuPair:
    if trial is None:
        return pair
    return replace(pair, trial=trial.outcome, gigabytes_per_s=trial.gigabytes_per_s)
