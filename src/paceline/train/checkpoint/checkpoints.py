"""Save, find and load the checkpoints of one run folder, as one rank."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from paceline.rundir import manifest, owned
from paceline.rundir.committed import list_committed, list_paths
from paceline.rundir.manifest import Manifest, Saved
from paceline.train.checkpoint import division, findings, folder
from paceline.train.checkpoint.exchange import RankExchange
from paceline.train.checkpoint.staging import Background, Staging, await_all
from paceline.world import World

if TYPE_CHECKING:
    from paceline.train.checkpoint.write import Draft

T = TypeVar("T")
_VISIBLE_S = 3.0  # a network file system may need this long to show a new file to another machine


class Checkpoints:
    """The checkpoints of one run folder, as one rank sees them.

    The constructor has no effects, is not a collective, and does not import torch's checkpoint
    package, which takes most of a second. ``save``, ``find`` and ``load`` are collectives: all
    ranks call them, in the same order. An error on one rank is raised on all ranks.

    A state is a flat mapping from names to tensors, plain or sharded (DTensor), or to picklable
    objects. Everything is the same on all ranks, except sharded tensors and the names under
    ``rank/<r>/``, which only rank r has.
    """

    def __init__(
        self,
        folder: Path,  # with a subfolder for each; created by the first save
        *,
        world: World,
        device: torch.device,  # of this rank
        # called on rank 0 before a commit; raises if the folder now belongs to another run
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._guard = Path(folder), guard
        self._world = world
        self._device = device
        self._exchange = RankExchange(world)
        self._staging = Staging(device)
        self._background = Background()
        self._is_checked = False
        self._run = secrets.token_hex(4)  # rank 0's is written; load replaces it

    def save(
        self,
        state: Mapping[str, Any],  # each rank copies and writes its share of what all ranks have
        *,
        step: int,  # optimizer steps
        epoch: int,
        metric: float | torch.Tensor | None = None,  # for choosing the best; None without a metric
        mode: str = "max",  # "max" if a greater metric is better, or "min"
        # of this training run, including this one; those of others are never deleted
        keep_last: int = 2,
        keep_best: int = 1,  # of each mode, beside them
        # return only after the commit, which saves the memory of the copy on a CPU
        wait: bool = False,
    ) -> None:
        """Save a state; a collective.

        Returns when the state has been copied and may change; writing continues in the background.
        A save waits for the one before it, so at most one is in flight. Raises UsageError if an
        option is invalid, an object cannot be pickled, or ranks differ; SetupError if the folder
        cannot be written to, or is not the same for all ranks; RunError if the disk is full. This,
        like every error after the copy, is raised by the next ``save``, ``wait``, ``find``,
        ``load`` or ``close``.
        """
        from paceline.train.checkpoint import write

        _check_options(metric=metric, mode=mode, keep_last=keep_last, keep_best=keep_best)
        self._prepare()
        if not self._is_checked:
            self._check_folder()
            self._is_checked = True
        description = Manifest(
            step=step,
            epoch=epoch,
            metric=manifest.clean_metric(metric),
            mode=mode,
            world_size=self._world.world_size,
            time_ns=time.time_ns(),
            torch=torch.__version__,
            files={},
            run=self._run,
        )
        make_draft = self._draft(state, copy=not wait or self._device.type != "cpu")
        work = partial(
            write.write,
            make_draft,
            self._folder,
            description,
            keep_last=keep_last,
            keep_best=keep_best,
            exchange=self._exchange,
            guard=self._guard,
        )
        if wait:
            self._write(work)
        else:
            self._background.start(partial(self._write, work))

    def prepare(self, num_bytes: int) -> None:
        """Let the first save of so many bytes on this rank be as quick as a later one."""
        self._staging.prepare(num_bytes)

    def wait(self) -> None:
        """Wait until the save in flight is committed; raise PacelineError if it failed."""
        self._background.wait()

    def close(self) -> None:
        """Wait for the save in flight, and release all resources; may be called twice.

        Raises PacelineError if the save failed.
        """
        try:
            self._background.wait()
        finally:
            self._staging.clear()
            self._exchange.close()

    def find(self, which: str | os.PathLike[str], *, without: Collection[str] = ()) -> Saved | None:
        """Return a checkpoint; a collective. Rank 0 searches and sends the result to all ranks.

        ``which`` is ``"latest"`` (last committed), ``"best"``, or a path: the folder of a
        checkpoint, its name alone, or a run folder, meaning its latest. The search for the latest
        skips the folders of damaged checkpoints in ``without``. Returns None if the latest or best
        is requested and the folder is empty. Raises UsageError if the path does not exist or was
        not committed, or the best is requested and no checkpoint has a metric; RunError if the
        checkpoint is damaged.
        """
        # Import now, at the start of a script, rather than in its first save.
        from paceline.train.checkpoint import read, write  # noqa: F401  imported for later use

        self._prepare()
        await_all()  # an earlier session of this process may still be writing its latest
        return self._exchange.ask_main(lambda: self._find(which, without))

    def find_intact_before(self, damaged: str) -> tuple[Path, int] | None:
        """Return the latest intact checkpoint before a damaged one, and its step; a collective."""
        self._prepare()
        return self._exchange.ask_main(
            lambda: folder.latest_intact(self._folder, before=Path(damaged))
        )

    def load(
        self,
        saved: Saved,  # a result of ``find``
        # filled in place: plain or sharded, on any device, of any type
        into: Mapping[str, torch.Tensor],
        # names of the models' other entries; None if unknown
        beside: Collection[str] | None = None,
        own: int | None = None,  # the rank whose own entries are loaded; this rank if None
        *,
        trust: bool = False,  # unpickle objects of any class, which may run code of the file
    ) -> dict[str, Any]:
        """Load a checkpoint; a collective.

        Returns all entries but ``into`` by name: new tensors on the CPU, and objects, whose tensors
        are on this rank's device if they were on a GPU. Entries of other ranks are left out. Raises
        UsageError if the checkpoint is of another model, or holds objects of classes that are not
        plain data (see ``unpickling.load``); RunError if it is damaged, and nothing was
        overwritten; SetupError if a rank does not see the folder.
        """
        from paceline.train.checkpoint import read

        self._prepare()
        rank, world_size = self._world.rank, self._world.world_size
        self._exchange.gather(lambda: read.check(saved, into, beside))
        self._exchange.gather(
            lambda: read.check_files(
                saved, rank=rank, world_size=world_size, where=self._exchange.where
            )
        )
        names = division.names_for(saved, rank if own is None else own)
        others = [name for name in names if name not in into]
        loaded: list[dict[str, Any]] = []
        self._exchange.gather(
            lambda: loaded.append(read.read(saved, into, others, device=self._device, trust=trust))
        )
        # Runs that start from one checkpoint of another folder are different: each has its own
        # best.
        if saved.path.resolve().parent == self._folder.resolve():
            self._run = saved.run
        return loaded[0]

    def agree(self, work: Callable[[], T]) -> T:
        """Return this rank's result of ``work``; a collective, in which all ranks fail together."""
        self._prepare()
        results: list[T] = []
        self._exchange.gather(lambda: results.append(work()))
        return results[0]

    def ask_main(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` on rank 0, on all ranks; a collective."""
        self._prepare()
        return self._exchange.ask_main(work)

    def _write(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._staging.settle()

    def _prepare(self) -> None:
        self._background.wait()
        self._exchange.open()

    def _draft(self, state: Mapping[str, Any], *, copy: bool) -> Callable[[], Draft]:
        """Copy this rank's share now; raise an exception later, where all ranks learn of it."""
        from paceline.train.checkpoint import write

        try:
            draft = write.draft(
                state,
                rank=self._world.rank,
                world_size=self._world.world_size,
                where=self._exchange.where,
                copy=self._staging.copy if copy else _without_copies,
            )
        except Exception as error:
            return partial(_raise, error)
        return lambda: draft

    def _find(self, which: str | os.PathLike[str], without: Collection[str]) -> Saved | None:
        from paceline.train.checkpoint import read

        if which == "latest":
            listed = list_paths(self._folder)
            paths = {serial: path for serial, path in listed.items() if str(path) not in without}
            return read.describe(folder.latest(paths)) if paths else None
        if which == "best":
            committed = list_committed(self._folder)
            best = manifest.find_best(committed)
            if committed and not best:
                raise findings.no_metric(self._folder, len(committed))
            return read.describe(best.path) if best else None
        by_name = self._folder / which
        return read.describe(folder.resolve(by_name if by_name.is_dir() else Path(which)))

    def _check_folder(self) -> None:
        """Create the folder, and check that all ranks see the same one."""
        probe = self._exchange.ask_main(self._make_probe)
        try:
            answers = self._exchange.gather(
                lambda: (_becomes_visible(self._folder / probe), self._exchange.where)
            )
        finally:
            if self._exchange.is_main:
                owned.delete(self._folder / probe)
        if blind := [where for is_visible, where in answers if not is_visible]:
            raise findings.not_shared(self._folder, blind=blind)

    def _make_probe(self) -> str:
        name = f".probe-{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            folder.remove_stale(self._folder)
            owned.append(self._folder / name).close()
        except OSError as error:
            raise folder.not_written(self._folder, error, where=self._exchange.where) from error
        return name


def _without_copies(
    tensors: Mapping[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
    return dict(tensors), lambda: None


def _raise(error: Exception) -> Draft:
    raise error


def _becomes_visible(path: Path) -> bool:
    deadline = time.monotonic() + _VISIBLE_S
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes a network file system refresh its view of the folder
    return True


def _check_options(*, metric: Any, mode: str, keep_last: int, keep_best: int) -> None:
    try:
        manifest.clean_metric(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise findings.bad_option(
            "metric", metric, "a number", fix="save(metric=accuracy)"
        ) from None
    if mode not in manifest.MODES:
        raise findings.bad_option(
            "mode", mode, "'max' or 'min'", fix="save(metric=accuracy, mode='max')"
        )
    for name, value, least in (("keep_last", keep_last, 1), ("keep_best", keep_best, 0)):
        if not isinstance(value, int) or value < least:
            raise findings.bad_option(
                name, value, f"a whole number from {least} on", fix=f"save({name}={least})"
            )
