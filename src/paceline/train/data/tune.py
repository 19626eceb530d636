"""How a loader is set where the user left it open: workers, pinned memory, prefetch, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

MAX_WORKERS = 8  # of a rank: beyond it, what one process can take in is the limit rather than loading


@dataclass(frozen=True)
class Loading:
    """Settings of a DataLoader that were left open.

    Attributes:
        num_workers: Processes that load.
        pin_memory: Whether batches are copied to pinned memory.
        reason: Why, one line to print.
    """

    num_workers: int
    pin_memory: bool
    reason: str


def choose(*, cpus: int, ranks: int, in_memory: bool, stream: bool, on_gpu: bool, can_fork: bool) -> Loading:
    """Return settings for a rank's loader.

    Args:
        cpus: CPUs that the ranks of this node may use.
        ranks: Ranks on this node.
        in_memory: Whether a sample only has to be looked up.
        stream: Whether the data is read in sequence: each worker then reads all of it.
        on_gpu: Whether batches go to a GPU.
        can_fork: Whether workers inherit the dataset; elsewhere it may not survive pickling.
    """
    pinned = ", pinned memory for the copy to the GPU" if on_gpu else ""
    left = max(0, cpus // ranks - 1)
    if in_memory:
        return Loading(0, on_gpu, "")
    if not can_fork:
        return Loading(0, on_gpu, f"no workers: this platform cannot fork them{pinned}")
    if stream:
        number = min(left, 1)
        return Loading(number, on_gpu, f"{_workers(number)} (more would each read the whole stream){pinned}")
    number = min(left, MAX_WORKERS)
    share = f"{cpus} usable CPU{'s' * (cpus != 1)} / {ranks} rank{'s' * (ranks != 1)}, one for training"
    return Loading(number, on_gpu, f"{_workers(number)} a rank ({share}){pinned}")


def _workers(number: int) -> str:
    return f"{number or 'no'} worker{'s' * (number != 1)}"
