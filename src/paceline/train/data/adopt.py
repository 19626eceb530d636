"""Decide what data can be divided among ranks: datasets, streams, samplers and DataLoaders."""

from __future__ import annotations

import hashlib
import inspect
import os
from array import array
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from paceline.errors import UsageError
from paceline.train import runtime
from paceline.train.data.array_dataset import ArrayDataset
from paceline.train.data.batch import is_of_rows
from paceline.train.data.same_data_check import MOST_SAMPLES, mark_of, shared_twice

# Words in the source of a stream that divides itself among ranks; its workers see only one worker.
_OWN_SHARES = ("get_rank", "RANK", "world_size", "num_replicas")

# torch_geometric's: their batch is the graph between all samples of it
_OF_WHOLE_GRAPHS = ("RandomNodeLoader", "ClusterLoader", "GraphSAINTSampler")


def parts_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return a user's DataLoader as arguments for ``Loader``.

    Its batches are rebuilt from its dataset, sampler and collate function, which determine what it
    yields. Raises UsageError if the DataLoader overrides ``__iter__`` or has no batch size.
    """
    if type(loader).__iter__ is not DataLoader.__iter__ and not _is_stateful(loader):
        raise _refusal(
            f"{type(loader).__name__} makes batches in its own __iter__, which cannot be"
            " shared out",
            fix="session.loader(your_loader.dataset, batch_size=..., shuffle=...)",
        )
    if type(loader).__name__ in _OF_WHOLE_GRAPHS and runtime.num_ranks() > 1:
        raise _refusal(
            f"{type(loader).__name__} keeps the edges inside a batch, and those between the ranks'"
            " parts of it would vanish",
            fix=(
                "torch_geometric's NeighborLoader, or session.loader([*loader], batch_size=1):"
                " parts of the graph as samples"
            ),
        )
    makes_batches = loader.batch_size is not None or bool(loader.batch_sampler)
    parts: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "collate_fn": loader.collate_fn if makes_batches else None,
        "worker_init_fn": loader.worker_init_fn,
        "timeout": loader.timeout,
        "multiprocessing_context": loader.multiprocessing_context,
    }
    if loader.num_workers:
        parts["prefetch_factor"] = loader.prefetch_factor
    if isinstance(loader.dataset, IterableDataset):
        return parts | _division_of_stream(loader)
    return parts | _division_of_samples(loader)


def _is_stateful(loader: DataLoader[Any]) -> bool:
    """Return whether this is torchdata's StatefulDataLoader, which yields what a DataLoader does.

    Its position is not used: a session's loader is restored at any step on any number of ranks.
    """
    iterates = type(loader).__iter__
    return iterates.__module__.startswith("torchdata.stateful_dataloader")


def _is_of_torchdata(sampler: Any) -> bool:
    """Return whether a sampler is one that StatefulDataLoader makes in place of torch's."""
    return type(sampler).__module__ == "torchdata.stateful_dataloader.sampler"


def _division_of_stream(loader: DataLoader[Any]) -> dict[str, Any]:
    if loader.batch_size is None:
        raise _refusal(
            "this DataLoader has no batch size (its stream makes the batches), so they cannot"
            " be divided",
            fix="session.loader(stream_of_samples, batch_size=64)",
        )
    return {"batch_size": loader.batch_size, "last": "drop" if loader.drop_last else "exact"}


def _division_of_samples(loader: DataLoader[Any]) -> dict[str, Any]:
    batches: Any = loader.batch_sampler
    if batches is None:
        raise _refusal(
            "this DataLoader has no batch size, so that its batches cannot be divided",
            fix="session.loader(your_loader.dataset, batch_size=...)",
        )
    if type(batches) is not BatchSampler and not _is_of_torchdata(batches):
        return {"batch_sampler": batches}
    last = "drop" if batches.drop_last else "exact"
    order = _order_of(batches.sampler, loader)
    return {"batch_size": batches.batch_size, "last": last, **order}


