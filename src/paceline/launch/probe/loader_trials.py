"""Try other settings of a rank's training DataLoader while its script trains: ``paceline tune``.

The script is not changed and not restarted. ``DataLoader.__iter__`` returns a loop that asks here
for every batch. Which loader trains is known when an optimizer step has followed one of its
batches. From then on its loops read from a copy of the loader with the settings of the latest
command. The copy has the script's dataset, collate function, worker function and generator. It
takes its requests from the script's own sampler or batch sampler, again and again: a loop over it
does not end, so that a script's short epoch does not end a measurement.
"""

from __future__ import annotations

import collections
import copy
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from paceline import counters
from paceline.launch.probe.loader_commands import (
    CACHED,
    END,
    WRITTEN,
    CommandFiles,
    Delivery,
    LoaderCommand,
    LoaderFacts,
    LoaderSetting,
)
from paceline.launch.probe.loader_maker import Maker, Makers
from paceline.launch.probe.orders import parts_of, size_of
from paceline.machine import accelerator
from paceline.rundir import owned
from paceline.text.plain_data import read_as

_MOST_REQUESTS = 4096  # that are kept, for samplers that yield an epoch only once
_COPIED_BYTES = 1 << 20  # labels and indices, which a script may change in place
_MOST_DEPTH = 8  # of containers in a batch


def install(
    slot: memoryview[int],  # in which the probe counts steps
    folder: Path,
    local_rank: int,
    is_users: Callable[[str], bool],  # whether a file is the user's
) -> None:
    """Follow the commands in a folder."""
    from torch.utils.data import DataLoader

    trials = LoaderTrials(slot, CommandFiles(folder), local_rank)
    Makers(is_users).watch()
    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def tried_iterate(self: Any) -> Any:
        return ServedLoop(self, functools.partial(iterate, self), trials)

    DataLoader.__iter__ = tried_iterate  # type: ignore[method-assign]
    _keep_at_last_step()


def _keep_at_last_step() -> None:
    """Let OneCycleLR keep its last learning rate: it raises an error after ``total_steps``.

    A loop that does not end takes more steps than a script has planned.
    """
    from torch.optim.lr_scheduler import OneCycleLR

    step = OneCycleLR.step

    @functools.wraps(step)
    def bounded_step(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.last_epoch < self.total_steps:
            step(self, *args, **kwargs)

    OneCycleLR.step = bounded_step  # type: ignore[method-assign]


class TrialServer(Protocol):
    """What serves the batches of a loop."""

    def next_batch(self, loop: ServedLoop) -> Any:
        """Return the next batch of a loop."""


class ServedLoop:
    """A loop over a DataLoader: what its ``__iter__`` returns."""

    def __init__(
        self, loader: Any, iterate: Callable[[], Iterator[Any]], server: TrialServer
    ) -> None:
        self.loader = loader
        self._iterate, self._server = iterate, server
        self._written: Iterator[Any] | None = None

    def __iter__(self) -> ServedLoop:
        return self

    def __next__(self) -> Any:
        return self._server.next_batch(self)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.written(), name)

    def written(self) -> Iterator[Any]:
        """Return the iterator of the loader as the script wrote it; created once."""
        if self._written is None:
            self._written = self._iterate()
        return self._written


