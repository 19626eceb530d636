"""Validate a loader's arguments, and choose its open settings, each with its reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from paceline.errors import UsageError, closest, option_contradicted, option_invalid
from paceline.train.data.adopt import check_sampler, parts_of
from paceline.train.data.array_dataset import base_of
from paceline.train.data.context import LoaderContext
from paceline.train.data.samples import in_memory
from paceline.train.data.share import LAST

# Arguments that are passed to torch's DataLoader unchanged.
_OF_WORKERS = ("timeout", "multiprocessing_context", "persistent_workers", "prefetch_factor")
_OF_TORCH = ("pin_memory", *_OF_WORKERS)

MAX_WORKERS = 8  # per rank; with more, the training process and not loading is the limit


@dataclass(frozen=True)
class LoaderOptions:
    """The options of ``Session.loader``, which documents them."""

    batch_size: int | None = None
    per_rank_batch_size: int | None = None
    shuffle: bool = False
    sampler: Any = None
    batch_sampler: Any = None
    last: str = "exact"
    sharded: bool | None = None
    sharded_by_worker: bool = False
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int | None = None
    worker_init_fn: Callable[[int], None] | None = None
    of_torch: Mapping[str, Any] = field(default_factory=dict)  # all others

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LoaderOptions:
        """Return the options that a script has given, by name."""
        known = {each.name for each in fields(cls)} - {"of_torch"}
        own = {name: value for name, value in options.items() if name in known}
        return cls(**own, of_torch={name: options[name] for name in options.keys() - known})


@dataclass(frozen=True)
class Division:
    """The division of an epoch's samples into global batches."""

    batch_size: int  # samples in a global batch; 0 if the sampler yields batches
    last: str = "exact"  # ``"exact"`` keeps a shorter last batch, ``"drop"`` leaves it out
    shuffle: bool = False  # whether paceline shuffles each epoch
    sampler: Any = None  # the user's sampler or batch sampler; None without one


def division(options: LoaderOptions, *, world_size: int) -> Division:
    """Return the division that the options of a loader describe.

    Raises UsageError if options exclude each other, a batch size is invalid, or the sampler divides
    samples among ranks.
    """
    has_size = options.batch_size is not None or options.per_rank_batch_size is not None
    has_order = options.shuffle or options.sampler is not None
    if options.batch_sampler is None:
        size = global_batch_size(options.batch_size, options.per_rank_batch_size, world_size)
        order = options.sampler
    elif has_size or has_order:
        raise contradiction("a batch_sampler decides batch size and order")
    else:
        size, order = 0, options.batch_sampler
    check_sampler(order)
    return Division(size, options.last, options.shuffle, order)


def check_options(options: LoaderOptions, *, is_stream: bool) -> None:
    """Refuse options that are invalid or exclude each other."""
    if options.last not in LAST:
        near = closest(str(options.last), LAST) or "exact"
        what = f"last={options.last!r} is not one of {', '.join(LAST)}"
        raise option_invalid(what, where="session.loader(...)", fix=f'last="{near}"')
    has_sampler = options.sampler is not None
    if options.shuffle and has_sampler:
        raise contradiction("shuffle=True and a sampler both decide the order")
    if is_stream and (options.shuffle or has_sampler or options.batch_sampler is not None):
        raise contradiction("a stream decides its own order: no shuffle, sampler or batch_sampler")
    if not is_stream and options.sharded is not None:
        raise contradiction(
            "sharded= is for streams; a dataset with a length is divided by its indices"
        )
    if not is_stream and options.sharded_by_worker:
        raise contradiction("sharded_by_worker= is for streams; workers share any other dataset")
    if options.sharded_by_worker and options.num_workers is None:
        raise contradiction("sharded_by_worker=True needs num_workers=, on which the order depends")
    if options.batch_sampler is not None and options.last == "drop":
        raise contradiction('a batch_sampler decides its batches, short ones too: no last="drop"')


def contradiction(what: str) -> UsageError:
    """Return the error for options that exclude each other."""
    return option_contradicted(what, where="session.loader(...)")


def global_batch_size(batch_size: int | None, per_rank: int | None, world_size: int) -> int:
    """Return the samples in a batch of all ranks; UsageError unless one size is given."""
    if (batch_size is None) == (per_rank is None):
        raise option_contradicted(
            "batch_size and per_rank_batch_size "
            + ("are both given" if batch_size is not None else "are both missing")
            + ": exactly one is needed",
            where="session.loader(...)",
            fix="session.loader(dataset, batch_size=64): samples of a step, all ranks together",
        )
    name, value = (
        ("batch_size", batch_size) if per_rank is None else ("per_rank_batch_size", per_rank)
    )
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise option_invalid(
            f"{name}={value!r} is not a positive int",
            where="session.loader(...)",
            fix=f"session.loader(dataset, {name}=64)",
        )
    return value if per_rank is None else value * world_size


def adopted(data: Any, arguments: dict[str, Any], *, per_rank: bool) -> tuple[Any, LoaderOptions]:
    """Return the dataset and options of a loader, taken from a user's DataLoader if given.

    ``arguments`` are those of ``Session.loader`` that are not None. ``per_rank``: the DataLoader's
    batch size is per rank. Raises UsageError if an argument conflicts with the DataLoader, or that
    cannot be divided.
    """
    if not isinstance(data, DataLoader):
        if per_rank:
            raise contradiction(
                "per_rank=True is for a DataLoader; of a dataset, give per_rank_batch_size="
            )
        return data, LoaderOptions.of(arguments)
    parts = parts_of(data)
    twice: Sequence[str] = sorted(
        {"batch_size", "per_rank_batch_size", "shuffle", "sampler", "batch_sampler"}
        & set(arguments)
    )
    if twice:
        raise contradiction(f"the DataLoader decides {twice[0]} already")
    if per_rank and "batch_sampler" in parts:
        raise contradiction(
            "the DataLoader's batch_sampler decides the global batches: no per_rank=True"
        )
    if per_rank:
        parts["per_rank_batch_size"] = parts.pop("batch_size")
    return data.dataset, LoaderOptions.of({**parts, **arguments})


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
    """Choose a rank's number of DataLoader workers, and whether batches are pinned."""
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
    options: LoaderOptions, dataset: Any, context: LoaderContext
) -> tuple[dict[str, Any], str]:
    """Return torch's DataLoader settings, and the reason if the number of workers was chosen.

    Raises UsageError if an option is unknown, or it needs workers and there are none.
    """
    for name in options.of_torch:
        if name not in _OF_TORCH:
            raise _unknown(name)
    loading = choose(
        cpus=context.cpus,
        ranks=context.world.local_world_size,
        in_memory=is_lookup(dataset),
        stream=isinstance(dataset, IterableDataset),
        on_gpu=context.device.type != "cpu",
        can_fork=sys.platform == "linux",
    )
    values = {name: value for name, value in options.of_torch.items() if value is not None}
    num_workers = options.num_workers
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
