"""How long paceline waits before it reports something or ends something: the one list of these times.

The policy behind the numbers is docs/design/0013-explain-early-stop-late.md: report within seconds, end a run no
earlier than torchrun and torch would, unless it is proven that the run cannot continue or the user set a limit.

All times are in seconds. Tests of long waits multiply every one of them by ``PACELINE_TEST_TIME_FACTOR``.
"""

from __future__ import annotations

from paceline import env

# Reports. None of them has an effect on the run.
MISSING_NODE_NOTICE = 5.0  # after the start, which nodes have not come
SILENT_NODE_NOTICE = 10.0  # without a heartbeat; with the tick and the store's delay within 15 s
HANG_NOTICE = 120.0  # without progress of a rank that others wait for
NOTHING_MOVES_LOOK = 5.0  # without progress of any rank: compare what the ranks wait in, without signals

# Who owns a run folder (docs/design/0014-run-folders.md).
LEASE_HEARTBEAT = 5.0  # how often the owner raises its counter
LEASE_EXPIRY = 60.0  # without a change of the counter: the owner is gone. NFS shows a change after up to 60 s.
LEASE_SAME_JOB = 15.0  # the same for an earlier step of the same Slurm job, on another node
LEASE_LIVING = 10.0  # how long a newcomer waits for an owner that is alive, and may be ending

# Ends. Each is at least as long as torchrun's or torch's own, or needs a proof.
STATIC_START = 900.0  # nodes that have not come, static rendezvous: torchrun's launcher/api.py
C10D_START = 600.0  # the same for c10d: torch's RendezvousTimeout.join
SLURM_START = 300.0  # the same inside a Slurm step, whose tasks start together
PORT_REFUSED = 60.0  # the head's host answers and refuses the port: its launcher has ended or was never started
WORKER_FORK = 5.0  # a forked DataLoader worker that waits for a lock and never ran: proven, and so never scaled
NODE_TIMEOUT = 90.0  # without a heartbeat of a node and without steps: default of --node-timeout


def factor() -> float:
    """Return what tests multiply all deadlines with; 1 outside of tests."""
    return float(env.read(env.TEST_TIME_FACTOR) or 1)


def scaled(seconds: float) -> float:
    """Return a deadline of this module as it holds in this process.

    Args:
        seconds: One of the constants above, or another default of ours. Never a time that the user has set.
    """
    return seconds * factor()