class _Requests:
    """What a sampler requests, again and again: the sampler of a copied loader."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._epoch: Iterator[Any] = iter(sampler)
        self._recent: collections.deque[Any] = collections.deque(maxlen=_MOST_REQUESTS)

    def __iter__(self) -> _Requests:
        return self

    def __next__(self) -> Any:
        request = next(self._epoch, None)
        if request is None:
            self._epoch = iter(self._sampler)
            request = next(self._epoch, None)
        if request is None:  # the sampler yields one epoch only
            self._epoch = iter(list(self._recent))
            request = next(self._epoch)
        self._recent.append(request)
        return request

    def __len__(self) -> int:
        return len(self._sampler)


class LoaderTrials:
    """Serves the training loop of a rank, and records when it got its batches."""

    def __init__(self, slot: memoryview[int], files: CommandFiles, local_rank: int) -> None:
        self._slot, self._files, self._local_rank = slot, files, local_rank
        self._process = os.getpid()  # a worker may have its own DataLoader
        self._loader: Any = None  # whose batches an optimizer step follows
        self._last: tuple[Any, Any] | None = None  # the loader read last, and its batch
        self._command = LoaderCommand(0, WRITTEN)
        self._version: tuple[int, int] | None = None  # of the command file
        self._requests: _Requests | None = None
        self._source: Iterator[Any] | None = None
        self._first_batch: Any = None
        self._written_setting: LoaderSetting | None = None
        self._records = owned.open_to_write(files.deliveries(local_rank), owned.APPEND)

    def next_batch(self, loop: ServedLoop) -> Any:
        """Return the next batch of a loop."""
        if os.getpid() != self._process:
            return next(loop.written())
        has_trained = self._slot[counters.STEPS] > 0
        if self._loader is None and self._last is not None and has_trained:
            self._recognise(*self._last)
        if not self._trains(loop.loader):
            batch = next(loop.written())
            self._last = loop.loader, batch
            return batch
        requested_ns = monotonic_ns()
        self._look()
        batch = self._fetch(loop)
        delivery = Delivery(self._command.number, requested_ns, monotonic_ns())
        os.write(self._records, delivery.pack())
        return batch

    def _trains(self, loader: Any) -> bool:
        """Return whether a loader is the training loader, or its successor in another epoch."""
        own = self._loader
        if own is None or loader is own:
            return own is not None
        return loader.dataset is own.dataset and loader.batch_size == own.batch_size

    def _recognise(self, loader: Any, batch: Any) -> None:
        """Remember the loader that trains, and write what is seen of it."""
        self._loader, self._first_batch, self._last = loader, batch, None
        facts = facts_of(loader, batch)
        self._written_setting = facts.setting
        owned.write_whole(self._files.facts(self._local_rank), json.dumps(asdict(facts)))

    def _look(self) -> None:
        """Follow a new command, if there is one."""
        try:
            status = os.stat(self._files.command)
        except FileNotFoundError:
            return
        version = status.st_ino, status.st_mtime_ns
        if version == self._version:
            return
        self._version = version
        self._command = read_as(LoaderCommand, json.loads(self._files.command.read_text()))
        self._release()
        if self._command.source == END:
            os._exit(0)
        setting = self._command.setting or self._written_setting
        assert setting is not None, "a loader was recognised"
        _apply(setting)

    def _fetch(self, loop: ServedLoop) -> Any:
        source = self._command.source
        if source == CACHED:
            return copied(self._first_batch)
        if source == WRITTEN:
            return next(loop.written())
        try:
            return self._fetch_changed(loop)
        except StopIteration:
            raise
        except Exception as error:
            self._fail(error)
            return next(loop.written())

    def _fetch_changed(self, loop: ServedLoop) -> Any:
        if self._source is None:
            self._source = self._open(loop.loader)
        try:
            return next(self._source)
        except StopIteration:  # a stream has ended
            self._source = self._open(loop.loader)
            return next(self._source)

    def _open(self, loader: Any) -> Iterator[Any]:
        """Return an iterator of the loader with the settings of the command."""
        setting = self._command.setting
        assert setting is not None, "a change has a setting"
        if self._requests is None and not is_stream(loader):
            self._requests = _Requests(loader._index_sampler)
        return open_with(loader, setting, self._requests)

    def _fail(self, error: Exception) -> None:
        """Report that a setting does not work, and read as the script wrote it."""
        lines = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {lines[0]}"
        if len(lines) > 1:  # torch puts the traceback of a worker into the message
            message = lines[-1]
        entry = {"number": self._command.number, "message": message}
        with owned.append(self._files.failures(self._local_rank)) as file:
            file.write(json.dumps(entry).encode() + b"\n")
        self._release()
        self._command = LoaderCommand(self._command.number, WRITTEN)

    def _release(self) -> None:
        """End the workers of the last command at once."""
        shut_down = getattr(self._source, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
        self._source = None


def open_with(loader: Any, setting: LoaderSetting, requests: Any) -> Iterator[Any]:
    """Return an iterator over a copy of torch's DataLoader, or a subclass, with other settings.

    ``requests`` is the sampler of the copy; None for a stream, which has none.
    """
    from torch.utils.data import dataloader

    changed = copy.copy(loader)
    changed.__dict__.update(  # torch refuses to set some of them on a DataLoader
        num_workers=setting.num_workers,
        prefetch_factor=setting.prefetch_factor or None,
        pin_memory=setting.pin_memory,
        persistent_workers=False,
        _iterator=None,
    )
    if requests is not None:
        key = "sampler" if loader.batch_sampler is None else "batch_sampler"
        changed.__dict__[key] = requests
    if setting.num_workers:
        return dataloader._MultiProcessingDataLoaderIter(changed)
    return dataloader._SingleProcessDataLoaderIter(changed)


def is_stream(loader: Any) -> bool:
    """Return whether a loader reads an IterableDataset."""
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def facts_of(loader: Any, batch: Any) -> LoaderFacts:
    """Return what is seen of a loader and a batch of it."""
    import torch

    maker = getattr(loader, "_paceline_maker", Maker())
    return LoaderFacts(
        setting=LoaderSetting(
            num_workers=loader.num_workers,
            prefetch_factor=(loader.prefetch_factor or 2) if loader.num_workers else 0,
            pin_memory=bool(loader.pin_memory),
            threads=torch.get_num_threads(),
        ),
        persistent_workers=bool(loader.persistent_workers),
        batch_samples=size_of(batch)[0],
        batch_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch)),
        is_stream=is_stream(loader),
        on_gpu=accelerator.module_in_use() is not None,
        maker=maker.library,
        place=maker.place,
    )


def _apply(setting: LoaderSetting) -> None:
    import torch

    if torch.get_num_threads() != setting.threads:
        torch.set_num_threads(setting.threads)


def tensors_of(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors of a batch."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < _MOST_DEPTH:
        for child in parts_of(batch):
            yield from tensors_of(child, depth + 1)


def copied(batch: Any, depth: int = 0) -> Any:
    """Return a batch with its own containers and small tensors.

    A script may take entries out of a batch, or change its labels in place. Large tensors
    are not copied, because that would take time that reading the same batch does not need.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        is_small = batch.numel() * batch.element_size() <= _COPIED_BYTES
        return batch.clone() if is_small else batch
    if depth >= _MOST_DEPTH:
        return batch
    if isinstance(batch, collections.abc.MutableMapping):
        own = copy.copy(batch)
        for key, value in batch.items():
            own[key] = copied(value, depth + 1)
        return own
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copied(value, depth + 1) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(copied(value, depth + 1) for value in batch)
    return batch
