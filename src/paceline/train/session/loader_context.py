"""Collect what a loader needs of its session: ranks, device, seed and callbacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from paceline import env
from paceline.machine import cpus
from paceline.train import runtime
from paceline.train.data import LoaderContext
from paceline.train.model.mesh import DataRanks
from paceline.train.session.gradients import Gradients
from paceline.world import World


def loader_context(
    gradients: Gradients,
    at_boundary: Callable[[bool, bool], None],
    *,
    world: World,  # all ranks
    data: DataRanks,
    seed: int,
) -> LoaderContext:
    """Return the context for a new loader."""
    return LoaderContext(
        world=data.world,
        device=gradients.device,
        tracker=gradients.tracker,
        seed=seed,
        accumulate=lambda: gradients.accumulate,
        cpus=cpus.of_ranks(world, granted=env.read(env.CPUS_PER_TASK) or ""),
        at_boundary=at_boundary,
        few_rows=gradients.few_rows,
        total=partial(runtime.totals, group=data.group),
        first_of=_first_of(world),
        in_training_mode=gradients.in_training_mode,
        has_optimizer=lambda: bool(gradients.optimizers),
        forward_is_collective=gradients.forward_is_collective,
    )


def _first_of(world: World) -> Callable[[str, str], str]:
    """Return a function that sets a store key if it is unset, and returns the key's value."""
    if world.world_size == 1:
        return lambda _, value: value
    # Counted per line of the script, because some ranks may make a loader that others do not.
    place = f"paceline/loader/{_place()}"
    number = runtime.number_of_call(place)
    return lambda key, value: runtime.store().claim(f"{place}/{number}/{key}", value).decode()


def _place() -> str:
    """Return the line of the user's script that called paceline."""
    frame = sys._getframe()
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == "paceline"
    ):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
