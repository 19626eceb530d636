"""Track where a user's training loop is; save it at a stop, and continue from there."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from paceline import env
from paceline.errors import EXIT_UNFINISHED, RunError, UsageError
from paceline.rundir.manifest import Saved
from paceline.train import runtime
from paceline.train.checkpoint import Checkpoints, portable
from paceline.train.data import (
    derive,
    device_random_state,
    seed_device,
    set_device_random_state,
)
from paceline.train.preemptible.agreement import Agreement, Boundary
from paceline.train.preemptible.follower import TRAINED, LoopFollower, Position
from paceline.train.preemptible.objects import WHERE, Objects
from paceline.train.session import restoring
from paceline.train.session.run_folder import SessionFolder
from paceline.world import World

_POSITIONS = "loops"  # name of each rank's own entry in a checkpoint


class LoopProgress:
    """The position of a user's training loop, and the state that restores it."""

    def __init__(
        self,
        objects: Objects,
        loaders: Sequence[Any],  # the first one decides where a step is complete
        *,
        world: World,
        checkpoints: Checkpoints,
        place: SessionFolder,  # the run folder of the checkpoints
        agreement: Agreement,  # at which step all ranks stop
        say: Callable[[str], None],  # prints a line on rank 0, once
    ) -> None:
        self.step = 0  # number of steps of the first optimizer, also before a resume
        self._objects, self._world, self._device = objects, world, objects.device
        self._checkpoints, self._place, self._agreement = checkpoints, place, agreement
        self.say = say
        self._epoch: int | None = None  # of epochs(); None if the script does not use it
        self._at_epoch = [0] * len(loaders)  # loops that had ended when that epoch began
        self._is_aware = False  # whether the script has asked in which epoch it is
        self._stepped: set[int] = set()  # optimizers that stepped since the last boundary
        self._ever: set[int] = set()  # optimizers that have stepped at all
        self._saved: Saved | None = None
        self._waiting: dict[int, Position] = {}  # by loader, until its interrupted loop trains
        self._random: dict[str, Any] | None = None  # state at the stop, on as many ranks
        self._has_passed = False  # whether loops were passed over since the last restore
        self._followers = [LoopFollower(loader, self) for loader in loaders]
        for number, optimizer in enumerate(objects.optimizers):
            optimizer.register_step_post_hook(partial(_count, weakref.ref(self), number))

    @property
    def epoch(self) -> int:
        """Number of the current epoch; a script that reads it begins there."""
        self._is_aware = True
        return self._count_epochs()

    def _count_epochs(self) -> int:
        if self._epoch is not None:
            return self._epoch
        position = self._waiting.get(0)
        history = position["history"] if position else self._followers[0].history
        return int(history.count(TRAINED))

    def begin_epoch(self, epoch: int) -> None:
        """Record that the script begins an epoch."""
        self._epoch = epoch
        if 0 in self._waiting:
            return  # the interrupted epoch: some of its loops may have ended before the stop
        self._followers[0].end()  # a loop over another loader may span epochs
        self._at_epoch = [len(follower.history) for follower in self._followers]

    def restore(self) -> None:
        """Resume from the latest checkpoint of the run folder, if there is one; a collective."""
        self._place.look()
        checkpoint = restoring.find_intact(
            self._checkpoints,
            restoring.LATEST,
            restoring.read_damaged(env.read(env.DAMAGED)),
            load=self._load,
            inform=self._place.inform,
        )
        if checkpoint is None:
            self._place.say_what_is_beside()
            return
        saved, state = checkpoint
        self._saved = saved
        self._take(state, saved)
        self.say(restoring.describe(saved, restoring.LATEST))

    def _load(self, saved: Saved) -> dict[str, Any]:
        own = self._world.rank if self._is_as_many(saved) else 0
        objects = self._objects
        state = portable.load(self._checkpoints, saved, objects.models, objects.optimizers, own)
        for name, value in objects.registered.items():
            entry = f"registered/{name}"
            if entry not in state["session"]:
                raise _without(name, state["session"])
            portable.load_object(value, state["session"][entry])
        return state

    def _is_as_many(self, saved: Saved) -> bool:
        return saved.world_size == self._world.world_size

    def _take(self, state: dict[str, Any], saved: Saved) -> None:
        session = state["session"]
        self.step = session["step"]
        self._epoch = session.get("epoch")
        positions = state["own"].get(_POSITIONS) or [_position_of_session(session)]
        self._waiting = dict(enumerate(positions[: len(self._followers)]))
        for number, position in self._waiting.items():
            self._at_epoch[number] = position["at_epoch"]
        self._random = state["random"] if self._is_as_many(saved) else None
        if self._random is None:
            seed_device(derive("resumed", self.step, self._world.rank))
        else:
            self.set_random(self._random)

    def begins(self, follower: LoopFollower) -> bool:
        """Act before a loop begins; return whether its batches are passed over."""
        number = self._followers.index(follower)
        if number == 0 and self._stepped:
            self._at_boundary()
        position = self._waiting.get(number)
        if position is None:
            self._say_what_is_repeated(follower)
            return False
        saved, base = position["history"], position["at_epoch"]
        if self._is_aware and len(follower.history) < base:
            follower.history = saved[:base]
        ended = len(follower.history)
        if ended < len(saved):
            return self._passes(saved[ended] == TRAINED)
        if self._has_passed and self._saved is not None:
            # What stood between the loops has changed the state: a scheduler has stepped again.
            self._has_passed = False
            self._load(self._saved)
        follower.resume(position, self._random, is_first=number == 0)
        return False

    def _passes(self, is_passed: bool) -> bool:
        if is_passed and not self._is_aware:
            self.say(
                "the loops of earlier epochs are empty, and what stands around them is repeated;"
                " to begin at once: for epoch in range(run.epoch, ...)"
            )
        self._has_passed |= is_passed
        return is_passed

    def _say_what_is_repeated(self, follower: LoopFollower) -> None:
        if not self._is_aware and follower.history.count(TRAINED) == 1:
            self.say(
                "a resumed run will repeat what stands around the loop over batches, with empty"
                " loops; to begin at once: for epoch in range(run.epoch, ...)"
            )

    def continues(self, follower: LoopFollower, before: dict[str, Any] | None) -> None:
        """Act before a batch after the first is handed out.

        ``before`` is the global random state before it was read; None if it was not read yet.
        """
        is_complete = bool(self._ever) and self._ever <= self._stepped
        if is_complete and follower is self._followers[0]:
            self._at_boundary(before)

    def read_random(self) -> dict[str, Any]:
        """Return the state of this rank's global generators."""
        return device_random_state(self._device)

    def set_random(self, state: dict[str, Any]) -> None:
        """Set this rank's global generators."""
        set_device_random_state(state, self._device)

    def count_step(self, number: int) -> None:
        """Record a step of an optimizer."""
        self.step += number == 0
        self._stepped.add(number)
        self._ever.add(number)
        is_in_loop = False
        for place, follower in enumerate(self._followers):
            if follower.is_under_way:
                is_in_loop = follower.trains = True
                self._waiting.pop(place, None)
        if not is_in_loop:
            self.say(
                "an optimizer stepped outside of a loop over loader=...: no step there can be the"
                " last one before a stop; pass the loader that the loop is over"
            )

    def _at_boundary(self, random: dict[str, Any] | None = None) -> None:
        self._stepped.clear()
        if not self._agreement.stops(self._here()):
            return
        if random is not None:
            self.set_random(random)  # the batch that was just read is read again
        self._leave()

    def _here(self) -> Boundary:
        main = self._followers[0]
        return len(main.history), main.served

    def _leave(self) -> None:
        """Save a checkpoint and end the script, on all ranks."""
        by = self._agreement.by
        self.say(f"stops after step {self.step} ({by}): saving a checkpoint")
        self._check_ranks()
        self._checkpoints.save(
            self._state(), step=self.step, epoch=self._count_epochs(), keep_best=0, wait=True
        )
        self.say(f"stopped after step {self.step} with a checkpoint")  # only after the commit
        runtime.keep_groups()
        raise SystemExit(EXIT_UNFINISHED)

    def _state(self) -> dict[str, Any]:
        objects, rank = self._objects, self._world.rank
        epoch = self._count_epochs()
        shared = {
            "step": self.step,
            "epochs": (0, epoch),
            "scale": None,
            "epoch": self._epoch,
            **{
                f"registered/{name}": portable.of_object(value)
                for name, value in objects.registered.items()
            },
        }
        state = portable.snapshot(
            objects.models, objects.optimizers, shared, self.read_random(), rank=rank
        )
        return state | portable.of_rank({_POSITIONS: self._positions()}, rank)

    def _positions(self) -> list[Position]:
        positions = []
        for number, follower in enumerate(self._followers):
            if number in self._waiting:  # its loop has not begun since the resume
                positions.append(self._waiting[number])
                continue
            position = follower.position()
            whole = len(position["history"])
            at_epoch = whole if self._epoch is None else self._at_epoch[number]
            positions.append({**position, "at_epoch": at_epoch})
        return positions

    def _check_ranks(self) -> None:
        """Check that one checkpoint stands for all ranks: same step, same model; a collective."""
        marks = [*self._here()]
        if not self._objects.is_parallel:
            marks.append(_digest(self._objects))
        highest = runtime.maxima(marks + [-mark for mark in marks])
        if all(high == -low for high, low in zip(highest, highest[len(marks) :], strict=False)):
            return
        are_steps = highest[:2] != [-low for low in highest[len(marks) :][:2]]
        what = "ranks are at different steps" if are_steps else "ranks hold different parameters"
        raise RunError.of(
            "replicas-differ",
            f"{what}, so no checkpoint was saved",
            where=f"{WHERE}, after step {self.step}",
            why="a checkpoint holds one model, which all ranks have trained together",
            fix="model = DistributedDataParallel(model)",
        )


