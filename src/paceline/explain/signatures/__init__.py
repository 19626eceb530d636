"""All signatures, by area: the order inside an area does not matter, the weights do."""

from __future__ import annotations

from functools import cache

from paceline.explain.signature import Signature


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all signatures."""
    from paceline.explain.signatures import (
        checkpoint,
        cuda,
        data,
        ddp,
        endings,
        environment,
        gloo,
        nccl,
        rendezvous,
        slurm,
    )

    areas = (rendezvous, nccl, gloo, cuda, ddp, data, checkpoint, slurm, environment, endings)
    return tuple(signature for area in areas for signature in area.SIGNATURES)
