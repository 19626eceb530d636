"""All signatures, by area. Their order within an area does not matter; the tiers decide.

checkpoint      signatures of checkpoints that do not match the model or cannot be read
cuda            signatures of CUDA, its driver and the hardware
data            signatures of data loading: workers, shared memory, open files, disks
ddp             signatures of DistributedDataParallel, synchronized batch norm and mixed
                precision
downloads       signatures of external servers that are unreachable or refuse a request
endings         signatures of process ends: signals, exit codes, and the launchers' reports
                about them
environment     signatures of Python environments, libraries and launch settings of the machine
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