def _order_of(sampler: Any, loader: DataLoader[Any]) -> dict[str, Any]:
    is_random = type(sampler) is RandomSampler or _is_of_torchdata(sampler)
    is_sequential = type(sampler) is SequentialSampler
    if (is_random or is_sequential) and _is_of_all(sampler, loader.dataset):
        if is_sequential:
            return {"shuffle": False}
        # torchdata's sampler has a generator of its own where the user gave none.
        seeded = loader.generator if _is_of_torchdata(sampler) else sampler.generator
        if not sampler.replacement and seeded is None:
            return {"shuffle": True}  # in our order, which does not depend on the world size
    return {"sampler": sampler}


def _is_of_all(sampler: Any, dataset: Any) -> bool:
    """Return whether a sampler yields as many samples as the dataset has.

    The sampler's ``data_source`` may be shorter than the dataset.
    """
    source = sampler.data_source
    alike = source is dataset or (hasattr(dataset, "__len__") and len(source) == len(dataset))
    return alike and len(sampler) == len(source)


def check_sampler(sampler: Any) -> None:
    """Refuse a sampler that divides samples among ranks."""
    if sampler is not None and not hasattr(sampler, "__len__"):
        raise _refusal(
            f"{type(sampler).__name__} has no length, and might have no end",
            fix="def __len__(self): return number_of_samples, or an IterableDataset",
        )
    inner = getattr(sampler, "sampler", None)
    for part in (sampler, inner):
        if isinstance(part, DistributedSampler) or hasattr(part, "num_replicas"):
            raise _refusal(
                f"{type(part).__name__} gives each rank its own samples, which would be shared out"
                " a second time",
                fix=(
                    "session.loader(dataset, batch_size=..., shuffle=True): no sampler and no"
                    " set_epoch is needed"
                ),
            )


def check_dataset(dataset: Any) -> None:
    """Refuse data that is neither indexable by number nor a stream."""
    if isinstance(dataset, IterableDataset):
        return
    if isinstance(dataset, Mapping) and not is_of_rows(dataset) and 0 not in dataset:
        raise _refusal_of_mapping(dataset)
    if not hasattr(dataset, "__getitem__"):
        raise _refusal(
            f"{type(dataset).__name__} can only be read in sequence, and is not an IterableDataset",
            fix=(
                "session.loader(list(dataset), batch_size=...), or write a Dataset with __len__ and"
                " __getitem__"
            ),
        )
    if not hasattr(dataset, "__len__"):
        raise _refusal(
            f"{type(dataset).__name__} has no length",
            fix="def __len__(self): return number_of_samples",
        )


def _refusal_of_mapping(dataset: Mapping[Any, Any]) -> UsageError:
    """Return the error for a dict with other keys than numbers, such as the splits of a dataset."""
    names = [repr(name) for name in dataset]
    first = names[0] if names else "'train'"
    return UsageError.of(
        "data-not-shardable",
        f"a {type(dataset).__name__} with {', '.join(names[:4]) or 'nothing'} is not a dataset:"
        " it has no sample number 0",
        where="session.loader(...)",
        why="samples are read by number, from 0 to len(dataset) - 1",
        fix=f"session.loader(data[{first}], batch_size=...), one loader for each",
    )


def check_stream(stream: Any) -> None:
    """Refuse a stream that seems to divide itself among ranks; skipped if ``sharded`` was given.

    Raises UsageError if the source of its ``__iter__`` mentions the rank.
    """
    try:
        source = inspect.getsource(type(stream).__iter__)
    except (OSError, TypeError):
        return  # defined in a notebook or in C: assumed to be a whole stream
    words = [word for word in _OWN_SHARES if word in source]
    if words:
        name = type(stream).__name__
        raise _refusal(
            f"{name}.__iter__ looks as if it divided itself among ranks (it uses {words[0]})",
            fix=(
                f"session.loader({name}(...), per_rank_batch_size=..., sharded=True) if each rank"
                " reads its own part, sharded=False if all read the same"
            ),
        )


