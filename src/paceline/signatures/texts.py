"""Texts of torch, NCCL and Gloo that both the signatures and ``rank_errors`` know. Pure data.

They are parts of regular expressions. Names of their groups are used by the signatures.
"""

from __future__ import annotations

# A rank waited in vain.
GLOO_TIMEOUT = r"Timed out waiting (?P<ms>\d+)ms for (?P<op>\w+) operation"
NCCL_TIMEOUT = r"collective operation timeout"
BARRIER_TIMEOUT = r"\b(?P<rank>\d+) failed to pass monitoredBarrier in (?P<limit>\d+) ms"
STORE_WAIT_TIMEOUT = r"wait timeout after \d+ ?ms"
STORE_UNREACHABLE = (
    r"client socket has timed out after (?:(?P<wait>\d+ ?m?s)|\d+) while trying to connect to "
    r"\((?P<host>[^,]+), (?P<port>\d+)\)"
)
CLIENTS_MISSING = r"waiting for clients\. *(?P<joined>\d+)/(?P<total>\d+) clients"

# Ranks met in different collectives.
SIZES_DIFFER = (
    r"distributed collective mismatch in your code|received data size doesn't match expected size"
)
COLLECTIVES_DIFFER = r"Detected mismatch between collectives on ranks"
RANDOM_STATE_INVALID = r"Invalid mt19937 state"

# The other end of a connection has gone.
NCCL_REMOTE = r"ncclRemoteError|remote process exit(?:ing|ed)"
NCCL_ABORTED = r"NCCL communicator (?:was|is) aborted"
STORE_CLOSED = (
    r"Failed to recv, got 0 bytes"
    r"|Connection was likely closed\. Did the remote server shutdown or crash"
)

# A rank whose gradients became NaN or Inf after it had made them: in the average, or later.
FINITE_ITSELF = "its own loss and gradients were finite when they were made"

# A DataLoader worker ended without an exception.
WORKER_SIGNAL = r"DataLoader worker \(pid[^)]*\) is killed by signal"
WORKER_KILLED = rf"{WORKER_SIGNAL}: Killed"
WORKER_EXITED = r"DataLoader worker \(pid\(?s?\)? ?(?P<pids>[\d, ]+)\) exited unexpectedly"
