"""The checks of a training script: each takes a script and yields findings.

collectives   check collective calls: every rank must make them, but part of the ranks reach
              some places
data          check how data is distributed to ranks: samplers, set_epoch, unsharded loaders,
              downloads
devices       check which GPU a rank selects, and how it gets its local rank
evaluation    check metrics of a distributed evaluation: one rank's only, padded samples
              counted twice
methods       check calls of methods that the object's class does not have
names         check names that libraries deprecated or removed, and names that this file does
              not show
optimisation  check gradient accumulation, learning rate schedulers and the learning rate on
              several ranks
public_names  tables of the public attributes of well-known classes, and of names that were
              removed
wrapping      check the order in which a model is sharded, made tensor parallel, and given to an
              optimizer
saving        check how checkpoints are saved: by one rank only, and without the keys of the
              DDP wrapper
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.diagnose.lint.python.checks import (
    collectives,
    data,
    devices,
    evaluation,
    methods,
    names,
    optimisation,
    saving,
    wrapping,
)
from paceline.diagnose.lint.python.script import Script
from paceline.errors import Finding

__all__ = ["CHECKS"]

CHECKS: tuple[Callable[[Script], Iterable[Finding]], ...] = (
    collectives.collective_in_rank_block,
    data.set_epoch_missing,
    data.seed_differs,
    data.sampler_missing,
    data.shuffle_with_sampler,
    data.download_on_global_rank_only,
    data.workers_not_persistent,
    saving.save_on_every_rank,
    saving.folder_race,
    saving.save_wrapped_model,
    saving.map_location_missing,
    evaluation.evaluation_not_reduced,
    evaluation.evaluation_padded,
    devices.device_not_set,
    devices.device_by_global_rank,
    devices.local_rank_argument_unknown,
    optimisation.accumulation_syncs_every_step,
    optimisation.backward_not_accelerator,
    optimisation.gradients_not_averaged,
    optimisation.scheduler_stepped_n_times,
    optimisation.learning_rate_not_scaled,
    wrapping.wrapping_order,
    methods.method_does_not_exist,
    names.deprecated_name,
    names.names_not_judged,
)
