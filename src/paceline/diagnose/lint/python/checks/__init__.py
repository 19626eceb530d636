"""The checks of a training script: each takes a script and yields findings.

collectives   check collective calls: every rank must make them, but part of the ranks reach
              some places
data          check how data is divided between ranks: set_epoch of samplers, loaders without a
              sampler
devices       check that something selects a GPU for each rank
names         check names that a library does not have, or no longer has
public_names  tables of the public attributes of well-known classes, and of names that were
              removed
saving        check torch.save and torch.load: who writes a checkpoint, and onto which GPU it is
              loaded
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.diagnose.lint.python.checks import collectives, data, devices, names, saving
from paceline.diagnose.lint.python.script import Script
from paceline.errors import Finding

__all__ = ["CHECKS"]

CHECKS: tuple[Callable[[Script], Iterable[Finding]], ...] = (
    collectives.collective_in_rank_block,
    data.set_epoch_missing,
    data.sampler_missing,
    saving.save_on_every_rank,
    saving.map_location_missing,
    devices.device_not_set,
    names.method_does_not_exist,
    names.deprecated_name,
)
