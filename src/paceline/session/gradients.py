"""From models to gradients: making models parallel, and backward such that the number of ranks doesn't show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline import precision, runtime, strategy
from paceline.accumulation import Group
from paceline.data import Tally
from paceline.errors import Finding, UsageError
from paceline.world import World

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # not SyncBatchNorm; the lazy ones derive
DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class Gradients:
    """The models of a session and how their gradients come about.

    Args:
        world: The ranks.
        device: Of this rank.
        chosen: In which types models compute.
        way: How models are made parallel.
        accumulate: Batches of a step.
        tally: Tells which batch a loss belongs to.
        say: Prints a line on rank 0.

    Attributes:
        models: The user's own modules, in the order of setup.
        optimizers: Their optimizers, in the same order.
        scale: The loss scale; None unless float16.
        steps: How often gradients were complete.
    """

    def __init__(
        self,
        *,
        world: World,
        device: torch.device,
        chosen: precision.Precision,
        way: strategy.Strategy,
        accumulate: int,
        tally: Tally,
        say: Callable[[str], None],
    ) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.scale = precision.LossScale(device, world.world_size) if chosen.scaled else None
        self.steps = 0
        self._world_size, self._device = world.world_size, device
        self._precision, self._strategy, self._accumulate = chosen, way, accumulate
        self._tally, self._say = tally, say
        self._group = Group(world.world_size, accumulate, lambda own: float(runtime.sum_over_ranks(own)))
        self._parameters: dict[nn.Parameter, None] = {}  # of all models, in order
        self._parallel: list[nn.Module] = []  # what became of models
        self._buffered: list[nn.Module] = []  # models whose buffers are to be kept equal
        self._replicated = False  # whether there is a DDP
        self._forwarded = False  # whether one has run since the last reduced backward

    def setup(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        """Move a model to the device, give it its precision, make it parallel; return what to call."""
        if isinstance(model, DistributedDataParallel):
            raise UsageError(
                Finding(
                    "option-contradicted",
                    "the model is a DistributedDataParallel already",
                    where="session.setup(model)",
                    fix="session.setup(model.module)",
                )
            )
        model.to(self._device)
        precision.attach(model, self._precision, self._device)
        self._parameters.update(dict.fromkeys(model.parameters()))
        for optimizer in optimizers:
            self._check_parameters(optimizer)
        ready = model if self._world_size == 1 else self._make_parallel(model, optimizers)
        self.models.append(model)
        self.optimizers.extend(optimizers)
        return ready

    def backward(self, loss: torch.Tensor, weight: float | None) -> bool:
        """Compute gradients; return whether they are complete."""
        rows = self._tally.take(weighted=weight is not None)
        part = self._group.add(rows, weight)
        if part.ends_group and self._replicated and not self._forwarded:
            raise _not_averaged()
        if part.rescale != 1.0:
            torch._foreach_mul_([each.grad for each in self._parameters if each.grad is not None], part.rescale)
        if self.scale is not None:
            loss = self.scale.scale(loss, self._parameters)
        # As the gradient of the loss the factor costs less than as a product, and a loss that is NaN for want
        # of rows stays out of it.
        loss.backward(None if part.factor == 1.0 else loss.new_full((), part.factor))
        if rows is None and self._accumulate > 1:  # no loader says so before the next forward
            self._sync(self._group.num_batches + 1 >= self._accumulate)
        if part.ends_group:
            self._complete()
        return part.ends_group

    def drop_unfinished(self) -> None:
        """Drop the gradients of a group that was left before its end."""
        if self._group.num_batches and self._tally.has_left_group:
            self._group.drop()
            for each in self._parameters:
                each.grad = None
            self._say("a loop was left inside a group of accumulated batches; their gradients are dropped")

    def _complete(self) -> None:
        self._forwarded = False
        self.steps += 1
        if self._buffered:
            runtime.copy_from_main([each for model in self._buffered for each in model.buffers()])
        if self.scale is not None:
            self.scale.settle(self._parameters, self._agree)

    def _agree(self, bad: bool) -> bool:
        # After an all-reduce all ranks hold the same gradients; of shards each knows its own only.
        return bool(runtime.maxima([bad])[0]) if isinstance(self._strategy, strategy.FSDP) else bad

    def _sync(self, ends_group: bool) -> None:
        for each in self._parallel:
            strategy.sync_next(each, ends_group)

    def _make_parallel(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        self._tell_limit(model)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            runtime.copy_from_main([*model.parameters(), *model.buffers()])
            return model
        if isinstance(self._strategy, strategy.FSDP):
            ready = self._shard(model, self._strategy, optimizers)
        else:
            ready = strategy.replicate(model, self._strategy)
            ready.register_forward_pre_hook(self._note_forward)
            self._replicated = True
        if any(True for _ in model.buffers()):
            self._buffered.append(model)
        self._parallel.append(ready)
        if self._accumulate > 1:
            self._tally.on_sync = self._sync
            strategy.sync_next(ready, False)
        return ready

    def _shard(self, model: nn.Module, way: strategy.FSDP, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        runtime.copy_from_main([*model.parameters(), *model.buffers()])
        whole = set(model.parameters())
        strategy.shard(model, way, self._device, optimizers)
        others = [each for each in self._parameters if each not in whole]
        self._parameters = dict.fromkeys([*others, *model.parameters()])
        return model

    def _note_forward(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._forwarded = True

    def _check_parameters(self, optimizer: Optimizer) -> None:
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        strange = len(held - set(self._parameters))
        if not strange:
            return
        raise UsageError(
            Finding(
                "optimizer-of-other-model",
                f"{strange} of the {len(held)} parameters of {type(optimizer).__name__} are not the model's",
                where="session.setup(model, optimizer)",
                why="its steps would leave the model as it is",
                fix=f"{type(optimizer).__name__}(model.parameters(), ...) just before session.setup",
            )
        )

    def _tell_limit(self, model: nn.Module) -> None:
        modules = list(model.modules())
        limits = []
        synced = isinstance(self._strategy, strategy.DDP) and self._strategy.sync_batchnorm
        if not synced and any(isinstance(each, BATCH_NORMS) for each in modules):
            limits.append("batch norm's statistics are those of a rank's own rows")
        if any(isinstance(each, DROPOUTS) and each.p > 0 for each in modules):
            limits.append("dropout masks are drawn on each rank")
        if limits:
            self._say(f"results depend on the number of ranks here: {'; '.join(limits)}")


def _not_averaged() -> UsageError:
    return UsageError(
        Finding(
            "gradients-not-averaged",
            "no parallel model has run since the last backward, so these gradients would stay on this rank",
            where="session.backward(loss)",
            why="DDP averages in the first backward after a forward of the model that setup returned; "
            "ranks would drift apart without a word",
            fix="add the losses up and call session.backward(first + second) once, and call the model that "
            "session.setup returned, not the one inside",
        )
    )


def check_accumulate(accumulate: int) -> None:
    """Refuse what is not a number of batches."""
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise UsageError(
            Finding(
                "option-invalid",
                f"accumulate={accumulate!r} is not a positive int",
                where="Session(accumulate=...)",
                fix="Session(accumulate=4): gradients of four batches make one step",
            )
        )
