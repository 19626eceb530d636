"""Read from ``slurm.conf`` which resources a job must request on this machine's cluster.

On clusters that allocate whole nodes, or memory and GPUs without a request, the advice to request
them is wrong. So it is only given if this file shows that it applies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline import env

_PLACES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
_MOST_BYTES = 4 * 1024 * 1024
_SETTING = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class Site:
    """What ``slurm.conf`` shows about requests."""

    limits_memory: bool = False  # True if a job without a memory request is limited to a default
    binds_gpus: bool = False  # True if a job only gets the GPUs that it requests
    whole_nodes: frozenset[str] = frozenset()  # partitions that allocate whole nodes
    partition: str = ""  # the default partition


def here() -> Site:
    """Read the Slurm configuration of this machine."""
    configured = env.read(env.SLURM_CONF)
    for path in (configured,) if configured else _PLACES:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return describe(file.read(_MOST_BYTES))
        except OSError:
            continue
    return Site()


def describe(text: str) -> Site:
    """Parse a ``slurm.conf``."""
    lines = [line.partition("#")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
    settings: dict[str, str] = {}
    whole, default = set(), ""
    for line in lines:
        line_settings = {name.lower(): value for name, value in _SETTING.findall(line)}
        name = line_settings.get("partitionname")
        if name is None:
            settings.update(line_settings)
            continue
        if (
            line_settings.get("oversubscribe", line_settings.get("shared", ""))
            .upper()
            .startswith("EXCLUSIVE")
        ):
            whole.add(name)
        if line_settings.get("default", "").upper() == "YES":
            default = name
        settings.update(
            {key: value for key, value in line_settings.items() if key.startswith("defmem")}
        )
    shares = settings.get("selecttype", "select/cons_tres") != "select/linear"
    defaults = [
        value for key, value in settings.items() if key.startswith("defmem") and value.strip("0")
    ]
    return Site(
        limits_memory=shares
        and "memory" in settings.get("selecttypeparameters", "").lower()
        and bool(defaults),
        binds_gpus=shares and "gpu" in settings.get("grestypes", "").split(","),
        whole_nodes=frozenset(whole),
        partition=default,
    )
