"""Signatures of MPI, and of schedulers other than Slurm that end or reject a job."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "slurm-time-limit",
        "walltime|term_runlimit|deadlineexceeded|run time limit",
        r"PBS: job killed: walltime (?P<ran>\d+) exceeded limit (?P<limit>\d+)|TERM_RUNLIMIT"
        r"|(?:reason|Reason): *DeadlineExceeded|job killed after reaching LSF run time limit",
        what=(
            "the scheduler ended the job at its time limit of {limit} s",
            "the scheduler ended the job at its time limit",
        ),
        fix=(
            "ask for more time (PBS: -l walltime, LSF: -W, Kubernetes: activeDeadlineSeconds), or"
            " save and submit again before it"
        ),
        tier=Tier.EXCEPTION,
        key="stop",
    ),
    cause(
        "rank-died-oom-killer",
        "exceeded limit|term_memlimit|low on resource: memory",
        r"PBS: job killed: (?:mem|vmem|pmem) \S+ exceeded limit|TERM_MEMLIMIT|low on resource:"
        r" memory",
        what="the scheduler ended the job because it used more host memory than it was given",
        fix=(
            "ask for more memory (PBS: -l mem, LSF: -M, Kubernetes: resources.limits.memory), or"
            " fewer DataLoader workers"
        ),
    ),
    cause(
        "disk-full",
        "low on resource: ephemeral-storage|exceeds the limit of its local ephemeral storage"
        "|ephemeral local storage usage",
        r"low on resource: ephemeral-storage|ephemeral (?:local )?storage usage exceeds",
        what="the pod was evicted because the node's disk ran full",
        fix="write checkpoints and caches to a volume; resources.limits.ephemeral-storage",
    ),
    cause(
        "slurm-request-impossible",
        "nodes are available: |not enough slots available",
        r"\b0/\d+ nodes are available: (?P<reason>.{1,120})|not enough slots available in the"
        r" system to satisfy the "
        r"(?P<slots>\d+)",
        what=(
            "Kubernetes finds no node for the pod: {reason}",
            "mpirun is asked for {slots} processes and has fewer slots",
        ),
        fix=(
            "kubectl describe nodes, or mpirun --host NODE:SLOTS (--oversubscribe): ask for what"
            " there is"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "container-not-started",
        "imagepullbackoff|errimagepull|createcontainererror|failed to pull image",
        r"(?P<reason>ImagePullBackOff|ErrImagePull|CreateContainer(?:Config)?Error|Failed to pull"
        r" image \S+)",
        what="the container did not start: {reason}",
        fix="kubectl describe pod POD: the image's name, its tag, and the secret for its registry",
        tier=Tier.COARSE,
    ),
    cause(
        "launcher-summary-only",
        "mpi_abort was invoked",
        r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
        what="rank {rank} ended the others with MPI_Abort; the error itself is not in this text",
        fix="look above this line, and at the output of that rank",
        tier=Tier.SUMMARY,
        key="summary",
    ),
    cause(
        "peer-rank-died",
        "failed to send a keep-alive heartbeat",
        r"has failed to send a keep-alive heartbeat to the rendezvous",
        what=(
            "the node that hosts the rendezvous does not answer any more: it ended first, or cannot"
            " be reached"
        ),
        fix="look at the end of the output of the first node",
        tier=Tier.AFTERMATH,
    ),
)
