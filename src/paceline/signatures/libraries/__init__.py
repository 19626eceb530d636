"""All signatures, by area. Their order within an area does not matter; the tiers decide."""

from __future__ import annotations

from functools import cache

from paceline.signatures.signature import Signature


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all signatures."""
    from paceline.signatures.libraries import (
        checkpoint,
        cuda,
        data,
        ddp,
        downloads,
        endings,
        environment,
        gloo,
        links,
        native,
        nccl,
        ranks,
        rendezvous,
        schedulers,
        shell,
        slurm,
        slurm_requests,
    )

    areas = (
        rendezvous,
        ranks,
        nccl,
        links,
        gloo,
        cuda,
        ddp,
        data,
        checkpoint,
        slurm,
        slurm_requests,
        schedulers,
        environment,
        downloads,
        shell,
        native,
        endings,
    )
    return tuple(signature for area in areas for signature in area.SIGNATURES)
