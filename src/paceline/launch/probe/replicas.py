"""Fingerprint what ranks hold alike, after steps 1, 2, 4, 8, ...; the launcher compares ranks.

Only what a ``DistributedDataParallel`` of all ranks holds is looked at, together with its
optimizers. Left out are models whose gradients are not averaged in every step on purpose (local
steps in ``no_sync``, communication hooks of the script), and those of a Session, which compares
them itself. Nothing communicates: a fingerprint goes to the counters, and those of each parameter
to a file, which is read if ranks differ.
"""

from __future__ import annotations

import contextlib
import functools
import json
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paceline import counters
from paceline.machine.compiled import left_alone, not_compiled, uncounted
from paceline.machine.fingerprints import Value, fingerprints, total
from paceline.rundir.files import write_whole

# Modules of hooks after which gradients are equal on all ranks.
_AVERAGING_HOOKS = ("torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "paceline.")


class ReplicaCheck:
    """Fingerprints this rank's replicas before the backward that follows a step.

    By then everything that follows a step is done, such as a broadcast of parameters.
    """

    def __init__(
        self,
        slot: memoryview[int],
        *,
        every: int,  # steps between two further checks; 0 for none
        file: Path | None,  # for the fingerprints of each parameter
        optimizers: Callable[[], Iterable[Any]],  # those of the script
    ) -> None:
        self._slot, self._every, self._file = slot, every, file
        self._optimizers = optimizers
        self._models: list[weakref.ref[Any]] = []  # in their order, which all ranks have
        self._apart: weakref.WeakSet[Any] = weakref.WeakSet()  # those that make local steps
        self._lists: dict[int, tuple[int, list[Value]]] = {}  # by place in the counters
        self._step = 0
        self.due = 1  # number of steps after which the next check is due
        # torch.compile may trace the script's step, and the backward in it.
        left_alone(ReplicaCheck.run_backward)
        not_compiled(ReplicaCheck.note_step)
        not_compiled(ReplicaCheck._check)

    def follow(self, model: Any) -> None:
        """Check a ``DistributedDataParallel`` too."""
        self._models.append(weakref.ref(model))

    def _living(self) -> list[Any]:
        return [model for model in (reference() for reference in self._models) if model is not None]

    def note_step(self, step: int) -> None:
        """Note a step that is due, and plan the next one."""
        self._step = step
        power = 1 << step.bit_length()
        self.due = min(power, step + self._every - step % self._every) if self._every else power
        # False after a forward in no_sync: its step, if it is one, is made on local gradients.
        self._apart |= {one for one in self._living() if not one.require_forward_param_sync}

    def run_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Check, once for the step, and run a backward."""
        step, self._step = self._step, 0
        if step:
            with contextlib.suppress(Exception):  # a check must not end a run
                self._check(step)
        return run(*args, **kwargs)

    def _check(self, step: int) -> None:
        from torch.distributed import group

        models = [one for one in self._living() if one not in self._apart and _is_averaged(one)]
        named = {
            f"model {number}, {name}" if len(models) > 1 else name: parameter
            for number, model in enumerate(models, 1)
            for name, parameter in model.module.named_parameters()
            if name not in model.parameters_to_ignore
        }
        values = fingerprints(named, self._optimizers(), steps=step) if named else []
        if not values:
            return
        world: Any = group.WORLD
        check = counters.Check(world._get_sequence_number_for_group(), *total(values))
        is_rare = not self._every
        for place in counters.write_check(self._slot, check, step=step, at_powers=is_rare):
            self._lists[place] = (step, values)
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a full disk must not end a run
            write_whole(self._file, json.dumps(dict(self._lists.values())))


def follow_models(follow: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``follow`` with each new ``DistributedDataParallel``; return a function to stop."""
    from torch.nn.parallel import DistributedDataParallel

    kind: Any = DistributedDataParallel
    construct = kind.__init__

    @functools.wraps(construct)
    def construct_and_follow(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        follow(self)

    kind.__init__ = left_alone(uncounted(construct_and_follow))

    def end() -> None:
        kind.__init__ = construct

    return end


def _is_averaged(model: Any) -> bool:
    """Return whether every step averages the gradients of a model over all ranks."""
    import torch.distributed as dist

    averages = all(hook.__module__.startswith(_AVERAGING_HOOKS) for hook, _ in model._comm_hooks)
    is_of_all = model.process_group.size() == dist.get_world_size() > 1
    return bool(averages and is_of_all and not getattr(model, "compares_ranks", False))
