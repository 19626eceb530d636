"""Write a checkpoint: draft each rank's share, plan on rank 0, write the files, and commit.

A checkpoint is final once ``folder.commit`` has renamed its folder.

The parts of ``torch.distributed.checkpoint`` are called individually and not through its ``save``.
This way failures reach all ranks as findings, checksums travel with the results, and entries that
are the same on all ranks are divided before they are copied, so that each rank copies its share
only.
Each file is synced to the disk when it is closed, and has a size and checksum in the manifest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from paceline.rundir import manifest
from paceline.rundir.committed import list_committed
from paceline.rundir.files import RunDir, display_path
from paceline.rundir.manifest import FileInfo, Manifest
from paceline.text import terminal
from paceline.train.checkpoint import division, findings, folder
from paceline.train.checkpoint.exchange import RankExchange

_WRITEBACK_BYTES = 1 << 24
_LARGE_BYTES = 1 << 20  # from here on, a checksum takes longer than passing it to another thread


class CheckedFiles(FileSystem):
    """The file system, with a record of what was written to it."""

    def __init__(self) -> None:
        self.written: dict[str, FileInfo] = {}  # size and checksum of each written file, by name

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file; a written file is synced to the disk when the context ends."""
        if mode != "wb":
            with Path(path).open(mode) as plain:
                yield cast(io.IOBase, plain)
            return
        with Path(path).open(mode) as file:
            stream = _Checked(cast("IO[bytes]", file))
            try:
                yield stream
            except Exception as error:
                # After an error torch.save still ends its archive, which fails with a meaningless
                # error.
                raise stream.error or error from None
            file.flush()
            os.fsync(file.fileno())
        self.written[Path(path).name] = FileInfo(stream.num_bytes, stream.crc)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file, also in the record."""
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Checked(io.IOBase):
    """A file that is written sequentially; it cannot seek, which would invalidate the checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._pending = 0  # bytes written since the last writeback was started
        self.num_bytes = 0
        self.crc = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            if len(view) < _LARGE_BYTES:
                self._add(view)
                self._file.write(view)
            else:
                self._write_large(view)
        except OSError as error:
            self.error = self.error or error
            raise
        self.num_bytes += len(view)
        return len(view)

    def _write_large(self, view: memoryview) -> None:
        # Both calls release the GIL, so that the checksum takes CPU time but little wall time. A
        # plain thread, because an executor accepts no work while the interpreter shuts down, and
        # shutdown waits for the last checkpoint of a script.
        beside = threading.Thread(target=self._add, args=(view,), name="paceline-checksum")
        beside.start()
        try:
            self._file.write(view)
        finally:
            beside.join()  # the caller may reuse the memory afterwards
        self._start_writeback(len(view))

    def _add(self, view: memoryview) -> None:
        self.crc = zlib.crc32(view, self.crc)

    def _start_writeback(self, num_bytes: int) -> None:
        # Makes the kernel start writing now rather than at the sync, so that the disk works while
        # the rest is copied and summed. Despite the name DONTNEED, pages not yet on the disk are
        # kept.
        self._pending += num_bytes
        if self._pending >= _WRITEBACK_BYTES and hasattr(os, "posix_fadvise"):
            begin = self.num_bytes + num_bytes - self._pending
            os.posix_fadvise(self._file.fileno(), begin, self._pending, os.POSIX_FADV_DONTNEED)
            self._pending = 0

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        self._file.flush()

    def seekable(self) -> bool:
        return False


@contextlib.contextmanager
def without_inner_checksums() -> Iterator[None]:
    """Make torch.save leave out checksums in its archives: the whole file is summed, once.

    The setting is per thread (a context variable), so the user's torch.save is not affected.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


Copy = Callable[[Mapping[str, torch.Tensor]], tuple[dict[str, torch.Tensor], Callable[[], None]]]


@dataclass(frozen=True)
class Draft:
    """A rank's contribution to a checkpoint."""

    names: tuple[str, ...]  # name, type and shape of the entries that must be the same on all ranks
    planner: _WritePlanner  # holds the rank's share, and the memory to write it from
    plan: SavePlan  # the rank's share, as DCP's plan
    ready: Callable[[], None]  # must be called before that memory is read


@dataclass(frozen=True)
class _Offer:
    """The part of a rank's draft that is sent to rank 0."""

    digest: bytes
    plan: SavePlan


@dataclass(frozen=True)
class _Written:
    """The results and files of one rank."""

    results: list[WriteResult]
    files: dict[str, FileInfo]


@dataclass(frozen=True)
class _Order:
    """The folder and plan that rank 0 sends to a rank."""

    path: Path
    plan: SavePlan


