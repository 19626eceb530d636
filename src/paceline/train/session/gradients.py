"""Make models parallel, and run backward so that gradients do not depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from paceline.errors import Notice
from paceline.machine.compiled import not_compiled
from paceline.text import terminal
from paceline.train import runtime
from paceline.train.data import BatchTracker, Rows, not_of_samples
from paceline.train.model import (
    deferred,
    fsdp_options,
    keys,
    parallel,
    sharded,
    whole_matrix,
)
from paceline.train.model import precision as precisions
from paceline.train.model import strategy as strategies
from paceline.train.model.mesh import DataRanks
from paceline.train.session import averaging, checks, rank_check, weights
from paceline.train.session.few_rows import FewRows
from paceline.train.session.foreign_backward import Copies, OutsideBackward
from paceline.train.session.limits import RankDependence
from paceline.train.session.loss_weight import (
    ACCUMULATES,
    LossFactors,
    StepGroup,
    function_that_sums,
    loss_is_a_sum,
    nodes_of,
    other_than_rows,
)
from paceline.train.session.step_guard import ForwardTracker, StepGuard, not_averaged

LOSSES_INSPECTED = 3  # a script's losses are of one kind; inspecting one takes microseconds


class Gradients:
    """A session's models, and the computation of their gradients."""

    def __init__(
        self,
        *,
        data: DataRanks,
        num_ranks: int,  # also those that see the same rows
        device: torch.device,
        precision: precisions.Precision,
        strategy: strategies.Strategy,
        accumulate: int,  # batches in a step
        say: Callable[[str], None],  # prints a line on rank 0
        check_ranks: bool = True,  # compare ranks after steps 1, 2, 4, 8, ... and at saves
    ) -> None:
        self.models: list[nn.Module] = []  # user's modules, in the order of setup
        self.optimizers: list[Optimizer] = []  # models' optimizers, in the order of setup
        # loss scale; None unless the precision is float16
        self._world_size, self.device = data.world.world_size, device
        self.scale = precisions.LossScale(device, self._world_size) if precision.scaled else None
        self.steps = 0  # number of completed steps
        self._data, self._num_ranks = data, num_ranks
        self._precision, self._strategy, self._say = precision, strategy, say
        self.tracker = BatchTracker()  # knows which batch a loss belongs to
        # watches the models while a rank has few rows
        self.few_rows = FewRows(self.models, self.forward_is_collective, rank=runtime.rank())
        self._group = StepGroup(
            self._world_size,
            accumulate,
            lambda weight: float(runtime.sum_over_ranks(weight, data.group)),
        )
        self._parameters: dict[nn.Parameter, None] = {}  # of all models, in order
        self._buffered: list[nn.Module] = []  # modules with buffers, which are kept equal
        self._frozen: dict[nn.Parameter, str] = {}  # names of parameters frozen at setup
        self._forwards = ForwardTracker()
        self._outside = OutsideBackward()
        self._copies = Copies()
        # what makes results depend on the number of ranks
        self.limits = RankDependence(say, device=device, strategy=strategy)
        self._num_losses = 0  # losses inspected so far
        self._num_backwards, self._rank = 0, runtime.rank()
        self._without_graph: set[DistributedDataParallel] = set()  # DDP has no static graph yet
        # parameter to its shard, with fsdp, or to what replaced it on the meta device
        self._shards: dict[nn.Parameter, nn.Parameter] = {}
        self._ignored: list[nn.Parameter] = []  # of fsdp, which does not average their gradients
        if isinstance(strategy, strategies.FSDP):
            fsdp_options.check(strategy, precision, data)
        self._has_dtensors = False  # of a model that the user or this session has made so
        self.check = rank_check.RankCheck(is_on=check_ranks and num_ranks > 1)  # compares ranks
        self._guard: StepGuard | None = None
        if self._world_size > 1:
            self._guard = StepGuard(
                is_set_up=lambda parameter: parameter in self._parameters,
                is_inside_group=lambda: (
                    self._group.num_batches > 0 and not self.forward_is_collective()
                ),
                has_batch=lambda: self.tracker.last is not None,
            )
        self.accumulate = accumulate

    @property
    def accumulate(self) -> int:
        """Batches in a step."""
        return self._group.accumulate

    @accumulate.setter
    def accumulate(self, accumulate: int) -> None:
        checks.check_accumulate(accumulate)
        is_in_group = self._group.num_batches > 0 and not self.tracker.has_left_group
        if accumulate != self._group.accumulate and (self.tracker.is_training or is_in_group):
            raise checks.inside_a_loop()
        self._group.accumulate = accumulate
        self._num_losses = 0  # a loss that is right alone may be wrong beside others
        is_alone = accumulate == 1 or self._world_size == 1
        self.tracker.on_sync = None if is_alone else self._sync
        is_any_batch_right = accumulate == 1 and self._world_size == 1
        self.tracker.on_held = self._say_held if is_any_batch_right else None
        self._sync(accumulate == 1)

    def setup(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        """Move a model to the device, set its precision and make it parallel; return it."""
        checks.check_kinds(model, optimizers)
        checks.check_is_plain(model)
        is_trained = any(parameter.requires_grad for parameter in model.parameters())
        is_fsdp = self._world_size > 1 and isinstance(self._strategy, strategies.FSDP)
        self._place(model, is_sharded=is_trained and is_fsdp)
        keys.accept_wrapped(model)
        self._parameters.update(dict.fromkeys(model.parameters()))
        for optimizer in optimizers:
            strategies.move_state(optimizer, self.device)
            # of models sharded earlier, or built on the meta device
            strategies.replace_parameters(optimizer, self._shards)
            checks.check_parameters(optimizer, self._parameters, model)
        ready = model
        if self._num_ranks > 1:
            ready = self._make_parallel(model, optimizers)
        # a model of ignored parameters alone is averaged as one with shards
        self._has_dtensors |= bool(self._ignored)
        self._has_dtensors |= any(map(sharded.is_dtensor, model.parameters()))
        for optimizer in optimizers:
            fsdp_options.step_one_by_one(optimizer)
            whole_matrix.check(optimizer)
        self._outside.watch(model)
        self.models.append(model)
        self.optimizers.extend(optimizers)
        return ready

    def _place(self, model: nn.Module, *, is_sharded: bool) -> None:
        """Move a model to the device in its precision, unless sharding does."""
        is_deferred = deferred.is_deferred(model)
        is_offloaded = is_sharded and getattr(self._strategy, "offload", False)
        if not is_offloaded and not is_deferred:
            sharded.move(model, self.device)
        precisions.attach(model, self._precision, self.device)
        if is_deferred and not is_sharded:
            self._shards |= deferred.materialize(model, self.device)
        if self._world_size == 1 and getattr(self._strategy, "mixed_precision", None) is not None:
            self._say("one rank computes without FSDP(mixed_precision=...), which acts on shards")

    def backward(self, loss: torch.Tensor, weight: float | None) -> bool:
        """Compute gradients; return whether the step's gradients are complete."""
        checks.require_loss(loss)
        part, rows = self._place_in_group(loss, weight)
        self._check_averaged(loss, part)
        if part.rescale != 1.0:
            self._rescale(part.rescale)
        watch = self.limits.draws
        if watch is not None:
            watch.before_backward()
        if self.scale is not None:
            loss = self.scale.scale(loss, self._parameters)
        # Passing the factor as the loss's gradient costs less than a product, and keeps out the
        # value of a loss that is NaN because the rank has no rows.
        gradient = None if part.factor == 1.0 else torch.full_like(loss, part.factor)
        try:
            is_due = part.ends_group and self.check.num_steps == self.check.due
            if is_due and not self._has_dtensors:
                self.compare_ranks()
            with self._outside:
                if part.factor:
                    self._run_backward(loss, gradient, part.ends_group)
                else:
                    with self._zeroed(loss):
                        self._run_backward(loss, gradient, part.ends_group)
            if is_due:  # DTensors, some of which are gathered before the backward
                self._compare_dtensors()
        except RuntimeError as error:
            if runtime.is_of_collective(error):
                self._say_position()
            raise
        self._num_backwards += 1
        if rows is None and self.accumulate > 1:  # no loader determines the next batch's place
            self._sync(self._group.num_batches + 1 >= self.accumulate)
        if part.ends_group:
            self._complete()
        if watch is not None:
            watch.after_backward()
        return part.ends_group

    def _check_averaged(self, loss: torch.Tensor, part: LossFactors) -> None:
        """Check that the gradients of what a loss trains will be averaged."""
        if part.ends_group and self._forwards.models and not self._forwards:
            raise not_averaged()
        if self._guard is not None and self._guard.inspects:
            if not self._num_backwards:  # what is frozen after setup counts as such
                self.limits.note_models(self.models)
            self._guard.inspect(_leaves(loss), has_models=bool(self.models))

    def _place_in_group(
        self, loss: torch.Tensor, weight: float | None
    ) -> tuple[LossFactors, Rows | None]:
        """Return the factors of a loss, and the rows of its batch; None without a loader."""
        rows = self.tracker.take(weighted=weight is not None)
        if self.tracker.is_borrowed:  # the loss of another rank's row
            weight = None if weight is None else 0.0
            self.few_rows.stop()
        elif self._num_losses < LOSSES_INSPECTED and weight is None and rows is not None:
            self._inspect(loss, rows.of_rank)
        return self._group.add(rows, weight, again=self.tracker.is_again), rows

    def _say_held(self, what: str) -> None:
        self.tracker.on_held = lambda _: None  # said once
        self._say(
            f"{what}: right on one rank; several ranks refuse it without session.backward(loss,"
            " weight=number_of_samples)"
        )

    def _say_position(self) -> None:
        """Print how far this rank has come, where its exchange of gradients has failed."""
        loop = self.tracker.last
        batch = f"batch {loop.number + 1} of epoch {loop.epoch}, " if loop else ""
        notice = Notice(
            f"rank {self._rank}: the exchange of gradients failed in backward"
            f" {self._num_backwards + 1} ({batch}{self.steps} steps made)",
            ("another rank has died or ended, or makes fewer or other backwards",),
            "compare this line of all ranks: each has to call session.backward as often",
        )
        terminal.say(notice.render())  # every rank, since each has come so far

    def _rescale(self, factor: float) -> None:
        """Multiply the gradients of the group's earlier batches."""
        if gradients := sharded.local_gradients(self._parameters):
            torch._foreach_mul_(gradients, factor)

    def _run_backward(self, loss: torch.Tensor, gradient: torch.Tensor | None, ends: bool) -> None:
        """Run a backward; DDP averages gradients in the backward that ends a group."""
        if not ends:
            loss.backward(gradient)
            return
        if self._without_graph:
            self._without_graph -= self._forwards.models_that_ran()
        if len(self._forwards.models) > 1:
            with self._forwards.reduced_backward():
                loss.backward(gradient)
        else:
            self._forwards.clear()
            loss.backward(gradient)

    def _inspect(self, loss: torch.Tensor, num_rows: int) -> None:
        """Refuse a loss that is not a mean over rows; warn with one rank, where it is right."""
        self._num_losses += 1
        is_alone = self._world_size == 1 and self.accumulate == 1
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
            self._say(f"{counted}; on several ranks, pass it: session.backward(loss, weight=n)")

    @contextmanager
    def _zeroed(self, loss: torch.Tensor) -> Iterator[None]:
        """Make a backward produce zeros: the mean over no rows is NaN, and so is 0 * NaN.

        Tensor hooks run before gradients are accumulated and reduced. Hooks are set on the
        parameters, because a reentrant checkpoint hides leaves from the graph, and on the graph's
        leaves, because the leaves that fsdp gathers are not the model's parameters.
        """
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        leaves = dict.fromkeys(trained) | _leaves(loss)
        handles = [leaf.register_hook(torch.zeros_like) for leaf in leaves]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def in_training_mode(self) -> bool | None:
        """Return whether a model is in training mode; None without a model."""
        return any(model.training for model in self.models) if self.models else None

    def forward_is_collective(self) -> bool:
        """Return whether every forward is a collective, as with shards."""
        is_sharded = self._world_size > 1 and isinstance(self._strategy, strategies.FSDP)
        return is_sharded or self._has_dtensors

    def drop_group(self) -> None:
        """Begin a new group with the next batch; its gradients stay."""
        self._group.drop()

    def drop_unfinished(self) -> None:
        """Drop the gradients of a group whose loop was left before the group's end."""
        if self._group.num_batches and self.tracker.has_left_group:
            self._group.drop()
            for parameter in self._parameters:
                parameter.grad = None
            self._say(
                "a loop was left inside a group of accumulated batches; their gradients are dropped"
            )

    def check_frozen(self) -> None:
        """Refuse trained parameters that were frozen when their model was made parallel."""
        checks.check_frozen(self._frozen)

    def module_of(self, model: nn.Module | None) -> nn.Module:
        """Return a module that was set up; the only one if None.

        Raises UsageError if there are several, or none, or the module was not set up.
        """
        where = "session.load(FILE, model)"
        if model is not None:
            checks.check_is_set_up(model, self.models, where=where)
            return model
        if len(self.models) != 1:
            raise checks.which_model(len(self.models), where=where)
        return self.models[0]

    def load(self, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
        """Load weights into a module that was set up; a collective."""
        weights.load(model, state)
        if self._world_size > 1 and isinstance(self._strategy, strategies.DDP):
            # Files at the same path on different nodes may differ.
            tensors = [*model.parameters(), *model.buffers()]
            plain = [tensor for tensor in tensors if not sharded.is_dtensor(tensor)]
            runtime.copy_from_main(plain, self._data.group)

    def average(self, model: nn.Module, decay: float) -> AveragedModel:
        """Return the moving average of a module that was set up; updated after each step.

        Raises UsageError if the module was not set up, or the strategy is not ddp.
        """
        checks.check_is_set_up(model, self.models, where="session.average(model, decay=...)")
        if self.forward_is_collective():
            raise averaging.not_whole()
        return averaging.average(model, decay, self.optimizers, say=self._say)

    def begin_collective(self) -> None:
        """Prepare for a collective of the script, for which all ranks must be at the same place."""
        self.tracker.note_collective()

    def _compare_dtensors(self) -> None:
        if self._has_dtensors:
            self.compare_ranks()

    @not_compiled
    def compare_ranks(self) -> None:
        """Compare what ranks hold after the steps so far; a collective.

        Raises RunError if they differ, after the first steps or in what was never averaged.
        """
        self.check.compare(
            self.models, self.optimizers, step=self.steps, frozen=self._frozen.values()
        )
        for model in self._forwards.models:
            # For the probe, which leaves it alone then.
            object.__setattr__(model, "compares_ranks", self.check.count > 0)
        if self._guard is not None:
            self._guard.inspects = True

    def _complete(self) -> None:
        self.steps += 1
        self.check.num_steps += 1
        if self._buffered:
            # Looked up at every step, because a script may replace a buffer.
            runtime.copy_from_main(
                [
                    buffer
                    for module in self._buffered
                    for buffer in module._buffers.values()
                    if buffer is not None
                ],
                self._data.group,
            )
        if self._has_dtensors:
            fsdp_options.average(self._ignored, self._data.group)
            sharded.complete_gradients(self._parameters)
        if self.scale is not None:
            self.scale.settle(self._parameters, self._agree)

    def _agree(self, bad: bool) -> bool:
        """Return whether any rank has non-finite gradients."""
        # After an all-reduce all ranks hold the same gradients. Shards differ between ranks, and so
        # do another model's gradients that are still being accumulated.
        is_ddp = not self.forward_is_collective()
        is_all_reduced = is_ddp and (len(self._forwards.models) == 1 or self.accumulate == 1)
        if is_all_reduced or self._num_ranks == 1:
            return bad
        return bool(runtime.maxima([bad])[0])

    def _sync(self, ends_group: bool) -> None:
        """Set whether the next forward and backward reduce gradients.

        Shards are reduced in every backward: otherwise fsdp would keep whole gradients between two
        backwards, which costs the memory that it is meant to save, and which cannot be scaled or
        dropped. DDP records a static graph in the first backward that it reduces, and fails with an
        assertion if an unreduced backward came before; averaging already averaged gradients changes
        nothing.
        """
        for model in self._forwards.models:
            model.require_backward_grad_sync = ends_group or model in self._without_graph

    def _make_parallel(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        is_trained = any(parameter.requires_grad for parameter in model.parameters())
        is_sharded = any(map(sharded.is_dtensor, model.parameters()))
        is_averaged = self._world_size == 1 or not is_trained
        if self._data.mesh is None:
            strategies.check_whole(model)
        elif is_sharded and not is_averaged:
            is_averaged = sharded.averages_itself(model, self._data)
        if self._data.has_peers and not is_sharded and not deferred.is_deferred(model):
            rank_check.require_equal(model)
        if is_averaged:  # by what the user has called, or there is nothing to average
            self._begin_equal(model)
            if not is_trained and self._world_size > 1:
                self._note_frozen(model)
            ready = model
        elif is_sharded or isinstance(self._strategy, strategies.FSDP):
            self._begin_equal(model)
            ready = self._shard(model, optimizers)
        else:  # which copies the first rank's parameters and buffers itself
            replica = strategies.replicate(model, self._strategy, self._data.group)
            ready = parallel.wrap(replica, self._copies.watch)
            if hasattr(model, "module"):
                self._say(
                    f"model.module is the {type(model).__name__} on several ranks, as of every"
                    " DistributedDataParallel; its own attribute: model.module.module"
                )
            self._forwards.watch(replica)
            if self._strategy.static_graph:
                self._without_graph.add(replica)
            replica.require_backward_grad_sync = self.accumulate == 1 or self._strategy.static_graph
            self._note_frozen(model)
        self._buffered += [
            module for module in model.modules() if any(True for _ in module.buffers(recurse=False))
        ]
        return ready

    def _note_frozen(self, model: nn.Module) -> None:
        self._frozen |= {
            parameter: name
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }

    def _begin_equal(self, model: nn.Module) -> None:
        """Let all ranks begin with the same model."""
        if deferred.is_deferred(model):
            return  # it gets its values when it is sharded
        if self._data.mesh is None:
            runtime.copy_from_main([*model.parameters(), *model.buffers()])
            return
        for group, tensors in sharded.copies_of(model, self._data):
            runtime.copy_from_main(tensors, group)

    def _shard(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> nn.Module:
        whole = set(model.parameters())
        mesh = self._data.submesh()
        if isinstance(self._strategy, strategies.FSDP):
            self._shards |= strategies.shard(model, self._strategy, self.device, mesh)
            parameters = model.parameters()
            self._ignored += [one for one in parameters if not sharded.is_dtensor(one)]
        else:
            assert mesh is not None  # without one, parameters are plain
            self._shards |= strategies.replicate_sharded(model, self._strategy, mesh)
        for optimizer in (*self.optimizers, *optimizers):
            strategies.replace_parameters(optimizer, self._shards)
        others = [parameter for parameter in self._parameters if parameter not in whole]
        self._parameters = dict.fromkeys([*others, *model.parameters()])
        return model


def _leaves(loss: torch.Tensor) -> dict[torch.Tensor, None]:
    """Return the leaf tensors that the loss's backward accumulates gradients in."""
    nodes = nodes_of(loss)
    return {node.variable: None for node in nodes if node.name() == ACCUMULATES}
