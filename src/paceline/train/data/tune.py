"""Choose a loader's open settings: workers, pinned memory and prefetch, each with its reason."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from paceline.errors import UsageError, closest
from paceline.train.data.arguments import contradiction
from paceline.train.data.array_dataset import base_of
from paceline.train.data.context import LoaderContext
from paceline.train.data.samples import in_memory

# Arguments that are passed to torch's DataLoader unchanged.
_OF_WORKERS = ("timeout", "multiprocessing_context", "persistent_workers", "prefetch_factor")
_OF_TORCH = ("pin_memory", *_OF_WORKERS)

MAX_WORKERS = 8  # per rank; with more, the training process and not loading is the limit


@dataclass(frozen=True)
class Loading:
    """Settings of a DataLoader that the user left open."""

    num_workers: int  # worker processes
    pin_memory: bool  # whether batches are copied to pinned memory
    reason: str  # reason for the number of workers, one line to print


def choose(
    *,
    cpus: int,  # that the ranks of this node may use
    ranks: int,  # on this node
    in_memory: bool,  # reading a sample is only a lookup
    stream: bool,  # the data is read in sequence, so that each worker reads all of it
    on_gpu: bool,  # batches are copied to a GPU
    can_fork: bool,  # workers inherit the dataset; otherwise pickling it may fail
) -> Loading:
    """Return settings for a rank's loader."""
    pinned = ", pinned memory for the copy to the GPU" if on_gpu else ""
    spare = max(0, cpus // ranks - 1)
    if in_memory:
        return Loading(0, on_gpu, "")
    if not can_fork:
        return Loading(0, on_gpu, f"no workers: this platform cannot fork them{pinned}")
    if stream:
        number = min(spare, 1)
        return Loading(
            number, on_gpu, f"{_workers(number)} (more would each read the whole stream){pinned}"
        )
    number = min(spare, MAX_WORKERS)
    share = (
        f"{cpus} usable CPU{'s' * (cpus != 1)} / {ranks} rank{'s' * (ranks != 1)}, one for training"
    )
    return Loading(number, on_gpu, f"{_workers(number)} a rank ({share}){pinned}")


def is_lookup(dataset: Any) -> bool:
    """Return whether a batch is read without waiting and with little Python: no workers help."""
    return in_memory(dataset) or base_of(dataset) is not None


def _workers(number: int) -> str:
    return f"{number or 'no'} worker{'s' * (number != 1)}"


def settings(
    num_workers: int | None,  # the user's; None if left open
    options: dict[str, Any],  # the user's other settings; None means left open
    dataset: Any,
    context: LoaderContext,
) -> tuple[dict[str, Any], str]:
    """Return torch's DataLoader settings, and the reason if the number of workers was chosen.

    Raises UsageError if an option is unknown, or it needs workers and there are none.
    """
    for name in options:
        if name not in _OF_TORCH:
            raise _unknown(name)
    loading = choose(
        cpus=context.cpus,
        ranks=context.world.local_world_size,
        in_memory=is_lookup(dataset),
        stream=isinstance(dataset, IterableDataset),
        on_gpu=context.device.type == "cuda",
        can_fork=sys.platform == "linux",
    )
    values = {name: value for name, value in options.items() if value is not None}
    reason = ""
    if num_workers is None:
        needs_workers = any(values.get(name) for name in _OF_WORKERS)
        num_workers = max(loading.num_workers, int(needs_workers))
        reason = loading.reason if num_workers == loading.num_workers else ""
    if not num_workers and values.get("timeout"):
        raise contradiction("timeout= is for workers, and there are none")
    values["num_workers"] = num_workers
    values.setdefault("pin_memory", loading.pin_memory)
    if num_workers:
        # Restarting workers takes 0.1 to 0.6 s an epoch, and some versions of Python occasionally
        # deadlock in a fork; see docs/design/0017-what-goes.md. A user's DataLoader has False by
        # default, which expresses no choice, so only session.loader(...) can turn it off.
        values.setdefault("persistent_workers", True)
    return values, reason


def _unknown(name: str) -> UsageError:
    near = closest(name, _OF_TORCH)
    return UsageError.of(
        "option-unknown",
        f"session.loader has no option {name}",
        where="session.loader(...)",
        fix=f"{near}=..." if near else "see the documentation of Session.loader",
    )