class _WritePlanner(DefaultSavePlanner):
    """Plans with the tensors themselves and writes from their copies, which are not sharded."""

    def __init__(self, copies: Mapping[str, Any]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._copies[index.fqn]

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        return object  # objects are pickled already


def draft(state: Mapping[str, Any], *, rank: int, world_size: int, where: str, copy: Copy) -> Draft:
    """Return this rank's share of a state, copied.

    ``where`` is this rank and its host, for messages. ``copy`` copies tensors, or returns them
    unchanged.
    """
    share = _choose_share(state, rank, world_size)
    tensors = {
        name: _local(value) for name, value in share.items() if isinstance(value, torch.Tensor)
    }
    copies, ready = copy(tensors)
    objects = {
        name: _pickle(name, value, where) for name, value in share.items() if name not in tensors
    }
    planner = _WritePlanner({**copies, **objects})
    planner.set_up_planner({**share, **objects}, is_coordinator=rank == 0)
    plan = planner.create_local_plan()
    planner.state_dict = {}  # release the live tensors before the writing
    return Draft(_describe(state), planner, plan, ready)


def _choose_share(state: Mapping[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    shared = {
        name: value.nbytes if isinstance(value, torch.Tensor) else 0
        for name, value in state.items()
        if not isinstance(value, DTensor) and division.rank_of(name) is None
    }
    owners = division.share_out(shared, world_size)
    # Every rank holds a piece of a sharded tensor; DCP deduplicates pieces that several ranks
    # share.
    return {
        name: value
        for name, value in state.items()
        if owners.get(name, rank) == rank and division.rank_of(name) in (None, rank)
    }


def _local(value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return (value.to_local() if isinstance(value, DTensor) else value).detach()


def _pickle(name: str, value: Any, where: str) -> io.BytesIO:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:  # pickling runs code of the object
        raise findings.not_picklable(name, error, where=where) from error
    return buffer


def _describe(state: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} {value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else name
        for name, value in sorted(state.items())
        if division.rank_of(name) is None
    )


def write(
    make_draft: Callable[[], Draft],  # or raises an error that all ranks must get
    to: Path,  # folder of checkpoints
    description: Manifest,  # the manifest without files
    *,
    keep_last: int,  # numbers of latest and of best checkpoints to keep after the commit
    keep_best: int,
    exchange: RankExchange,
    # on rank 0 before the commit; raises if another run now owns the folder
    guard: Callable[[], None] = lambda: None,
) -> None:
    """Write a checkpoint, commit it, and delete those that are not kept; a collective."""
    work = _Work(to, description, exchange, guard)
    try:
        order = exchange.decide(lambda: work.offer(make_draft()), work.plan)
        if order is None:
            names = exchange.gather(lambda: make_draft().names)
            raise findings.different_states(exchange.where, division.differences(names))
        exchange.decide(lambda: work.write(order), work.commit)
    finally:
        work.clean()
    if exchange.is_main:
        committed = list_committed(to, is_strict=False)
        doomed = manifest.choose_doomed(
            committed, run=description.run, keep_last=keep_last, keep_best=keep_best
        )
        for checkpoint in doomed:
            if not RunDir(checkpoint.path).keep.exists():
                why = folder.remove(checkpoint.path)
                if why:
                    _say_that_it_stays(checkpoint.path, why)


@functools.cache  # once for each checkpoint, not at each save
def _say_that_it_stays(path: Path, why: str) -> None:
    terminal.say(f"the old checkpoint {display_path(path)} is not deleted: {why}")


class _Work:
    """The writing of one checkpoint; only rank 0 calls ``plan`` and ``commit``."""

    def __init__(
        self, to: Path, description: Manifest, exchange: RankExchange, guard: Callable[[], None]
    ) -> None:
        self._guard = guard
        self._to = to
        self._description = description
        self._exchange = exchange
        self._files = CheckedFiles()
        self._path: Path | None = None
        self._metadata = Metadata({})

    def offer(self, draft: Draft) -> _Offer:
        self._draft = draft
        return _Offer(hash_names(draft.names), draft.plan)

    def plan(self, offers: list[_Offer]) -> list[_Order | None]:
        if len({offer.digest for offer in offers}) > 1:
            return [None] * len(offers)
        plans, self._metadata = self._draft.planner.create_global_plan(
            [offer.plan for offer in offers]
        )
        with self._with_findings(needed_bytes=0):
            self._path = folder.begin(self._to, step=self._description.step)
        plans = self._writer(self._path).prepare_global_plan(plans)
        return [_Order(self._path, plan) for plan in plans]

    def write(self, order: _Order) -> _Written:
        plan = self._draft.planner.finish_plan(order.plan)
        self._draft.ready()
        needed_bytes = sum(item.tensor_storage_size() or 0 for item in plan.items)
        with self._with_findings(needed_bytes=needed_bytes), without_inner_checksums():
            done = self._writer(order.path).write_data(plan, self._draft.planner)
            return _Written(done.wait(), self._files.written)

    def commit(self, written: list[_Written]) -> list[None]:
        assert self._path is not None
        with self._with_findings(needed_bytes=0):
            results = [of_rank.results for of_rank in written]
            self._writer(self._path).finish(self._metadata, results)
            files = {**self._files.written}
            for of_rank in written:
                files.update(of_rank.files)
            self._guard()
            seconds = round((time.time_ns() - self._description.time_ns) / 1e9, 3)
            folder.commit(self._path, replace(self._description, files=files, seconds=seconds))
        return [None] * len(written)

    def clean(self) -> None:
        if self._path is not None and self._path.exists():
            folder.remove(self._path)  # not committed

    def _writer(self, path: Path) -> FileSystemWriter:
        # Files are synced when they are closed, and the data is on the CPU already.
        writer = FileSystemWriter(path, sync_files=False, per_thread_copy_ahead=0)
        writer.fs = self._files
        writer.set_up_storage_writer(self._exchange.is_main)
        return writer

    @contextlib.contextmanager
    def _with_findings(self, *, needed_bytes: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._exchange.where
            raise folder.not_written(
                self._to, error, where=where, needed_bytes=needed_bytes
            ) from error


def hash_names(names: tuple[str, ...]) -> bytes:
    """Return a digest that is equal on two ranks if their names are."""
    return hashlib.sha256("\n".join(names).encode()).digest()
