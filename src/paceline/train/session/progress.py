"""Track epochs, loaders and registered objects; save and restore them, and save and exit with
status 75 at a boundary.

``Periodic`` decides when a checkpoint is due between those that a script saves.
"""

from __future__ import annotations

import math
import operator
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from paceline import env
from paceline.errors import EXIT_UNFINISHED, Notice, UsageError, option_contradicted, option_invalid
from paceline.rundir.manifest import Saved
from paceline.train import runtime
from paceline.train.checkpoint import Checkpoints, portable
from paceline.train.data import (
    Loader,
    derive,
    device_random_state,
    seed_device,
    set_device_random_state,
)
from paceline.train.model.mesh import DataRanks
from paceline.train.session import restoring
from paceline.train.session.gradients import Gradients
from paceline.train.session.run_folder import SessionFolder
from paceline.train.session.stopping import CleanStop
from paceline.world import World

_WHERE = "session.save_every(...)"


class Periodic:
    """When checkpoints are due, as one rank sees it.

    All ranks count the same steps. Their clocks differ, so a checkpoint that is due by time is
    saved when all ranks agree that it is late on one of them.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,  # in seconds
    ) -> None:
        # number of latest checkpoints to keep; None until ``begin``
        self.keep_last: int | None = None
        self._clock = clock
        self._steps: int | None = None
        self._seconds: float | None = None
        self._saved_step, self._saved_at_s = 0, clock()

    def begin(self, *, steps: int | None, minutes: float | None, keep_last: int, step: int) -> None:
        """Save every so many steps or minutes from now on, whichever comes first.

        Raises UsageError if neither is given, or a value is not positive.
        """
        _check(steps, minutes, keep_last)
        self._steps, self.keep_last = steps, keep_last
        self._seconds = None if minutes is None else 60 * minutes
        self.note_saved(step)

    def note_saved(self, step: int) -> None:
        """Count from here: a checkpoint of this step was saved or restored."""
        self._saved_step, self._saved_at_s = step, self._clock()

    def is_late(self) -> bool:
        """Return whether this rank's clock says that a checkpoint is due."""
        return self._seconds is not None and self._clock() - self._saved_at_s >= self._seconds

    def is_due(self, step: int, *, is_late: bool) -> bool:
        """Return whether to save after a step; ``is_late``: ranks agreed that it is due."""
        if step == self._saved_step:
            return False
        is_due_by_steps = self._steps and step // self._steps > self._saved_step // self._steps
        return is_late or bool(is_due_by_steps)

    def keeping(self) -> dict[str, Any]:
        """Return which checkpoints to keep where the script has not saved any."""
        # All of the best: how many the script keeps is known from its first save on.
        keep_last = sys.maxsize if self.keep_last is None else self.keep_last
        return {"mode": "max", "keep_last": keep_last, "keep_best": sys.maxsize}


def _check(steps: Any, minutes: Any, keep_last: Any) -> None:
    if steps is None and minutes is None:
        raise _refusal("neither steps nor minutes is given")
    if steps is not None and not _is_count(steps):
        raise _refusal(f"steps={steps!r} is not a positive int")
    if minutes is not None and not _is_duration(minutes):
        raise _refusal(f"minutes={minutes!r} is not a positive number")
    if not _is_count(keep_last):
        raise _refusal(f"keep_last={keep_last!r} is not a positive int")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _refusal(what: str) -> UsageError:
    fix = "session.save_every(minutes=15), or session.save_every(steps=1000)"
    return option_invalid(what, where=_WHERE, fix=fix)


