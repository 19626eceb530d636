"""Make models parallel, and run backward so that gradients do not depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.errors import Finding, UsageError
from paceline.train import runtime
from paceline.train.data import BatchTracker, not_of_samples
from paceline.train.model import precision, strategy
from paceline.train.session.accumulation import Group
from paceline.train.session.few_rows import BATCH_NORMS, FewRows
from paceline.train.session.losses import function_that_sums, loss_is_a_sum, other_than_rows
from paceline.train.session.outside import OutsideBackward
from paceline.world import World

LOSSES_LOOKED_AT = 3  # a script's losses are of one kind; inspecting one takes microseconds
DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class Gradients:
    """A session's models, and the computation of their gradients.

    Args:
        world: The ranks.
        device: Device of this rank.
        chosen: Precision of the models.
        way: Strategy that makes models parallel.
        accumulate: Batches in a step.
        say: Prints a line on rank 0.

    Attributes:
        device: Device of this rank.
        models: The user's modules, in the order of setup.
        optimizers: The models' optimizers, in the order of setup.
        scale: The loss scale; None unless the precision is float16.
        steps: Number of completed steps.
        tracker: Knows which batch a loss belongs to.
        few_rows: Watches the models while a rank has few rows.
    """

    def __init__(
        self,
        *,
        world: World,
        device: torch.device,
        chosen: precision.Precision,
        way: strategy.Strategy,
        accumulate: int,
        say: Callable[[str], None],
    ) -> None:
        _check_together(chosen, way)
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.scale = precision.LossScale(device, world.world_size) if chosen.scaled else None
        self.steps = 0
        self._world_size, self.device = world.world_size, device
        self._precision, self._strategy, self._accumulate = chosen, way, accumulate
        self._say = say
        self.tracker = BatchTracker(self._sync if accumulate > 1 and world.world_size > 1 else None)
        self.few_rows = FewRows(self.models, self.forward_is_collective, rank=world.rank)
        self._group = Group(
            world.world_size, accumulate, lambda own: float(runtime.sum_over_ranks(own))
        )
        self._parameters: dict[nn.Parameter, None] = {}  # of all models, in order
        self._buffered: list[nn.Module] = []  # modules with buffers, kept equal on all ranks
        self._frozen: dict[nn.Parameter, str] = {}  # frozen at setup, so never averaged; with names
        self._armed = ForwardTracker()
        self._outside = OutsideBackward()
        self._num_losses = 0  # losses inspected so far
        self._unlearned: set[DistributedDataParallel] = set()  # DDP has no static graph yet
        self._shards: dict[nn.Parameter, nn.Parameter] = {}  # parameter to its shard, with fsdp

    def setup(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        """Move a model to the device, set its precision and make it parallel; return it."""
        _check_kinds(model, optimizers)
        if isinstance(model, DistributedDataParallel):
            raise UsageError(
                Finding(
                    "option-contradicted",
                    "the model is a DistributedDataParallel already",
                    where="session.setup(model)",
                    fix="session.setup(model.module)",
                )
            )
        model.to(self.device)
        precision.attach(model, self._precision, self.device)
        self._parameters.update(dict.fromkeys(model.parameters()))
        for optimizer in optimizers:
            strategy.replace_parameters(optimizer, self._shards)  # of models sharded earlier
            self._check_parameters(optimizer)
        ready = model if self._world_size == 1 else self._make_parallel(model, optimizers)
        self._outside.watch(model)
        self.models.append(model)
        self.optimizers.extend(optimizers)
        return ready

    def backward(self, loss: torch.Tensor, weight: float | None) -> bool:
        """Compute gradients; return whether the step's gradients are complete."""
        if loss.numel() != 1:
            raise _no_scalar(loss)
        rows = self.tracker.take(weighted=weight is not None)
        is_borrowed = self.tracker.is_borrowed  # the loss of another rank's row
        if (
            weight is None
            and rows is not None
            and not is_borrowed
            and self._num_losses < LOSSES_LOOKED_AT
        ):
            self._look_at(loss, rows.of_rank)
        if is_borrowed:
            weight = None if weight is None else 0.0
            self.few_rows.stop()
        part = self._group.add(rows, weight, again=self.tracker.is_again)
        if part.ends_group and self._armed.models and not self._armed:
            raise _not_averaged()
        if part.rescale != 1.0 and (
            held := [each.grad for each in self._parameters if each.grad is not None]
        ):
            torch._foreach_mul_(held, part.rescale)
        if self.scale is not None:
            loss = self.scale.scale(loss, self._parameters)
        # Passing the factor as the loss's gradient costs less than a product, and keeps out the
        # value of a loss that is NaN because the rank has no rows.
        gradient = None if part.factor == 1.0 else torch.full_like(loss, part.factor)
        with self._outside, nullcontext() if part.factor else self._zeroed(loss):
            if part.ends_group:
                if self._unlearned:
                    self._unlearned -= self._armed.ran()
                with self._armed.fired():
                    loss.backward(gradient)
            else:
                loss.backward(gradient)
        if rows is None and self._accumulate > 1:  # no loader announces the next batch's place
            self._sync(self._group.num_batches + 1 >= self._accumulate)
        if part.ends_group:
            self._complete()
        return part.ends_group

    def _look_at(self, loss: torch.Tensor, num_rows: int) -> None:
        """Refuse a loss that is not a mean over rows; only warn with one rank, where it is right.

        Raises:
            UsageError: The loss is not a mean over rows, and there are several ranks or accumulated
                batches.
        """
        self._num_losses += 1
        is_alone = self._world_size == 1 and self._accumulate == 1
        if function := function_that_sums(loss, num_rows):
            if not is_alone:
                raise loss_is_a_sum(function)
            self._say(
                f"the loss is a sum over rows ({function}); on several ranks it has to be a mean:"
                " loss / len(x)"
            )
        if counted := other_than_rows(loss, num_rows):
            if not is_alone:
                raise not_of_samples(counted)
            self._say(f"{counted}; on several ranks say so: session.backward(loss, weight=n)")

    @contextmanager
    def _zeroed(self, loss: torch.Tensor) -> Iterator[None]:
        """Make a backward produce zeros: the mean over no rows is NaN, and so is 0 * NaN.

        Tensor hooks run before gradients are accumulated and reduced. Hooks are set on the
        parameters, because a reentrant checkpoint hides leaves from the graph, and on the graph's
        leaves, because the leaves that fsdp gathers are not the model's parameters.
        """
        leaves = dict.fromkeys([each for each in self._parameters if each.requires_grad]) | _leaves(
            loss
        )
        handles = [each.register_hook(torch.zeros_like) for each in leaves]
        try:
            yield
        finally:
            for each in handles:
                each.remove()

    def in_training_mode(self) -> bool | None:
        """Return whether a model is in training mode; None without a model."""
        return any(each.training for each in self.models) if self.models else None

    def forward_is_collective(self) -> bool:
        """Return whether every forward is a collective."""
        return self._world_size > 1 and isinstance(self._strategy, strategy.FSDP)

    def drop_unfinished(self) -> None:
        """Drop the gradients of a group whose loop was left before the group's end."""
        if self._group.num_batches and self.tracker.has_left_group:
            self._group.drop()
            for each in self._parameters:
                each.grad = None
            self._say(
                "a loop was left inside a group of accumulated batches; their gradients are dropped"
            )

    def check_frozen(self) -> None:
        """Refuse trained parameters that were frozen when their model was made parallel.

        Raises:
            UsageError: A trained parameter was frozen at ``session.setup``.
        """
        thawed = [name for each, name in self._frozen.items() if each.requires_grad]
        if thawed:
            raise UsageError(
                Finding(
                    "gradients-not-averaged",
                    f"{len(thawed)} parameters were frozen at session.setup and are trained now,"
                    f" {thawed[0]} first",
                    where="requires_grad after session.setup(model)",
                    why=(
                        "only what was trained at session.setup is averaged; ranks would drift"
                        " apart without a word"
                    ),
                    fix=(
                        "freeze after session.setup with DDP(find_unused_parameters=True), or set"
                        " up anew"
                    ),
                )
            )

    def _complete(self) -> None:
        self.steps += 1
        if self._buffered:
            # Looked up at every step, because a script may replace a buffer.
            runtime.copy_from_main(
                [
                    each
                    for module in self._buffered
                    for each in module._buffers.values()
                    if each is not None
                ]
            )
        if self.scale is not None:
            self.scale.settle(self._parameters, self._agree)

    def _agree(self, bad: bool) -> bool:
        # After an all-reduce all ranks hold the same gradients. Shards differ between ranks, and so
        # do another model's gradients that are still being accumulated.
        alike = isinstance(self._strategy, strategy.DDP) and (
            len(self._armed.models) == 1 or self._accumulate == 1
        )
        return bad if alike or self._world_size == 1 else bool(runtime.maxima([bad])[0])

    def _sync(self, ends_group: bool) -> None:
        """Set whether the next forward and backward reduce gradients.

        Shards are reduced in every backward: otherwise fsdp would keep whole gradients between two
        backwards, which costs the memory that it is meant to save, and which cannot be scaled or
        dropped. DDP records a static graph in the first backward that it reduces, and fails with an
        assertion if an unreduced backward came before; averaging already averaged gradients changes
        nothing.
        """
        for each in self._armed.models:
            each.require_backward_grad_sync = ends_group or each in self._unlearned

    def _make_parallel(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        strategy.check_whole(model)
        self._tell_limit(model)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            runtime.copy_from_main([*model.parameters(), *model.buffers()])
            self._note_frozen(model)
            ready = model
        elif isinstance(self._strategy, strategy.FSDP):
            ready = self._shard(model, self._strategy, optimizers)
        else:
            ready = replica = strategy.replicate(model, self._strategy)
            self._armed.watch(replica)
            if self._accumulate > 1:
                replica.require_backward_grad_sync = self._strategy.static_graph
                self._unlearned |= {replica} if self._strategy.static_graph else set()
            self._note_frozen(model)
        self._buffered += [
            each for each in model.modules() if any(True for _ in each.buffers(recurse=False))
        ]
        return ready

    def _note_frozen(self, model: nn.Module) -> None:
        self._frozen |= {
            each: name for name, each in model.named_parameters() if not each.requires_grad
        }

    def _shard(
        self, model: nn.Module, way: strategy.FSDP, optimizers: tuple[Optimizer, ...]
    ) -> nn.Module:
        runtime.copy_from_main([*model.parameters(), *model.buffers()])
        whole = set(model.parameters())
        self._shards |= strategy.shard(model, way, self.device)
        for optimizer in (*self.optimizers, *optimizers):
            strategy.replace_parameters(optimizer, self._shards)
        others = [each for each in self._parameters if each not in whole]
        self._parameters = dict.fromkeys([*others, *model.parameters()])
        return model

    def _check_parameters(self, optimizer: Optimizer) -> None:
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        strange = len(held - set(self._parameters))
        if not strange:
            return
        raise UsageError(
            Finding(
                "optimizer-of-other-model",
                f"{strange} of the {len(held)} parameters of {type(optimizer).__name__} are not the"
                " model's",
                where="session.setup(model, optimizer)",
                why="its steps would leave the model as it is",
                fix=(
                    f"{type(optimizer).__name__}(model.parameters(), ...) just before session.setup"
                ),
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


class ForwardTracker:
    """Tracks which parallel models ran since their last reduced backward; only these are averaged.

    Attributes:
        models: The tracked models, in the order of ``watch``.
    """

    def __init__(self) -> None:
        self.models: list[DistributedDataParallel] = []
        self._ready: dict[int, None] = {}  # numbers of the models that have run

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __deepcopy__(self, _: Any) -> ForwardTracker:
        return self  # a copied model, for example of averaged weights, is not the session's

    def watch(self, model: DistributedDataParallel) -> None:
        """Track the forwards of a model."""
        number = len(self.models)
        self.models.append(model)
        model.register_forward_pre_hook(_Note(self, number))

    def note(self, number: int) -> None:
        """Record that a model has run."""
        self._ready[number] = None

    def ran(self) -> set[DistributedDataParallel]:
        """Return the models that have run."""
        return {self.models[number] for number in self._ready}

    @contextmanager
    def fired(self) -> Iterator[None]:
        """Enclose a reduced backward; check that it only changes gradients of models that had run.

        Raises:
            UsageError: The backward changed gradients of a model that had not run.
        """
        if len(self.models) == 1:
            self._ready.clear()
            yield
            return
        before = [_marks(model) for model in self.models]
        yield
        touched = [
            number for number, model in enumerate(self.models) if _marks(model) != before[number]
        ]
        if any(number not in self._ready for number in touched):
            raise _not_averaged()
        for number in touched:
            del self._ready[number]


class _Note:
    """Forward hook that notes a run; it can be copied together with its model."""

    def __init__(self, armed: ForwardTracker, number: int) -> None:
        self._armed, self._number = armed, number

    def __call__(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._armed.note(self._number)


def _leaves(loss: torch.Tensor) -> dict[torch.Tensor, None]:
    """Return the leaf tensors that the loss's backward accumulates gradients in."""
    found: dict[torch.Tensor, None] = {}
    seen, left = set(), [loss.grad_fn]
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [each for each, _ in node.next_functions]
        if node.name() == "torch::autograd::AccumulateGrad":
            found[node.variable] = None
    return found


def _marks(model: nn.Module) -> list[tuple[int, int]]:
    grads = (each.grad for each in model.parameters())
    return [(id(each), each._version) for each in grads if each is not None]


def _check_kinds(model: Any, optimizers: tuple[Any, ...]) -> None:
    wrong = [each for each in optimizers if not isinstance(each, Optimizer)]
    if isinstance(model, nn.Module) and not wrong:
        return
    given = wrong[0] if wrong else model
    what = (
        f"a {given.__name__} that was not called"
        if isinstance(given, type)
        else f"a {type(given).__name__}"
    )
    raise UsageError(
        Finding(
            "option-invalid",
            f"session.setup got {what} as {'an optimizer' if wrong else 'the model'}",
            where="session.setup(model, optimizer)",
            fix=(
                "session.setup(model, torch.optim.AdamW(model.parameters())); a scheduler goes to"
                " session.register"
            ),
        )
    )


def _check_together(chosen: precision.Precision, way: strategy.Strategy) -> None:
    if not (chosen.scaled and isinstance(way, strategy.DDP) and way.comm_hook == "powersgd"):
        return
    raise UsageError(
        Finding(
            "option-contradicted",
            "powersgd adds what it left unsent to the next step, and the loss scale of"
            f" {chosen.name} has changed then",
            where=f'Session(precision="{chosen.name}", strategy=DDP(comm_hook="powersgd"))',
            fix='Session(precision="bf16-mixed"), or DDP(comm_hook="fp16")',
        )
    )


def _no_scalar(loss: torch.Tensor) -> UsageError:
    return UsageError(
        Finding(
            "option-invalid",
            f"the loss has shape {list(loss.shape)}, and one number is needed",
            where="session.backward(loss)",
            fix="session.backward(loss.mean())",
        )
    )


def _not_averaged() -> UsageError:
    return UsageError(
        Finding(
            "gradients-not-averaged",
            "no parallel model has run since the last backward, so these gradients would stay on"
            " this rank",
            where="session.backward(loss)",
            why=(
                "DDP averages in the first backward after a forward of the model that setup"
                " returned; ranks would drift apart without a word"
            ),
            fix=(
                "add the losses up and call session.backward(first + second) once, and call the"
                " model that session.setup returned, not the one inside"
            ),
        )
    )


def check_accumulate(accumulate: int) -> None:
    """Refuse a value that is not a positive number of batches.

    Raises:
        UsageError: The value is not a positive int.
    """
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise UsageError(
            Finding(
                "option-invalid",
                f"accumulate={accumulate!r} is not a positive int",
                where="Session(accumulate=...)",
                fix="Session(accumulate=4): gradients of four batches make one step",
            )
        )
