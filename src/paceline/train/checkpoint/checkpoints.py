"""The checkpoints of one run folder, as one rank sees them."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.train.checkpoint import findings, folder, manifest, shares, verification
from paceline.train.checkpoint.background import Background, await_all
from paceline.train.checkpoint.exchange import Exchange
from paceline.train.checkpoint.manifest import Manifest, Saved
from paceline.train.checkpoint.staging import Staging
from paceline.world import World

if TYPE_CHECKING:
    from paceline.train.checkpoint.write import Draft

_SEEN_S = 3.0  # how long a network file system may take to show a new file to another machine


class Checkpoints:
    """The checkpoints of one run folder, as one rank sees them.

    Making one has no effect and is not a collective, nor does it import torch's checkpoints, which takes most of a
    second; ``save``, ``find`` and ``load`` are collectives: all
    ranks call them, in the same order. What fails on one rank is raised on all.

    A state is a flat mapping of names to tensors, plain or sharded (DTensor), or to objects that can be
    pickled. Everything is the same on all ranks, except what is sharded and what stands under
    ``rank/<r>/``, which only rank r has.

    Args:
        folder: Where they are, a folder each; made at the first save.
        world: The ranks.
        device: Device of this rank.
        guard: Called on rank 0 before a checkpoint is committed; raises if the folder belongs to another run now.
    """

    def __init__(
        self, folder: Path, *, world: World, device: torch.device, guard: Callable[[], None] = lambda: None
    ) -> None:
        self._folder, self._guard = Path(folder), guard
        self._world = world
        self._device = device
        self._exchange = Exchange(world)
        self._staging = Staging(device)
        self._background = Background()
        self._is_checked = False
        self._run = secrets.token_hex(4)  # rank 0's is written; of what was loaded from this folder, its own

    def save(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        metric: float | torch.Tensor | None = None,
        mode: str = "max",
        keep_last: int = 2,
        keep_best: int = 1,
        wait: bool = False,
    ) -> None:
        """Save a state; a collective.

        Returns when the state has been copied and may change; the writing goes on in the background. A save
        waits for the one before it, so there is one in flight at most.

        Args:
            state: What to save. Each rank copies and writes its share of what all ranks have.
            step: Number of optimizer steps.
            epoch: Current epoch.
            metric: What this checkpoint is judged by.
            mode: ``"max"`` if a greater metric is better, ``"min"`` if a smaller one is.
            keep_last: How many of the latest of this training are kept, this one included. What another one left
                in the folder is never deleted.
            keep_best: How many of its best are kept beside them, of those with this mode and of those with the other.
            wait: Return only when it is committed. Saves the memory of the copy on a CPU.

        Raises:
            UsageError: An option makes no sense, an object cannot be pickled, or ranks differ.
            SetupError: The folder cannot be written to, or is not the same for all ranks.
            RunError: The disk is full. This, like all that goes wrong after the copying, is raised by the
                next ``save``, ``wait``, ``find``, ``load`` or ``close``.
        """
        from paceline.train.checkpoint import write

        _check_options(metric=metric, mode=mode, keep_last=keep_last, keep_best=keep_best)
        self._prepare()
        if not self._is_checked:
            self._check_folder()
            self._is_checked = True
        told = Manifest(
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
        options: dict[str, Any] = {"keep": write.Keep(keep_last, keep_best), "guard": self._guard}
        make_draft = self._draft(state, copy=not wait or self._device.type != "cpu")
        work = partial(write.write, make_draft, self._folder, told, exchange=self._exchange, **options)
        if wait:
            work()
        else:
            self._background.start(work)

    def wait(self) -> None:
        """Wait until the save in flight is committed.

        Raises:
            PacelineError: It failed.
        """
        self._background.wait()

    def close(self) -> None:
        """Wait for the save in flight, and give back what was taken; may be called twice.

        Raises:
            PacelineError: The save failed.
        """
        try:
            self._background.wait()
        finally:
            self._staging.clear()
            self._exchange.close()

    def find(self, which: str | os.PathLike[str], *, without: Collection[str] = ()) -> Saved | None:
        """Return a checkpoint; a collective. Rank 0 looks and tells all.

        Args:
            which: ``"latest"`` (the one that was committed last), ``"best"``, or a path: the folder of a
                checkpoint, also by its name alone, or a run folder, meaning its latest.
            without: Folders of checkpoints that are damaged: the latest is looked for among the others.

        Returns:
            The checkpoint; None if the latest or best is asked for and there is none at all.

        Raises:
            UsageError: There is nothing at the path, or what is there was not committed; or the best is
                asked for and none has a metric.
            RunError: It is damaged.
        """
        # At the start of a script, where it waits anyway, and not in its first save.
        from paceline.train.checkpoint import read, write  # noqa: F401  imported here to be there later

        self._prepare()
        await_all()  # of a session before this one, whose latest would be missed
        return self._exchange.ask_main(lambda: self._find(which, without))

    def find_whole_before(self, damaged: str) -> tuple[Path, int] | None:
        """Return the latest checkpoint before a damaged one that is whole, and its steps; a collective.

        Args:
            damaged: The folder of the damaged one.
        """
        self._prepare()
        return self._exchange.ask_main(lambda: verification.latest_whole(self._folder, before=Path(damaged)))

    def load(
        self, saved: Saved, into: Mapping[str, torch.Tensor], beside: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint; a collective.

        Objects are unpickled: load only what you trust.

        Args:
            saved: What ``find`` has returned.
            into: Tensors to fill in place: plain or sharded, on any device, of any type.
            beside: Names of what else the models have; None if that is not known.

        Returns:
            Everything else in the checkpoint by its name: new tensors on the CPU, and objects, whose tensors are on
            this rank's device if they were on a GPU. What belongs to other ranks is left out.

        Raises:
            UsageError: It is of another model. Nothing was overwritten.
            RunError: It is damaged. Nothing was overwritten.
            SetupError: A rank does not see the folder.
        """
        from paceline.train.checkpoint import read

        self._prepare()
        rank, world_size = self._world.rank, self._world.world_size
        self._exchange.gather(lambda: read.check(saved, into, beside))
        self._exchange.gather(
            lambda: read.check_files(saved, rank=rank, world_size=world_size, where=self._exchange.where)
        )
        others = [name for name in shares.names_for(saved, rank) if name not in into]
        loaded: list[dict[str, Any]] = []
        self._exchange.gather(lambda: loaded.append(read.read(saved, into, others, device=self._device)))
        # Trainings that begin with the same checkpoint of another folder are not one: each is judged by itself.
        if saved.path.resolve().parent == self._folder.resolve():
            self._run = saved.run
        return loaded[0]

    def _prepare(self) -> None:
        self._background.wait()
        self._exchange.open()

    def _draft(self, state: Mapping[str, Any], *, copy: bool) -> Callable[[], Draft]:
        """Copy this rank's share now; what goes wrong is kept until the others can hear of it."""
        from paceline.train.checkpoint import write

        try:
            made = write.draft(
                state,
                rank=self._world.rank,
                world_size=self._world.world_size,
                where=self._exchange.where,
                copy=self._staging.copy if copy else _as_they_are,
            )
        except Exception as error:
            return partial(_raise, error)
        return lambda: made

    def _find(self, which: str | os.PathLike[str], without: Collection[str]) -> Saved | None:
        from paceline.train.checkpoint import read

        if which == "latest":
            listed = folder.list_paths(self._folder)
            paths = {serial: path for serial, path in listed.items() if str(path) not in without}
            return read.describe(folder.latest(paths)) if paths else None
        if which == "best":
            committed = folder.list_committed(self._folder)
            best = manifest.find_best(committed)
            if committed and not best:
                raise findings.no_metric(self._folder, len(committed)).error()
            return read.describe(best.path) if best else None
        by_name = self._folder / which
        return read.describe(folder.resolve(by_name if by_name.is_dir() else Path(which)))

    def _check_folder(self) -> None:
        """Make the folder, and see that all ranks mean the same one."""
        probe = self._exchange.ask_main(self._make_probe)
        try:
            seen = self._exchange.gather(lambda: (_is_seen(self._folder / probe), self._exchange.where))
        finally:
            if self._exchange.is_main:
                (self._folder / probe).unlink(missing_ok=True)
        if blind := [where for is_seen, where in seen if not is_seen]:
            raise findings.not_shared(self._folder, blind=blind).error()

    def _make_probe(self) -> str:
        name = f".probe-{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            folder.remove_stale(self._folder)
            (self._folder / name).touch()
        except OSError as error:
            where, free = self._exchange.where, folder.free_bytes(self._folder)
            failure = findings.of_os_error(error, folder=self._folder, where=where, needed_bytes=0, free_bytes=free)
            raise failure.error() from error
        return name


def _as_they_are(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
    return dict(tensors), lambda: None


def _raise(error: Exception) -> Draft:
    raise error


def _is_seen(path: Path) -> bool:
    until = time.monotonic() + _SEEN_S
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # network file systems look again at a folder that is opened
    return True


def _check_options(*, metric: Any, mode: str, keep_last: int, keep_best: int) -> None:
    try:
        manifest.clean_metric(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise findings.bad_option("metric", metric, "a number", fix="save(metric=accuracy)") from None
    if mode not in manifest.MODES:
        raise findings.bad_option("mode", mode, "'max' or 'min'", fix="save(metric=accuracy, mode='max')")
    for name, value, least in (("keep_last", keep_last, 1), ("keep_best", keep_best, 0)):
        if not isinstance(value, int) or value < least:
            raise findings.bad_option(name, value, f"a whole number from {least} on", fix=f"save({name}={least})")
