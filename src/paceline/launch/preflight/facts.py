"""Gather the facts of a node that are compared: versions, script, GPUs, limits, interfaces.

A collector: it reads and decides nothing. Slow sources (a name server, a file server) have a limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from paceline import env
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.machine import gpus, interfaces, software, ulimits
from paceline.machine.deadline import within
from paceline.machine.interfaces import Interface

_PATIENCE_S = 0.5


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node."""

    node: int  # its node rank
    host: str  # its host name
    # equal for launchers on one machine and in one network, which have no link between them
    machine: str = ""
    # the values to compare, as text by name; empty if unknown
    likeness: dict[str, str] = field(default_factory=dict)
    gpus: int = 0  # number of its GPUs
    address: str = ""  # its address in this run
    interfaces: tuple[Interface, ...] = ()  # its interfaces that are up
    # the user's ``GLOO_SOCKET_IFNAME`` and ``NCCL_SOCKET_IFNAME``; empty if not set
    settings: dict[str, str] = field(default_factory=dict)
    port: int = 0  # the port of its server for tries of other nodes; 0 without a server

    @property
    def words(self) -> str:
        """The node by rank and host."""
        return f"node {self.node} ({self.host})"


def gather(options: Options, plan: Plan, *, node: int, address: str, port: int) -> NodeFacts:
    """Return the facts of this node."""
    inventory = gpus.gather() or gpus.Gpus()
    return NodeFacts(
        node=node,
        host=socket.gethostname(),
        machine=_machine(),
        likeness={
            **_versions(),
            "driver": inventory.driver,
            "GPUs": _models(inventory),
            "script": "" if options.module or options.no_python else _hash(Path(options.script)),
            "commit": within(_PATIENCE_S, lambda: commit(Path.cwd()), ""),
            env.OMP_THREADS: (
                (env.read(env.OMP_THREADS) or "") if plan.threads.value is None else "not set"
            ),
            **_limits(),
        },
        gpus=len(inventory.models),
        address=address,
        interfaces=_interfaces(),
        settings={name: env.read(name) or "" for name in (env.GLOO_INTERFACE, env.NCCL_INTERFACE)},
        port=port,
    )


def _models(inventory: gpus.Gpus) -> str:
    models = Counter(model or "GPU that does not answer" for model in inventory.models)
    return ", ".join(f"{count} x {model}" for model, count in sorted(models.items())) or "none"


def _versions() -> dict[str, str]:
    versions = software.loaded()
    return {
        "python": versions.python,
        "torch": versions.torch,
        "NCCL": versions.nccl,
        "CUDA": versions.torch_cuda or "none",
        "paceline": versions.paceline,
    }


def _hash(script: Path) -> str:
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def commit(folder: Path) -> str:
    """Return the commit of a folder's files, empty if unknown; reads git's files without git."""
    for above in (folder, *folder.parents):
        git = above / ".git"
        if git.is_file():  # a worktree or a submodule: the file has the folder's path
            git = above / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        if not (git / "HEAD").is_file():
            continue
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head[:12]
        return _read_ref(git, head.removeprefix("ref:").strip())[:12]
    return ""


def _read_ref(git: Path, ref: str) -> str:
    """Return the commit of a branch; of a worktree, also from the folder of its repository."""
    folders = [git]
    shared = git / "commondir"
    if shared.is_file():
        folders.append(git / shared.read_text(encoding="utf-8").strip())
    for folder in folders:
        if (folder / ref).is_file():
            return (folder / ref).read_text(encoding="utf-8").strip()
        packed = folder / "packed-refs"
        lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
        for line in lines:
            if line.endswith(f" {ref}"):
                return line.split()[0]
    return ""


def _limits() -> dict[str, str]:
    limits = {name: ulimits.soft(name) for name in ("nofile", "memlock", "stack")}
    return {
        f"ulimit {name}": "unlimited" if value == ulimits.UNLIMITED else str(value)
        for name, value in limits.items()
        if value is not None
    }


def _machine() -> str:
    """Return an id that launchers on one machine and in one network namespace share."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
    return socket.gethostname()


def _interfaces() -> tuple[Interface, ...]:
    """Return the interfaces of this node, those with an IPv4 address first."""
    return tuple(
        sorted(
            interfaces.gather(),
            key=lambda interface: (":" in interface.addresses[0], interface.name),
        )
    )
