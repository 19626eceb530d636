"""Identify the rank and the run of a process from its environment variables. Pure.

Every launcher passes the rank in environment variables: torchrun, ``accelerate launch`` and
``deepspeed`` set ``RANK``, mpirun and srun set others. Variables that a process sets after its
start are not visible from outside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Names of rank, world size, local rank and local world size, for each launcher; the first complete
# pair is used.
RANK = "RANK"
_FAMILIES = (
    (RANK, "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
# Variables of a rank that say how torch and NCCL can be queried.
_SETTINGS = (
    "PACELINE_RUN_DIR",
    "MASTER_PORT",
    "TORCH_WORKER_SERVER_SOCKET",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "NCCL_RAS_ADDR",
)


@dataclass(frozen=True)
class RankIdentity:
    """The place of a process in a run, as its environment says."""

    family: str  # the variable that has the rank: ``RANK``, ``SLURM_PROCID``
    rank: int  # global rank
    world_size: int  # number of ranks
    local_rank: int = -1  # rank on its host, -1 if unknown
    local_world_size: int = 0  # number of ranks on its host, 0 if unknown
    run: str = ""  # identifies the run among those that live at the same time
    job: str = ""  # Slurm job id, empty outside of Slurm
    # variables that say how torch and NCCL can be queried
    settings: Mapping[str, str] = field(default_factory=dict)


def read(environ: Mapping[str, str]) -> RankIdentity | None:
    """Return the identity of a process, None if it is not a rank."""
    for family, size, local, local_size in _FAMILIES:
        rank, world_size = _number(environ.get(family)), _number(environ.get(size))
        if rank < 0 or world_size <= rank or (family == "SLURM_PROCID" and not _is_step(environ)):
            continue
        return RankIdentity(
            family,
            rank,
            world_size,
            local_rank=_number(environ.get(local)),
            local_world_size=max(0, _number(environ.get(local_size))),
            run=_run(environ, family, world_size),
            job=environ.get("SLURM_JOB_ID", ""),
            settings={name: environ[name] for name in _SETTINGS if name in environ},
        )
    return None


def _is_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started the process: in a batch script ``SLURM_PROCID`` is 0 and means
    nothing.
    """
    return "SLURM_STEP_ID" in environ or "SLURM_STEPID" in environ


def _run(environ: Mapping[str, str], family: str, world_size: int) -> str:
    """Return what identifies the run: the address of its store, or the Slurm step of its ranks."""
    job = environ.get("SLURM_JOB_ID", "")
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    meets = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
    if family != RANK or meets == ":":
        meets = f"step {step}" if step else environ.get("PMIX_NAMESPACE", "")
    return " ".join(
        part for part in (f"job {job}" if job else "", meets, f"of {world_size}") if part
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,7}", text) else -1