class SessionProgress:
    """The position of a training run, and the state that restores it."""

    def __init__(
        self,
        *,
        world: World,  # all ranks
        data: DataRanks,
        device: torch.device,
        seed: int,
        gradients: Gradients,
        checkpoints: Checkpoints,
        place: SessionFolder,  # run folder of the checkpoints
        say: Callable[[str], None],  # prints a line on rank 0, once
        # of this rank's generators from the first step on; None leaves them unchanged
        reseed: int | None,
    ) -> None:
        self.has_restored = False  # the training run was resumed from a checkpoint
        self._periodic = Periodic()
        # receives requests to stop, and lets all ranks agree on them
        self.stop = CleanStop(
            runtime.maxima, alone=world.world_size == 1, is_late=self._periodic.is_late
        )
        self._world, self._device, self._seed, self._data = world, device, seed, data
        self._gradients, self._checkpoints, self._say = gradients, checkpoints, say
        self._reseed, self._place = reseed, place
        self._uses_checkpoints = self._has_prepared = False
        # Weak references, because a loader's workers end with the loader. They end at once if
        # nothing else holds it. In a cycle the garbage collector closes its queues first, and waits
        # for seconds.
        self._loaders: list[weakref.ref[Loader]] = []
        self._registered: dict[str, Any] = {}
        self._num_averages = 0
        self._waiting: dict[str, Any] = {}  # restored state of loaders and objects not yet made
        self._rates: dict[int, list[float]] = {}  # restored learning rates, by the optimizer's id
        # The script's options of save; before its first call nothing of its is deleted.
        self._keeping: dict[str, Any] | None = None
        self._loops = self._epoch = 0  # calls of epochs(); current epoch of the last one
        self._in_epoch = False
        self._before = (0, 0)  # training loops over loaders and steps, counted before this epoch
        self._resume_at = (0, 0)  # which call of epochs() to resume, and its epoch

    def add_loader(self, loader: Loader, *, instead_of: Loader | None = None) -> None:
        """Track a loader's position; set it if a checkpoint holds one.

        It may take the place of another. Raises UsageError if the loader shuffles and is made in
        every epoch, so its order would not change; or if the place to take is not of this session.
        """
        if instead_of is not None:
            number = self._number_of(instead_of)
            loader.take_place_of(instead_of)
            self._loaders[number] = weakref.ref(loader)
            loader.number = number
            return
        if self._in_epoch and loader.shuffles:
            raise UsageError.of(
                "same-order-each-epoch",
                "a loader that shuffles is made inside the epoch",
                where="session.loader(..., shuffle=True) in the body of session.epochs(...)",
                why="its own first epoch is all that it ever serves, in one and the same order",
                fix=(
                    "make it before the loop over epochs: it reshuffles automatically; for"
                    " other data in each epoch: session.loader(..., instead_of=before)"
                ),
            )
        if self._in_epoch:
            return  # its position does not outlive the epoch
        self._load_waiting(f"loader/{len(self._loaders)}", loader)
        loader.number = len(self._loaders)
        self._loaders.append(weakref.ref(loader))

    def register(self, name: str, value: Any) -> None:
        """Track an object's state; set it if a checkpoint holds one.

        Raises UsageError if the object has no ``state_dict`` and ``load_state_dict``, or another
        object has this name, whose state would be lost.
        """
        if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            what = f"{name} ({type(value).__name__}) has no state_dict and load_state_dict"
            raise option_invalid(what, where="session.register(...)")
        if self._registered.get(name, value) is not value:
            raise option_contradicted(
                f"two objects are registered as {name}, and a checkpoint would hold the second"
                " one only",
                where=f"session.register({name}=...)",
                fix=f"session.register({name}=first, other_{name}=second)",
            )
        self._use_checkpoints()
        self._registered[name] = value
        if self._load_waiting(f"registered/{name}", value):
            self._restore_rates(value)

    def register_average(self, averaged: Any) -> None:
        """Track the state of an average, under a name that no script uses."""
        self._num_averages += 1
        self.register(f"average/{self._num_averages}", averaged)

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield epochs, beginning with the current one."""
        loop, (at, epoch) = self._loops, self._resume_at
        self._loops += 1
        if loop < at:
            self._epoch = num_epochs
        else:
            self._epoch = epoch if loop == at else 0
        if self._uses_checkpoints:
            self._place.claim()
        if self.has_restored and loop == at and 0 < num_epochs <= self._epoch:
            self._say_all_done(num_epochs)
        while self._epoch < num_epochs:
            if self.stop.agreed(now=True):
                self.leave()
            self._in_epoch, self._before = True, (self._training_loops(), self._gradients.steps)
            is_done = False
            try:
                yield self._epoch
                is_done = True
            finally:  # the loop over epochs may be left by break
                self._epoch += is_done or self._is_epoch_done()
                self._in_epoch = False

    def save(self, *, metric: float | torch.Tensor | None, wait: bool, **keeping: Any) -> None:
        """Save a checkpoint."""
        self._use_checkpoints()
        if not self._gradients.optimizers and not self._registered:
            self._say("checkpoints hold no optimizer: pass it to session.setup(model, optimizer)")
        self._keeping = keeping
        self._write(metric=metric, wait=wait)

    def save_every(self, *, steps: int | None, minutes: float | None, keep_last: int) -> None:
        """Save checkpoints at boundaries from now on."""
        self._periodic.begin(
            steps=steps, minutes=minutes, keep_last=keep_last, step=self._gradients.steps
        )
        self._use_checkpoints()

    def restore(self, which: str | os.PathLike[str], *, damaged: str | None, trust: bool) -> bool:
        """Resume from a checkpoint; return whether there is one."""
        damaged = restoring.read_damaged(damaged or env.read(env.DAMAGED))
        self._use_checkpoints()
        if which == restoring.LATEST:
            self._place.look()
        # The run folder is this run's own, unless others own it; a path may be of anybody.
        is_of_run = which in (restoring.LATEST, restoring.BEST) and self._place.is_trusted()
        checkpoint = restoring.find_intact(
            self._checkpoints,
            which,
            damaged,
            load=partial(self._load, trust=trust or is_of_run),
            inform=self._place.inform,
        )
        if checkpoint is None:
            self._place.say_what_is_beside()
            return False
        saved, state = checkpoint
        self.has_restored = True
        self._rates = {
            id(optimizer): _rates_of(optimizer) for optimizer in self._gradients.optimizers
        }
        is_same_world = state["world_size"] == self._world.world_size
        # checkpoints of earlier versions know no mesh
        is_same_mesh = state["session"].pop("mesh", None) == self._data.layout()
        self._restore_own(state["session"])
        self._restore_random(state["random"] if is_same_world and is_same_mesh else None)
        self._periodic.note_saved(self._gradients.steps)
        self._say(restoring.describe(saved, which))
        return True

    def _load(self, saved: Saved, *, trust: bool) -> dict[str, Any]:
        return portable.load(
            self._checkpoints,
            saved,
            self._gradients.models,
            self._gradients.optimizers,
            self._world.rank,
            trust=trust,
        )

    def _use_checkpoints(self) -> None:
        self._uses_checkpoints = True
        self.stop.arm()

    def _say_all_done(self, num_epochs: int) -> None:
        folder = self._place.run_dir.root
        epochs = f"all {num_epochs} epochs are" if num_epochs > 1 else "the one epoch is"
        again = "to train longer: more epochs; to start over: another run folder, or "
        self._place.inform(
            Notice(f"{epochs} already done in {folder}", (), f"{again}rm -r {folder}")
        )

    def at_boundary(self, begins: bool, is_of_training: bool) -> None:
        """Act at a boundary, where all ranks are and every step so far is complete.

        ``begins``: a loop over a loader begins. Ranks do not stop in an evaluation, whose result
        would be lost.
        """
        if begins:
            self._gradients.check_frozen()
        if self._reseed is not None:
            # Only once training begins, so that models made after the first setup also start equal
            # on all ranks.
            seed_device(self._reseed)
            self._reseed = None
        self._gradients.drop_unfinished()
        if not is_of_training:
            return
        if self.stop.agreed():
            self.leave()
        if self._uses_checkpoints and not self._has_prepared:
            self._prepare_first_save()
        if self._periodic.is_due(self._gradients.steps, is_late=self.stop.saves_now):
            self._write(metric=None, wait=False)

    def leave(self) -> None:
        """Save a checkpoint and end the script, on all ranks."""
        step, by = self._gradients.steps, self.stop.asked_by or "asked on another rank"
        self._say(f"stops after step {step} ({by}): saving a checkpoint")
        self._write(metric=None, wait=True)
        self._say(f"stopped after step {step} with a checkpoint")  # only after the commit
        raise SystemExit(EXIT_UNFINISHED)

    def _prepare_first_save(self) -> None:
        gradients = self._gradients
        if not gradients.steps:
            return  # an optimizer has its state from its first step on
        self._has_prepared = True
        num_bytes = portable.share_bytes(
            gradients.models, gradients.optimizers, self._world.world_size
        )
        self._checkpoints.prepare(num_bytes)

    def _write(self, *, metric: float | torch.Tensor | None, wait: bool) -> None:
        self._has_prepared = True  # or it is too late
        self._gradients.tracker.check_position()
        self._gradients.compare_ranks()
        self._place.claim()
        self._checkpoints.save(
            self._state(),
            step=self._gradients.steps,
            epoch=self._epoch,
            metric=metric,
            wait=wait,
            **(self._keeping or self._periodic.keeping()),
        )
        self._periodic.note_saved(self._gradients.steps)

    def _state(self) -> dict[str, Any]:
        scale = self._gradients.scale
        own = {
            "step": self._gradients.steps,
            "epochs": (max(0, self._loops - 1), self._epoch + self._is_epoch_done()),
            "scale": scale.state_dict() if scale else None,
            "mesh": self._data.layout(),
            **self._waiting,  # restored state whose object has not been registered yet
            **{
                f"loader/{number}": loader.state_dict()
                for number, loader in self._loaders_alive().items()
            },
            **{
                f"registered/{name}": portable.of_object(value)
                for name, value in self._registered.items()
            },
        }
        random = device_random_state(self._device)
        models, optimizers = self._gradients.models, self._gradients.optimizers
        return portable.snapshot(models, optimizers, own, random, rank=self._world.rank)

    def _training_loops(self) -> int:
        return sum(loader.training_loops for loader in self._loaders_alive().values())

    def _loaders_alive(self) -> dict[int, Loader]:
        """Return the loaders that still exist, by number."""
        return {
            number: loader
            for number, reference in enumerate(self._loaders)
            if (loader := reference()) is not None
        }

    def _number_of(self, loader: Loader) -> int:
        for number, other in self._loaders_alive().items():
            if other is loader:
                return number
        raise option_invalid(
            "instead_of is not a loader that has a position in this session's checkpoints",
            where="session.loader(..., instead_of=...)",
            fix="the loader made before the loop over epochs, or in its place",
        )

    def _is_epoch_done(self) -> bool:
        """Whether a run that resumes from here begins with the next epoch.

        An epoch is unfinished during a training loop, and not yet started before the first one.
        """
        under_way = any(loader.under_way for loader in self._loaders_alive().values())
        loops, steps = self._before
        has_steps = self._training_loops() > loops or self._gradients.steps > steps
        has_begun = has_steps or not self._loaders
        return self._in_epoch and has_begun and not under_way

    def _restore_own(self, own: dict[str, Any]) -> None:
        self._gradients.steps = own.pop("step")
        self._resume_at = own.pop("epochs")
        scale = own.pop("scale")
        if self._gradients.scale is not None and scale:
            self._gradients.scale.load_state_dict(scale)
        self._waiting = own
        for number, loader in self._loaders_alive().items():
            self._load_waiting(f"loader/{number}", loader)
        for name, value in self._registered.items():
            self._load_waiting(f"registered/{name}", value)

    def _load_waiting(self, name: str, value: Any) -> bool:
        """Load the restored state that waits for an object; return whether there was any."""
        state = self._waiting.pop(name, None)
        if state is not None:
            portable.load_object(value, state)
        return state is not None

    def _restore_rates(self, value: Any) -> None:
        """Undo a scheduler's changes of the learning rates; it was made after the restore."""
        optimizer = getattr(value, "optimizer", None)
        if isinstance(optimizer, Optimizer):
            restored = self._rates.get(id(optimizer))
            rates = restored or getattr(value, "_last_lr", None) or _rates_of(optimizer)
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def _restore_random(self, random: dict[str, Any] | None) -> None:
        self._reseed = None
        if random is None:  # another number of ranks: new seeds, the same each time
            seed_device(derive("resumed", self._seed, self._gradients.steps, self._data.world.rank))
            return
        set_device_random_state(random, self._device)


def _rates_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def read_seed(seed: Any) -> int:
    """Return a seed as an int; None means 0. Raise UsageError if the seed is not an int."""
    try:
        return 0 if seed is None else operator.index(seed)
    except TypeError:
        what = f"seed={seed!r} is not an int"
        raise option_invalid(what, where="Session(seed=...)", fix="Session(seed=0)") from None
