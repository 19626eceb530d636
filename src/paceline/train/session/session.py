"""The public Session class, which scripts use to train."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.machine import own_world
from paceline.rundir.files import RunDir
from paceline.train import logging, runtime
from paceline.train.checkpoint import Checkpoints
from paceline.train.data import Loader, RowRandom, adopted, derive, seed_device
from paceline.train.model import precision as precisions
from paceline.train.model import strategy as strategies
from paceline.train.model.mesh import data_ranks
from paceline.train.session import scaling, stopping
from paceline.train.session.checks import check_accumulate, check_names
from paceline.train.session.gradients import Gradients
from paceline.train.session.loader_context import loader_context
from paceline.train.session.models import SessionModels
from paceline.train.session.progress import SessionProgress, read_seed
from paceline.train.session.ranks import MainPrinter, describe_world
from paceline.train.session.run_folder import SessionFolder
from paceline.world import World

Module = TypeVar("Module", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


class Session(SessionModels):
    """Data-parallel training in which the number of processes is not a hyperparameter.

    The same script runs without a launcher (a world of one), and under ``paceline run``, torchrun,
    srun or mpirun. It sees the same samples in the same order, the same batches and the same
    updates, also when it is stopped at any step and resumed with another number of ranks. Two
    things still depend on the number of ranks: batch norm's statistics cover each rank's share of a
    batch (unless synchronized, on GPUs), and dropout masks are drawn on each rank.

        session = paceline.Session(seed=0)
        model, optimizer = session.setup(model, optimizer)
        train = session.loader(train_set, batch_size=512, shuffle=True)
        session.restore("latest")
        for epoch in session.epochs(10):
            for x, y in train:
                if session.backward(cross_entropy(model(x), y)):
                    optimizer.step()
                    optimizer.zero_grad()
            session.save()

    A script that saves or restores also stops cleanly: at SIGTERM, SIGUSR1, SIGUSR2, Ctrl-C or
    ``session.stop()`` all ranks end after a complete step, with a checkpoint and exit status 75
    (resumable). A successful script closes the process group at its end.

    Args:
        precision: ``"32-true"``, ``"64-true"``, ``"16-mixed"`` (float16 with a loss scale),
            ``"bf16-mixed"`` or ``"bf16-true"``.
        accumulate: Batches in a step. ``backward`` returns True at the last batch of a step.
        strategy: ``"ddp"``, ``"fsdp"``, or a ``paceline.DDP`` or ``FSDP``.
        seed: Seed of the order of samples and of their random numbers (0 if None). If given, it
            also seeds the global generators of Python, NumPy and torch: equally on all ranks up to
            the first batch, differently afterwards.
        timeout_s: Seconds until a collective fails that other ranks did not join. None means
            torch's default (1800 with gloo, 600 with NCCL).
        mesh: A ``DeviceMesh`` of all ranks with named dimensions, for models that are made parallel
            with ``parallelize_module`` or ``fully_shard`` before ``setup``; or its sizes by name,
            one of which may be -1: ``{"dp": -1, "tp": 2}``, then ``session.mesh``.
        data: Dimensions of the mesh over which the data is shared out, ``()`` for none. Ranks that
            differ in another dimension see the same rows.
        run_dir: Folder of checkpoints and logs. None means the folder of ``paceline run``, or one
            in ``paceline-runs/`` for this script, arguments, array element and Session.
            ``other.run_dir`` shares the folder of another Session.
        loggers: Where ``log`` writes: "csv", "tensorboard", "wandb", "mlflow", "trackio", objects.
        check_ranks: Whether parameters, optimizer state and settings of the ranks are compared
            after steps 1, 2, 4, 8, ... and at saves. If they differ after the first two steps, the
            script ends; later a warning says so.

    Raises:
        UsageError: The environment describes no world, or an argument is invalid or has no effect.
        SetupError: There are fewer GPUs than ranks on this node, or the GPU only emulates bfloat16.
    """

    if not TYPE_CHECKING:  # a type checker reports unknown names itself

        def __new__(cls, *_: Any, **options: Any) -> Session:
            """Refuse options that do not exist, with the closest one that does."""
            check_names(cls, options)
            return super().__new__(cls)

    def __init__(
        self,
        *,
        precision: str = "32-true",
        accumulate: int = 1,
        strategy: str | strategies.Strategy = "ddp",
        seed: int | None = None,
        timeout_s: float | None = None,
        mesh: DeviceMesh | Mapping[str, int] | None = None,
        data: str | tuple[str, ...] = "dp",
        run_dir: str | os.PathLike[str] | RunDir | None = None,
        loggers: Sequence[logging.Logger | str] = ("csv",),
        check_ranks: bool = True,
    ) -> None:
        check_accumulate(accumulate)
        self._world = runtime.actual_world(own_world.read())
        self._device = runtime.take_device(self._world)
        self._precision = precisions.choose(precision, self._device)
        self._seed, self._seeded = read_seed(seed), seed is not None
        self._printer = MainPrinter(is_main=self.is_main)
        chosen = strategies.choose(strategy, self._device)
        of_one = isinstance(mesh, Mapping)
        runtime.open_group(self._world, self._device, timeout_s=timeout_s, of_one=of_one)
        self._data = data_ranks(mesh, data, world=self._world, device=self._device)
        if mesh is not None:
            runtime.keep_groups()
        self._gradients = Gradients(
            data=self._data,
            num_ranks=self.world_size,
            device=self._device,
            precision=self._precision,
            strategy=chosen,
            accumulate=accumulate,
            say=self._printer.say_once,
            check_ranks=check_ranks,
        )
        self._tracker = self._gradients.tracker
        if self.is_main and self._data.world.world_size > 1:
            self._gradients.limits.watch_draws(self._tracker, is_seeded=self._seeded)
        self._draws = RowRandom(
            self._tracker, seed=self._seed, rank=self._data.world.rank, device=self._device
        )
        self._place = SessionFolder(run_dir or None, world=self._world)
        self._checkpoints = Checkpoints(
            self.run_dir.checkpoints,
            world=self._world,
            device=self._device,
            guard=self._place.require_own,
        )
        weakref.finalize(self, self._place.release_soon).atexit = False  # after stopping.finish
        self._progress = SessionProgress(
            world=self._world,
            data=self._data,
            device=self._device,
            seed=self._seed,
            gradients=self._gradients,
            checkpoints=self._checkpoints,
            place=self._place,
            say=self._printer.say_once,
            reseed=derive("rank", self._seed, self._data.world.rank) if self._seeded else None,
        )
        self._loggers = logging.Loggers(loggers, self.run_dir, self._printer)
        if self._seeded:
            seed_device(self._seed)
        proven = None
        if self.is_main and self.world_size > 1:
            epochs = self._tracker.whole_epochs
            proven = stopping.Proven(self._gradients.check, epochs, self._gradients.limits.parts)
        atexit.register(stopping.finish, self._checkpoints, self._loggers, proven)
        # paceline's launcher prints its own line, and one process has nothing to say
        if self._world.launcher != "paceline" and self._world != World():
            mesh_line = self._data.describe()
            self._printer.say(describe_world(self._world, self._device, mesh_line))

    @property
    def step(self) -> int:
        """Number of completed steps (``backward`` returned True), also before a restore."""
        return self._gradients.steps

    @property
    def accumulate(self) -> int:
        """Batches in a step; set it before a loop over a loader to change it for this epoch.

        Raises:
            UsageError: It is set to less than 1, or in the middle of a loop.
        """
        return self._gradients.accumulate

    @accumulate.setter
    def accumulate(self, accumulate: int) -> None:
        self._gradients.accumulate = accumulate

    @property
    def draws(self) -> RowRandom:
        """Random numbers for the rows of the current batch, equal on any number of ranks."""
        return self._draws

    @property
    def run_dir(self) -> RunDir:
        """Run folder of checkpoints and logs, and the names of its files."""
        return self._place.run_dir

    @overload
    def setup(self, model: Module, /) -> Module: ...
    @overload
    def setup(self, model: Module, optimizer: AnyOptimizer, /) -> tuple[Module, AnyOptimizer]: ...
    @overload
    def setup(self, model: Module, /, *optimizers: Optimizer) -> tuple[Any, ...]: ...
    def setup(self, model: nn.Module, /, *optimizers: Optimizer) -> Any:
        """Move a model to the device, set its precision, and make it data-parallel.

        All ranks start from rank 0's parameters and buffers.

        Args:
            model: A plain module, or on a mesh one with DTensors. If several models share an
                optimizer, pass it with the last one.
            *optimizers: The model's optimizers, made before or after; returned unchanged.

        Returns:
            The model itself in a world of one, with fsdp, or if no parameter is
            trained; else a ``DistributedDataParallel`` with the model's attributes, methods and
            keys, also for ``isinstance``. With optimizers, a tuple of the model and them.

        Raises:
            UsageError: The model is wrapped already, or an optimizer holds other parameters.
        """
        ready = self._gradients.setup(model, optimizers)
        return (ready, *optimizers) if optimizers else ready

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        per_rank_batch_size: int | None = None,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        last: str | None = None,
        per_rank: bool = False,
        sharded: bool | None = None,
        sharded_by_worker: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        instead_of: Loader | None = None,
        **options: Any,
    ) -> Loader:
        """Return an iterable of batches on the device, distributed over the ranks.

        Each epoch has every sample exactly once, even if the dataset or a batch cannot be divided
        evenly: shares then differ by one sample. In training, a rank without a sample computes
        another rank's row, which has no weight: ``loader.rows`` is 0 there. An evaluation skips
        such a batch on that rank, so evaluate with sums: ``session.reduce(loss_sum)``. The random
        numbers that a sample draws in Python, NumPy and torch (on the CPU) are a function of seed,
        epoch and index, with any number of ranks and workers.

        Args:
            dataset: A dataset with ``__len__`` and ``__getitem__``; an ``IterableDataset`` of
                samples, the same on all ranks unless ``sharded``; or a DataLoader of global
                batches.
            batch_size: Samples in a batch, over all ranks. Required unless the next is given.
            per_rank_batch_size: Samples in a batch on each rank.
            shuffle: Whether each epoch has a new order (from seed and epoch) or the dataset's.
            sampler: Determines the order instead. All ranks draw the same order and then divide it.
            batch_sampler: Determines the global batches instead.
            last: Whether a shorter last batch is served with its true weight, ``"exact"``
                (default), or left out: ``"drop"``.
            per_rank: Whether the batch size of a DataLoader is per rank.
            sharded: Whether each rank has a different stream; an ended one has no rows.
            sharded_by_worker: Whether the stream divides itself among the workers of a rank, as
                with ``torch.utils.data.get_worker_info``. If False (default), each reads all of it.
                The order depends on ``num_workers``, so a resume with another number is refused.
            collate_fn: Makes a batch of a list of samples; torch's default if None.
            num_workers: Worker processes of each rank; chosen from the usable CPUs if None.
            worker_init_fn: Called in each worker, as in torch's DataLoader.
            instead_of: A loader of this session whose place this one takes, at the start of an
                epoch: it continues with that epoch's order, and in checkpoints with its position.
            **options: ``pin_memory``, ``persistent_workers``, ``prefetch_factor``, ``timeout`` and
                ``multiprocessing_context`` of torch's DataLoader. Missing ones are chosen too.
                Workers are kept between epochs, also those of a DataLoader, unless
                ``persistent_workers=False`` is given here.

        Raises:
            UsageError: The data cannot be divided, or an option is invalid or conflicts.
        """
        arguments = {
            "batch_size": batch_size,
            "per_rank_batch_size": per_rank_batch_size,
            "shuffle": shuffle,
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "last": last,
            "sharded": sharded,
            "sharded_by_worker": sharded_by_worker,
            "collate_fn": collate_fn,
            "num_workers": num_workers,
            "worker_init_fn": worker_init_fn,
            **options,
        }
        requested = {name: value for name, value in arguments.items() if value is not None}
        dataset, taken = adopted(dataset, requested, per_rank=per_rank)
        context = loader_context(
            self._gradients,
            self._progress.at_boundary,
            world=self._world,
            data=self._data,
            seed=self._seed,
        )
        loader = Loader(dataset, context, taken)
        if description := loader.describe():
            self._printer.say_once(f"loader: {description}")
        self._progress.add_loader(loader, instead_of=instead_of)
        return loader

    def backward(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> bool:
        """Compute the gradients of the mean over all samples of the step.

        Its samples may come from several batches on several ranks (``Session(accumulate=n)``).
        Gradients are averaged over ranks, unscaled, and complete when this returns True. Call it
        once for each forward: DDP averages in the first backward after a forward of its module, so
        add up several losses of a step first.

        Args:
            loss: The mean over this rank's rows of the batch that its loader yielded last, shape
                ``[]``. The loss of another rank's row (``loader.rows`` is 0) has no weight.
            weight: Weight of the loss in any unit, such as tokens; the number of rows if None.

        Returns:
            Whether the optimizer must step now. If float16 overflowed, the step is skipped:
            gradients are None then, and ``optimizer.step()`` changes nothing.

        Raises:
            UsageError: It is ambiguous which batch the loss belongs to, or no gradient is averaged.
        """
        return self._gradients.backward(loss, None if weight is None else float(weight))

    def clip_grad_norm(self, what: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale gradients down to a norm; call it after ``backward`` returned True.

        Args:
            what: An optimizer, a model, or parameters, plain or sharded.
            max_norm: Greatest norm that remains unchanged.
            norm_type: Exponent of the norm.

        Returns:
            The norm before scaling, over all shards, shape ``[]``.
        """
        return precisions.clip_norm(what, max_norm, norm_type)

    def clip_grad_value(self, what: Any, clip_value: float) -> None:
        """Clip gradients to ``-clip_value`` and ``clip_value``; otherwise as ``clip_grad_norm``."""
        precisions.clip_value(what, clip_value)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of mixed precision, for computations outside of ``forward``."""
        return precisions.autocast(self._precision, self._device)

    def scale_lr(
        self,
        optimizer: Optimizer,
        *,
        batch_size: int,
        base_batch_size: int,
        rule: str = "linear",
        warmup_steps: int = 0,
    ) -> LRScheduler:
        """Scale a learning rate from one batch size to another, and print the change.

        Args:
            optimizer: The learning rates of its groups are multiplied.
            batch_size: Samples in a step now (times ``accumulate``).
            base_batch_size: Samples in a step for which the learning rate was chosen.
            rule: ``"linear"`` (Goyal et al., 2017; for SGD) or ``"sqrt"`` (for Adam variants).
            warmup_steps: Steps from the old rate to the new one.

        Returns:
            The schedule of the warm-up. Register it; call ``step()`` after each optimizer step.

        Raises:
            UsageError: The rule is unknown, a size is not positive, or the rates were restored.
        """
        scaling.check_is_new(self._progress.has_restored)
        growth = scaling.choose(batch_size=batch_size, base_batch_size=base_batch_size, rule=rule)
        return scaling.apply(optimizer, growth, warmup_steps, say=self._printer.say)

    def register(self, **objects: Any) -> None:
        """Add objects with ``state_dict`` and ``load_state_dict`` to checkpoints, by name."""
        for name, value in objects.items():
            self._progress.register(name, value)

    def save(
        self,
        metric: float | torch.Tensor | None = None,
        *,
        mode: str = "max",
        keep_last: int = 2,
        keep_best: int = 1,
        wait: bool = False,
    ) -> None:
        """Save a checkpoint, on all ranks together; it is written while training continues.

        Call it last in the body of ``epochs``, or in a loop over a loader. Any world size can load
        it.

        Args:
            metric: Quality of the model, the same on all ranks; for ``restore("best")``.
            mode: Whether the best metric is the greatest (``"max"``) or the least (``"min"``).
            keep_last: Number of latest checkpoints to keep. The disk needs space for one more.
            keep_best: Number of best checkpoints to keep.
            wait: Whether to return only after the commit.

        Raises:
            RunError: This checkpoint or the one before cannot be written; others are kept.
        """
        self._progress.save(
            metric=metric, wait=wait, mode=mode, keep_last=keep_last, keep_best=keep_best
        )

    def save_every(
        self, *, steps: int | None = None, minutes: float | None = None, keep_last: int = 2
    ) -> None:
        """Save checkpoints inside loops over training data too, for long epochs.

        A checkpoint is saved between two steps, while training continues, every so many steps or
        minutes after the last one, whichever comes first.

        Args:
            steps: Steps from one checkpoint to the next; None for no limit.
            minutes: Minutes from one to the next; None for no limit. Ranks look about once a
                second.
            keep_last: Number of latest checkpoints to keep; that of ``save`` once it was called.

        Raises:
            UsageError: Neither steps nor minutes is given, or a value is not positive.
        """
        self._progress.save_every(steps=steps, minutes=minutes, keep_last=keep_last)

    def restore(
        self,
        which: str | os.PathLike[str] = "latest",
        *,
        damaged: str | None = None,
        trust: bool = False,
    ) -> bool:
        """Restore models, optimizers, loaders, epochs and registered objects from a checkpoint.

        Call it after ``setup``. Objects may be registered later. The checkpoint may have been saved
        by any number of ranks, with ddp or fsdp.

        Args:
            which: ``"latest"`` or ``"best"`` of the run folder, or a path.
            damaged: Whether to ``"refuse"`` a damaged latest checkpoint, or to ``"skip"`` to the
                latest intact one with a warning. None: ``PACELINE_DAMAGED``, or else refuse.
            trust: Whether a path may hold objects of any class, of registered objects for example.
                Unpickling them can run code that the file names. Otherwise plain data is read only,
                and classes of ``torch.serialization.add_safe_globals``. ``"latest"`` and ``"best"``
                are trusted, but where nobody has named the run folder and others own it.

        Returns:
            Whether there was a checkpoint.

        Raises:
            UsageError: The checkpoint is of another model or other data, the path holds none, or
                holds objects of classes that are not plain data.
            RunError: The checkpoint is damaged.
        """
        return self._progress.restore(which, damaged=damaged, trust=trust)

    def stop(self) -> None:
        """Make all ranks save a checkpoint and exit with status 75 at the next step boundary."""
        self._progress.stop.ask("session.stop()")

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0 or from the restored epoch."""
        return self._progress.epochs(num_epochs)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Write to the loggers, on rank 0 only.

        Args:
            values: Numbers, texts, or images (Pillow's, or of shape ``[3, H, W]``), by name.
            step: Position on the axis; ``session.step`` if None.

        Raises:
            UsageError: A value is neither a number, a text nor an image.
        """
        self._loggers.log(values, self.step if step is None else step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write the arguments of the run to the loggers."""
        self._loggers.log_hyperparameters(values)
