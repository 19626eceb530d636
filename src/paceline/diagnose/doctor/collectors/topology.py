"""Read the matrix of ``nvidia-smi topo -m``, pasted or in a log: GPUs and the links between them.

Pure. The columns of GPUs come first, in the order of their rows, and those of network cards follow;
then come the CPUs and the NUMA node, if the driver knows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile

from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_gpu import Gpu, GpuPair
from paceline.signatures.lines import parse

_ROW = re.compile(r"\s*GPU(\d+)\s+(\S.*)")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
_CAPABILITIES = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}  # of nvidia-smi topo -p2p
_SETTING = re.compile(r"(NCCL_P2P_(?:DISABLE|LEVEL))(?:=| set by environment to )[\"']?(\w+)")


def read_topology(text: str, settings: Mapping[str, str]) -> Facts:
    """Return the GPUs and links of the first matrix, and NCCL's settings of peer-to-peer."""
    rows: dict[int, list[str]] = {}
    named = dict(settings)
    for line in text.splitlines():
        body = parse(line).body
        named |= dict(_SETTING.findall(body))
        row = _ROW.match(body)
        cells = row[2].split() if row else []
        is_own = cells[len(rows) : len(rows) + 1] == ["X"]
        if row and is_own and _CAPABILITIES.isdisjoint(cells):
            rows.setdefault(int(row[1]), cells)
    gpus: list[Gpu] = []
    pairs: list[GpuPair] = []
    for index, cells in rows.items():
        links = list(takewhile(_LINK.fullmatch, cells))
        cpus, node, *_ = [*cells[len(links) :], "", ""]
        for gpu, link in zip(gpus, links, strict=False):
            nvlinks = int(link.removeprefix("NV")) if link.startswith("NV") else 0
            level = "SYS" if link == "SOC" else link  # its name until 2017
            pairs.append(GpuPair(gpu.index, index, "" if nvlinks else level, nvlinks))
        gpus.append(Gpu(index, cpus=cpus, numa_node=int(node) if node.isdecimal() else None))
    return Facts(gpus=tuple(gpus), pairs=tuple(pairs), settings=named)