def _count(progress: weakref.ref[LoopProgress], number: int, *_: Any) -> None:
    """Pass a step of an optimizer on; the hook must not keep the run alive."""
    living = progress()
    if living is not None:
        living.count_step(number)


def _digest(objects: Objects) -> int:
    sums = [
        value.detach().sum(dtype=torch.float64)
        for model in objects.models
        for value in model.parameters()
    ]
    content = repr(torch.stack([one.cpu() for one in sums]).tolist() if sums else [])
    return zlib.crc32(content.encode())


def _position_of_session(session: dict[str, Any]) -> Position:
    """Return the position of a checkpoint that a Session saved: the begin of its epoch."""
    history = TRAINED * session["epochs"][1]
    return {
        "history": history,
        "served": 0,
        "before": 0,
        "samplers": {},
        "at_epoch": len(history),
    }


def _without(name: str, session: dict[str, Any]) -> UsageError:
    saved = [entry.removeprefix("registered/") for entry in session if "registered/" in entry]
    return UsageError.of(
        "checkpoint-other-model",
        f"the checkpoint has no state of {name}",
        where=WHERE,
        evidence=(f"it has the state of: {', '.join(saved) or 'no other object'}",),
        why=f"{name} would start from its first state in the middle of the training",
        fix="pass the same objects as before the stop, or start over in another run folder",
    )
