"""The training API: what a script meets."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast, overload

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline import env, runtime, world
from paceline.data import Loader, Tally
from paceline.errors import Finding, UsageError

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # not SyncBatchNorm; the lazy ones derive
DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class Session:
    """Data-parallel training in which the number of processes is not a hyperparameter.

    The same script runs unlaunched (a world of one), under ``paceline run``, torchrun or srun, and gives the
    same samples in the same order, the same batches and the same updates. What this cannot cover: batch
    norm's statistics are those of each rank's share of a batch, and dropout masks are drawn on each rank.

        session = paceline.Session(seed=0)
        model, optimizer = session.setup(model, optimizer)
        train = session.loader(train_set, batch_size=512, shuffle=True)
        for epoch in session.epochs(10):
            for x, y in train:
                session.backward(cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    The process group is closed at the end of a script that succeeds.

    Args:
        seed: Seed of the order of samples.
        timeout_s: Seconds after which a collective fails that other ranks did not join; torch's default if
            None (1800 with gloo, 600 with NCCL).

    Raises:
        UsageError: The environment describes no world, or ``timeout_s`` is bad or without effect.
        SetupError: There are fewer GPUs than ranks on this node.
    """

    def __init__(self, *, seed: int = 0, timeout_s: float | None = None) -> None:
        self._seed = seed
        self._world = runtime.actual_world(world.from_environ(env.snapshot()))
        self._device = runtime.take_device(self._world)
        runtime.open_group(self._world, self._device, timeout_s=timeout_s)
        self._tally = Tally()
        self._parameters: set[nn.Parameter] = set()  # of all models that were set up
        self._buffered: list[nn.Module] = []  # models whose buffers are to be kept equal
        self._say(self._describe())

    @property
    def rank(self) -> int:
        """Global rank, 0 to ``world_size - 1``."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world.world_size

    @property
    def local_rank(self) -> int:
        """Rank on this node."""
        return self._world.local_rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._world.rank == 0

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self._device

    @overload
    def setup(self, model: Module, /) -> Module: ...
    @overload
    def setup(self, model: Module, optimizer: AnyOptimizer, /) -> tuple[Module, AnyOptimizer]: ...
    @overload
    def setup(self, model: Module, /, *optimizers: Optimizer) -> tuple[Any, ...]: ...
    def setup(self, model: nn.Module, /, *optimizers: Optimizer) -> Any:
        """Move a model to the device and make it data-parallel.

        All ranks start from rank 0's parameters and buffers.

        Args:
            model: A plain module. With several models that share an optimizer, set up first those without it.
            *optimizers: Those that update it, made before or after; they come back as they are.

        Returns:
            The model itself in a world of one or if it has no parameter to train, else a plain
            ``DistributedDataParallel`` around it; with optimizers a tuple of that and them.

        Raises:
            UsageError: The model is wrapped already, or an optimizer holds parameters of something else.
        """
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
        self._parameters.update(model.parameters())
        for optimizer in optimizers:
            self._check_parameters(optimizer)
        ready = model if self.world_size == 1 else self._parallel(model)
        return (ready, *optimizers) if optimizers else ready

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        per_rank_batch_size: int | None = None,
        shuffle: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
    ) -> Loader:
        """Return an iterable of batches on the device, shared out among the ranks.

        Each epoch has every sample exactly once, also where a batch or the dataset doesn't divide: shares
        are then uneven by one sample, and a rank without a sample gets a batch of zero rows. A mean over zero
        rows is NaN, so evaluate with sums: ``session.reduce(loss_sum)``.

        Args:
            dataset: A map-style dataset: ``__len__`` and ``__getitem__``.
            batch_size: Samples of a step, all ranks together. This or the next is needed.
            per_rank_batch_size: Samples of a step on each rank.
            shuffle: Whether each epoch has a new order, a function of seed and epoch alone. Without, the
                order is that of the dataset.
            num_workers: As in torch's DataLoader, and so the next ones: processes that load.
            collate_fn: Makes a batch of a list of samples; torch's default if None.
            pin_memory: Whether batches are copied to pinned memory first.
            persistent_workers: Whether workers outlive an epoch.
            prefetch_factor: Batches that each worker loads ahead.

        Raises:
            UsageError: The dataset cannot be shared out, a batch size is bad, or options exclude each other.
        """
        return Loader(
            dataset,
            batch_size=batch_size,
            per_rank_batch_size=per_rank_batch_size,
            shuffle=shuffle,
            seed=self._seed,
            world=self._world,
            device=self._device,
            tally=self._tally,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
        )

    def backward(self, loss: torch.Tensor) -> bool:
        """Compute gradients, such that they are those of the mean over the global batch.

        Call it once for each forward: DDP averages over ranks in the first backward after a forward of its
        module, and not in a second. Several losses of a step are added up first.

        Args:
            loss: The mean over this rank's rows of the batch that its loader yielded last, shape ``[]``.

        Returns:
            Whether the optimizer is to step now; always True.

        Raises:
            UsageError: Loaders were advanced in a way that leaves open which batch the loss belongs to.
        """
        rows, world_size = self._tally.take(), self._world.world_size
        if rows is None or rows.of_batch % world_size == 0:
            loss.backward()
        else:
            # DDP takes the mean over ranks, so a share of another size needs its weight. As the gradient of the
            # loss it costs less than as a factor, and a loss that is NaN for want of rows stays out of it.
            loss.backward(loss.new_full((), rows.of_rank * world_size / rows.of_batch))
        if self._buffered:
            runtime.copy_from_main([each for model in self._buffered for each in model.buffers()])
        return True

    def reduce(self, value: T) -> T:
        """Return the sum of ``value`` over all ranks, on all of them.

        Args:
            value: An int (summed exactly), a float (in float64), a tensor of any shape (the same on all
                ranks), or a dict, list or tuple of them. A bool counts as an int; tensors of booleans or
                narrow integers come back as int64, as from ``torch.sum``.

        Raises:
            UsageError: ``value`` is, or holds, something else.
        """
        return cast(T, runtime.sum_over_ranks(value))

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0."""
        yield from range(num_epochs)

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            builtins.print(*values, flush=True)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        runtime.barrier()

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's own module of one that ``setup`` returned."""
        return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model

    def _parallel(self, model: nn.Module) -> nn.Module:
        self._tell_limit(model)
        if any(parameter.requires_grad for parameter in model.parameters()):
            wrapped = DistributedDataParallel(model)
            # DDP would synchronise buffers in the next forward, and so make a collective of an evaluation; we
            # do it after backward. Set here, because the argument of this name also skips the start from rank
            # 0's buffers, and is deprecated, while its successor is younger than the oldest torch we run on.
            wrapped.broadcast_buffers = False
            if any(True for _ in model.buffers()):
                self._buffered.append(model)
            return wrapped
        runtime.copy_from_main([*model.parameters(), *model.buffers()])
        return model

    def _check_parameters(self, optimizer: Optimizer) -> None:
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        strange = len(held - self._parameters)
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
        if any(isinstance(each, BATCH_NORMS) for each in modules):
            limits.append("batch norm's statistics are those of a rank's own rows")
        if any(isinstance(each, DROPOUTS) and each.p > 0 for each in modules):
            limits.append("dropout masks are drawn on each rank")
        if limits:
            self._say(f"results depend on the number of ranks here: {'; '.join(limits)}")

    def _describe(self) -> str:
        backend = runtime.backends().get(self._device.type)
        ranks = f"{self.world_size} ranks over {backend}" if backend else "1 rank"
        return f"launcher {self._world.launcher} ({self._world.reason}); {ranks}; rank 0 on {self._device}"

    def _say(self, text: str) -> None:
        if self.is_main:
            builtins.print(f"paceline: {text}", file=sys.stderr, flush=True)
