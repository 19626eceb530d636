"""All signatures, in a file for each area. Their order in a file does not matter; the tiers decide.

checkpoint      signatures of checkpoints that do not match the model or cannot be read
cuda            signatures of CUDA, its driver and the hardware
data            signatures of data loading: workers, shared memory, open files, disks
ddp             signatures of DistributedDataParallel, synchronized batch norm and mixed
                precision
downloads       signatures of external servers that are unreachable or refuse a request
endings         signatures of process ends: signals, exit codes, and the launchers' reports
                about them
environment     signatures of Python environments, libraries and launch settings of the machine
frameworks      signatures of messages of training libraries, such as DeepSpeed or transformers
gloo            signatures of Gloo
links           signatures of NCCL's transports: InfiniBand, sockets, shared memory,
                peer-to-peer
native          signatures of compiled libraries that fail to load or conflict, and of their
                threads
nccl            signatures of NCCL and of torch's NCCL watchdog
ranks           signatures of wrong ranks: the variables and numbers that a launcher sets, and
                init files
rendezvous      signatures of the rendezvous: stores, sockets, torchrun's rendezvous, launch
                variables
schedulers      signatures of MPI, and of schedulers other than Slurm that end or reject a job
shell           signatures of the shell and of ssh launchers: programs that do not start or end
                by a signal
slurm           signatures of Slurm, of srun, and of frameworks that check Slurm's task counts
slurm_requests  signatures of requests that Slurm rejects, and of commands that do not reach
                Slurm
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from paceline.signatures import texts
from paceline.signatures.signature import Signature
from paceline.signatures.tier import Tier
from paceline.text import toml

AREAS = (
    "rendezvous",
    "ranks",
    "nccl",
    "links",
    "gloo",
    "cuda",
    "ddp",
    "data",
    "checkpoint",
    "slurm",
    "slurm_requests",
    "schedulers",
    "environment",
    "downloads",
    "shell",
    "native",
    "endings",
    "frameworks",
)
_SHARED = re.compile("@([A-Z_]+)@")


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all signatures."""
    return tuple(signature for area in AREAS for _, signature in of_area(area))


def of_area(area: str) -> Iterator[tuple[Mapping[str, Any], Signature]]:
    """Yield the signatures of an area, each after its table in the file.

    ``@NAME@`` stands for a text of the file's table ``shared``, or of ``texts``. The parts of
    ``pattern`` and ``unless`` are alternatives. Without ``tier`` a signature is a CAUSE.
    """
    content = toml.loads((Path(__file__).parent / f"{area}.toml").read_text(encoding="utf-8"))
    shared = {**vars(texts), **content.get("shared", {})}

    def listed(table: Mapping[str, Any], field: str) -> tuple[str, ...]:
        value = table.get(field, [])
        parts = [value] if isinstance(value, str) else value
        return tuple(_SHARED.sub(lambda match: shared[match[1]], part) for part in parts)

    for table in content["signature"]:
        name = table.get("name", "")
        yield (
            table,
            Signature(
                name,
                listed(table, "anchor"),
                "|".join(listed(table, "pattern")),
                listed(table, "what"),
                listed(table, "fix"),
                "".join(listed(table, "why")),
                Tier[table.get("tier", "CAUSE" if name else "REMARK")],
                table.get("where", ""),
                table.get("key", name),
                "|".join(listed(table, "unless")),
                table.get("in_warning", False),
            ),
        )


@cache
def texts_of(name: str) -> dict[str, Any]:
    """Return the texts that a file beside this package holds for faults by rule."""
    return toml.loads((Path(__file__).parents[1] / f"{name}.toml").read_text(encoding="utf-8"))
