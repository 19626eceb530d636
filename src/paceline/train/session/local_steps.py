"""Count the steps of local SGD, exchange what is due, and save each rank's own state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from paceline.errors import Finding, UsageError
from paceline.train import runtime
from paceline.train.checkpoint import Saved, optimizer_state, portable
from paceline.train.model.local_sgd import LocalSGD, OuterModel
from paceline.world import World

_OWN = "local"  # entry of a checkpoint with a rank's other state


class LocalSteps:
    """The steps of a session's ranks apart from each other, and the exchanges between them.

    An exchange is due after ``every`` complete groups of batches, which all ranks count alike. It
    takes place when all optimizers have stepped. A rank whose script leaves out a step, such as one
    with NaN, makes up for it before its next forward, loop, checkpoint or collective of the
    session, so that collectives are in the same order on all ranks.

    Args:
        options: The strategy.
        world: The ranks.
    """

    def __init__(self, options: LocalSGD, world: World) -> None:
        self._options, self._world = options, world
        self._models: list[OuterModel] = []
        self._optimizers: list[Optimizer] = []
        self._num_steps = 0  # since the last exchange
        self._waits_for: set[int] = set()  # numbers of the optimizers that have yet to step

    def watch(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Make a model equal on all ranks, and exchange its parameters from now on."""
        if self._world.world_size > 1:
            runtime.copy_from_main([*model.parameters(), *model.buffers()])
        if any(parameter.requires_grad for parameter in model.parameters()):
            outer = OuterModel(model, self._options, before_training=self.exchange_if_due)
            self._models.append(outer)
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_optimizer(len(self._optimizers)))
            self._optimizers.append(optimizer)

    def note_step(self) -> None:
        """Count a complete group, whose optimizer step follows."""
        self.exchange_if_due()
        self._num_steps += 1
        if self._is_due():
            self._waits_for = set(range(len(self._optimizers)))

    def exchange_if_due(self) -> None:
        """Make the outer step if it is due; a collective then."""
        if not self._is_due():
            return
        self._num_steps = 0
        for model in self._models:
            if self._world.world_size > 1:
                runtime.copy_from_main(model.buffers())
            model.step(self._mean)

    def own_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        registered: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what a checkpoint holds beside the models' outer parameters.

        That are the momenta of the outer step; and of this rank its parameters and buffers, the
        state of its optimizers, and that of registered objects, which may depend on them.

        Args:
            models: The session's models.
            optimizers: Their optimizers.
            registered: State of registered objects, by name.
        """
        entries: dict[str, Any] = {}
        for number, model in enumerate(self._models):
            entries |= {_momentum(number, name): value for name, value in model.momenta.items()}
        own: dict[str, Any] = {}
        for number, model in enumerate(self._models):
            for name, value in model.own_tensors().items():
                own[_own(number, name)] = value.detach()
        names = portable.parameter_names(models)
        for number, optimizer in enumerate(optimizers):
            own |= optimizer_state.of_optimizer(optimizer, number, names)
        own[_OWN] = {"num_steps": self._num_steps, "registered": dict(registered)}
        return entries | portable.of_rank(own, self._world.rank)

    def load(self, state: Mapping[str, Any], own: Mapping[str, Any], *, is_same_world: bool) -> int:
        """Continue from a checkpoint, whose outer parameters the models have already.

        Args:
            state: Entries for all ranks.
            own: Entries of this rank, or of the one in whose place it continues.
            is_same_world: Whether the checkpoint was saved by as many ranks. Otherwise ranks
                continue from the outer parameters.

        Returns:
            Steps since the last exchange that are lost.
        """
        for number, model in enumerate(self._models):
            for name, parameter in model.own_tensors().items():
                if (momentum := state.get(_momentum(number, name))) is not None:
                    model.momenta[name] = momentum.to(parameter)
        num_steps = int(own[_OWN]["num_steps"]) if _OWN in own else 0
        self._num_steps, self._waits_for = 0, set()
        if not is_same_world or not num_steps:
            return num_steps
        self._num_steps = num_steps
        for number, model in enumerate(self._models):
            for name, tensor in model.own_tensors().items():
                if (value := own.get(_own(number, name))) is not None:
                    tensor.data.copy_(value)
        return 0

    def _is_due(self) -> bool:
        return self._num_steps >= self._options.every

    def _note_optimizer(self, number: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            self._waits_for.discard(number)
            if not self._waits_for:
                self.exchange_if_due()

        return note

    def _mean(self, tensor: torch.Tensor) -> None:
        if self._world.world_size > 1:
            dist.all_reduce(tensor)
            tensor.div_(self._world.world_size)


def choose_source(saved: Saved, *, rank: int, is_local: bool, is_sharded: bool) -> int:
    """Return the rank whose own entries of a checkpoint a rank continues from. Pure.

    After local SGD each rank has its own optimizer state. With another number of ranks, a
    rank takes the place of the one with its number modulo theirs. Ranks that step together take
    that of rank 0.

    Args:
        saved: The checkpoint.
        rank: Global rank.
        is_local: Whether ranks train apart from now on.
        is_sharded: Whether each rank has a shard of the model.

    Raises:
        UsageError: The state cannot be sharded.
    """
    if f"rank/0/object/{_OWN}" not in saved.tensors:
        return rank
    if is_sharded:
        raise UsageError(
            Finding(
                "option-contradicted",
                f"{saved.path.name} is of local SGD, in which each rank has an optimizer of its"
                " own, and fsdp loads the shards of a common one",
                where='Session(strategy="fsdp")',
                fix='Session(strategy="ddp"), or strategy=LocalSGD(...) as before',
            )
        )
    return rank % saved.world_size if is_local else 0


def registered_of(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of registered objects in a rank's own entries."""
    return dict(own[_OWN]["registered"]) if _OWN in own else {}


def describe_lost(num_steps: int, world_size: int) -> str:
    """Return the line that reports steps that another number of ranks cannot continue from."""
    return (
        f"continuing from the last exchange: {num_steps} local steps after it are lost, since the"
        f" checkpoint was saved by {world_size} ranks"
    )


def _momentum(model: int, name: str) -> str:
    return f"outer/{model}/{name}"


def _own(model: int, name: str) -> str:
    return f"model/{model}/{name}"
