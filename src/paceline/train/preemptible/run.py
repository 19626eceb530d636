"""The public function ``preemptible``, and the object that it returns."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import UsageError
from paceline.machine import own_world
from paceline.rundir.files import RunDir
from paceline.train import runtime
from paceline.train.checkpoint import Checkpoints
from paceline.train.preemptible import objects as sorting
from paceline.train.preemptible.agreement import Agreement
from paceline.train.preemptible.objects import WHERE
from paceline.train.preemptible.progress import LoopProgress
from paceline.train.session import stopping
from paceline.train.session.ranks import MainPrinter
from paceline.train.session.run_folder import SessionFolder
from paceline.train.session.stopping import CleanStop
from paceline.world import World


def preemptible(
    *objects: Any,
    loader: Any,
    run_dir: str | os.PathLike[str] | RunDir | None = None,
    **named: Any,
) -> PreemptibleRun:
    """Make a user's training loop stop with a checkpoint, and resume from it.

    For raw DDP, Lightning Fabric, Accelerate and plain loops; call it when everything is set up,
    before the loop:

        run = paceline.preemptible(model, optimizer, scheduler, loader=loader)
        for epoch in range(run.epoch, 10):
            for x, y in loader:
                ...

    At SIGTERM, SIGUSR1, SIGUSR2, Ctrl-C or ``run.stop()`` all ranks save a checkpoint after the
    same step, when the loop asks for its next batch, and end with exit status 75 (resumable). The
    next start with the same command restores all objects and begins the loop where it stopped.
    Without ``run.epoch`` the loops over the loader are empty for epochs that are done.

    Args:
        *objects: Models, optimizers, schedulers, loss scalers and other objects with
            ``state_dict`` and ``load_state_dict``; wrapped by DDP, ``torch.compile``, Fabric or
            Accelerate, or not. None is left out.
        loader: The loader that the loop is over, or a list of several. A step is complete when the
            first one is asked for its next batch.
        run_dir: Run folder of the checkpoints, as for ``Session``.
        **named: Further objects, with their names in the checkpoint. The others are named after
            their class.

    Returns:
        The run: its epoch, its step and its folder.

    Raises:
        UsageError: Model, optimizer or loader are missing; the process group is not initialized;
            the checkpoint is of other objects; or the folder belongs to another run.
        RunError: The checkpoint is damaged.
    """
    loaders = list(loader) if isinstance(loader, list | tuple) else [loader]
    return PreemptibleRun(sorting.sort(objects, named), loaders, run_dir)


class PreemptibleRun:
    """A user's training loop that can be stopped and resumed; see ``preemptible``."""

    def __init__(
        self,
        objects: sorting.Objects,
        loaders: list[Any],
        run_dir: str | os.PathLike[str] | RunDir | None,
    ) -> None:
        world = _world_of_script()
        printer = MainPrinter(is_main=world.rank == 0)
        self._stop = CleanStop(runtime.maxima, alone=world.world_size == 1)
        self._place = SessionFolder(run_dir or None, world=world)
        checkpoints = Checkpoints(
            self.run_dir.checkpoints,
            world=world,
            device=objects.device,
            guard=self._place.require_own,
        )
        self._progress = LoopProgress(
            objects,
            loaders,
            world=world,
            checkpoints=checkpoints,
            place=self._place,
            agreement=_agreement(self._stop, world, objects.device),
            say=printer.say_once,
        )
        # At the end of the process, stopping.finish runs before the folder is released.
        weakref.finalize(self._progress, self._place.release_soon).atexit = False
        atexit.register(stopping.finish, checkpoints, None)
        self._progress.restore()
        self._place.claim()
        runtime.keep_groups()  # also that of checkpoints, which the script does not know
        self._stop.arm()

    @property
    def epoch(self) -> int:
        """Number of loops over the loader that are done: the epoch to begin with."""
        return self._progress.epoch

    @property
    def step(self) -> int:
        """Number of steps of the first optimizer, also before a resume."""
        return self._progress.step

    @property
    def run_dir(self) -> RunDir:
        """Run folder of the checkpoints."""
        return self._place.run_dir

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of the epochs, from the interrupted one on.

        Unlike with ``range(run.epoch, num_epochs)``, an epoch may have several loops over the
        loader, or none.
        """
        for epoch in range(self.epoch, num_epochs):
            self._progress.begin_epoch(epoch)
            yield epoch

    def stop(self) -> None:
        """Make all ranks save a checkpoint and exit with status 75 after the next step."""
        self._stop.ask("run.stop()")


def _world_of_script() -> World:
    described = own_world.read()
    world = runtime.actual_world(described)
    if world.world_size == 1 or dist.is_initialized():
        return world
    raise UsageError.of(
        "process-group-not-initialized",
        f"this is rank {world.rank} of {world.world_size}, and there is no process group yet",
        where=WHERE,
        why="all ranks have to agree on the step after which they stop",
        fix="call it after init_process_group (or Fabric's launch, or Accelerator())",
    )


def _agreement(stop: CleanStop, world: World, device: torch.device) -> Agreement:
    store = None
    on_cpu = device.type == "cpu"
    if world.world_size > 1:
        number = runtime.number_of_call("preemptible")
        store = runtime.store().below(f"paceline/preemptible/{number}")
    return Agreement(
        lambda: stop.asked_by,
        store,
        rank=world.rank,
        world_size=world.world_size,
        synchronize=(lambda: None) if on_cpu else torch.accelerator.synchronize,
    )
