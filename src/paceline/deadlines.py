"""Decide after how many seconds paceline reports or ends something: a hang, a silent node.

The policy behind the numbers is docs/design/0013-explain-early-stop-late.md: report within seconds.
End a run no earlier than torchrun and torch would, unless it is proven that the run cannot continue
or the user set a limit.

All times are in seconds. Tests of long waits multiply all of them by
``PACELINE_TEST_TIME_FACTOR``.
"""

from __future__ import annotations

from paceline import env

# Reports, without an effect on the run.
MISSING_NODE_NOTICE = 5.0  # after the start: which nodes are missing
SILENT_NODE_NOTICE = 10.0  # without a heartbeat; with the tick and the store's delay, within 15 s
HANG_NOTICE = 120.0  # without progress of a rank that others wait for
THREAD_DIED_NOTICE = 5.0  # others wait for a rank of which an exception has ended a thread
EXCEPTION_NOTICE = 10.0  # others wait for a rank that has printed an exception since its last step
NOTHING_MOVES_LOOK = 5.0  # without progress of any rank: compare their waits, without signals

OTHER_LAUNCHER = 300.0  # accelerate says what its options mean: it imports torch, from a cold disk

# Ownership of a run folder (docs/design/0014-run-folders.md).
LEASE_HEARTBEAT = 5.0  # interval at which the owner increases its counter
LEASE_EXPIRY = 60.0  # the counter does not change: the owner is gone. NFS delays it by up to 60 s.
LEASE_SAME_JOB = 15.0  # the same for an earlier step of the same Slurm job, on another node
LEASE_LIVING = 10.0  # wait of a newcomer for an owner that is alive and may be about to end

# Ends. Each time is at least as long as torchrun's or torch's, or requires a proof.
STATIC_START = 900.0  # missing nodes, static rendezvous: torchrun's launcher/api.py
C10D_START = 600.0  # the same for c10d: torch's RendezvousTimeout.join
SLURM_START = 300.0  # the same in tasks of a Slurm step or mpirun, which start together
POD_START = 1800.0  # the same in pods: a node is started and gigabytes of image are pulled for each
PORT_REFUSED = 60.0  # node 0's host refuses the port: its launcher has ended or never started
WORKER_FORK = 5.0  # a forked DataLoader worker waits for a lock and never ran: proven, not scaled
NODE_TIMEOUT = 90.0  # without a heartbeat and without steps of a node: default of --node-timeout


def factor() -> float:
    """Return the factor by which tests multiply all deadlines; 1 outside of tests."""
    return float(env.read(env.TEST_TIME_FACTOR) or 1)


def scaled(seconds: float) -> float:
    """Return a default of paceline, scaled for this process; never a time that the user has set."""
    return seconds * factor()