def check_library(stream: Any, *, world_size: int) -> None:
    """Refuse a stream that a library divided among ranks; skipped if ``sharded`` was given.

    Detects ``datasets.distributed.split_dataset_by_node`` and webdataset's ``split_by_node``.
    Raises UsageError if each rank would get a part of its part.
    """
    by = _shared_by(stream) if world_size > 1 else None
    if by is not None:
        raise shared_twice(
            f"{by} has given each rank its part of this stream already",
            fix=(
                "session.loader(stream, per_rank_batch_size=..., sharded=True), or the whole"
                " stream, without that split: session.loader(stream, batch_size=...) gives each"
                " rank its rows"
            ),
        )


def _shared_by(stream: Any) -> str | None:
    split = getattr(stream, "_distributed", None)
    if getattr(split, "world_size", 1) > 1:
        return "split_dataset_by_node"
    for stage in getattr(stream, "pipeline", None) or ():
        if getattr(stage, "__name__", "") == "split_by_node":
            return "split_by_node"
        inner = _shared_by(stage) if hasattr(stage, "pipeline") else None
        if inner is not None:
            return inner
    return None


def fingerprint(dataset: Any) -> tuple[Any, ...]:
    """Return a value that is equal for equal datasets, and usually differs for others."""
    if isinstance(dataset, Subset):
        indices = hashlib.blake2b(
            array("q", map(int, dataset.indices)).tobytes(), digest_size=8
        ).hexdigest()
        return (len(dataset), indices, fingerprint(dataset.dataset))
    if type(dataset) is TensorDataset and len(dataset):
        dense = [tensor for tensor in dataset.tensors if tensor.layout == torch.strided]
        edges = [str(tensor[place].tolist()) for tensor in dense for place in (0, -1)]
        return (len(dataset), hashlib.blake2b("".join(edges).encode(), digest_size=8).hexdigest())
    if isinstance(dataset, ArrayDataset):
        return dataset.fingerprint()
    if isinstance(dataset, ConcatDataset):
        return tuple(fingerprint(part) for part in dataset.datasets)
    length = len(dataset) if hasattr(dataset, "__len__") else -1
    return (length, *(mark_of(entries) for entries in _entries_of(dataset, length)))


def _entries_of(dataset: Any, length: int) -> list[list[Any]]:
    """Return some of a dataset's entries for its samples: file names, columns of a table."""
    if length <= 0:
        return []
    if type(dataset) in (list, tuple):
        return [[dataset[place] for place in (0, length // 2, length - 1)]]
    places = range(0, length, max(1, length // MOST_SAMPLES))
    if type(dataset).__module__.partition(".")[0] == "datasets" and hasattr(dataset, "_data"):
        return [_rows_of_table(dataset, [0, length // 2, length - 1])]
    lists = [
        value
        for value in getattr(dataset, "__dict__", {}).values()
        if isinstance(value, list | tuple)
    ]
    columns = [[value[place] for place in places] for value in lists if len(value) == length]
    return [column for column in columns if all(map(_is_name, column))]


def _rows_of_table(dataset: Any, places: list[int]) -> list[Any]:
    """Return rows of a Hugging Face dataset as stored; its transforms may draw random numbers."""
    indices = dataset._indices
    stored = places if indices is None else [indices.column(0)[place].as_py() for place in places]
    return [dataset._data.slice(place, 1).to_pydict() for place in stored]


def _is_name(entry: Any) -> bool:
    if isinstance(entry, list | tuple):  # a file and its class
        return bool(entry) and _is_name(entry[0])
    return isinstance(entry, str | os.PathLike)


def _refusal(what: str, *, fix: str) -> UsageError:
    return UsageError.of(
        "data-not-shardable",
        what,
        where="session.loader(...)",
        why="every rank would see all samples, or none would know which are its own",
        fix=fix,
    )
