"""The training API: what a script meets."""

from __future__ import annotations

import atexit
import builtins
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast, overload

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline import env, world
from paceline.errors import Finding, UsageError
from paceline.rundir.files import RunDir
from paceline.text import terminal
from paceline.train import logging, runtime
from paceline.train.checkpoint import Checkpoints
from paceline.train.data import Loader, adopted, derive
from paceline.train.model import activations
from paceline.train.model import precision as precisions
from paceline.train.model import strategy as strategies
from paceline.train.session import ending, scaling, together
from paceline.train.session.around import surroundings
from paceline.train.session.gradients import Gradients, check_accumulate
from paceline.train.session.place import Place
from paceline.train.session.progress import Progress, read_seed, seed_device

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


class Session:
    """Data-parallel training in which the number of processes is not a hyperparameter.

    The same script runs unlaunched (a world of one), under ``paceline run``, torchrun or srun, and gives the
    same samples in the same order, the same batches and the same updates, also when it is stopped at any step and
    goes on with another number of ranks. What this cannot cover: batch norm's statistics are those of each rank's
    share of a batch (unless synchronised, on GPUs), and dropout masks are drawn on each rank.

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

    A script that saves or restores also stops well: at SIGTERM, SIGUSR1, SIGUSR2, Ctrl-C or ``session.stop()`` all
    ranks end together after a complete step, with a checkpoint and exit status 75, which means: start it again. The
    process group is closed at the end of a script that succeeds.

    Args:
        precision: ``"32-true"``, ``"64-true"``, ``"16-mixed"`` (float16 with a loss scale), ``"bf16-mixed"`` or
            ``"bf16-true"``.
        accumulate: Batches whose gradients make one step. ``backward`` returns True at the last one of a group.
        strategy: ``"ddp"``, ``"fsdp"``, or ``paceline.DDP(...)`` and ``paceline.FSDP(...)`` with options.
        seed: Seed of the order of samples and of their own randomness (0 if None). If given, also of Python's,
            NumPy's and torch's global generators: alike on all ranks up to the first batch, different afterwards.
        timeout_s: Seconds after which a collective fails that other ranks did not join; torch's default if
            None (1800 with gloo, 600 with NCCL).
        run_dir: Folder of checkpoints and logs. None: that of ``paceline run``, or one in ``paceline-runs/`` for this
            script, arguments, array element and Session. ``other.run_dir`` shares that of another Session.
        loggers: Where ``log`` writes on rank 0: ``"csv"`` and ``"tensorboard"`` in the run folder, or objects.

    Raises:
        UsageError: The environment describes no world, or an argument is bad or without effect.
        SetupError: There are fewer GPUs than ranks on this node, or the GPU only emulates bfloat16.
    """

    def __init__(
        self,
        *,
        precision: str = "32-true",
        accumulate: int = 1,
        strategy: str | strategies.Strategy = "ddp",
        seed: int | None = None,
        timeout_s: float | None = None,
        run_dir: str | os.PathLike[str] | RunDir | None = None,
        loggers: Sequence[logging.Logger | str] = ("csv",),
    ) -> None:
        check_accumulate(accumulate)
        self._world = runtime.actual_world(world.from_environ(env.snapshot(), in_terminal=env.in_terminal()))
        self._device = runtime.take_device(self._world)
        self._precision = precisions.choose(precision, self._device)
        self._seed, self._seeded, self._accumulate = read_seed(seed), seed is not None, accumulate
        self._told: set[str] = set()
        self._gradients = Gradients(
            world=self._world,
            device=self._device,
            chosen=self._precision,
            way=strategies.choose(strategy, self._device),
            accumulate=accumulate,
            say=self._say_once,
        )
        self._tally = self._gradients.tally
        runtime.open_group(self._world, self._device, timeout_s=timeout_s)
        self._place = Place(run_dir or None, world=self._world)
        self._checkpoints = Checkpoints(
            self.run_dir.checkpoints, world=self._world, device=self._device, guard=self._place.require_own
        )
        # At the end of the process it is given back after ending.finish.
        weakref.finalize(self, self._place.release_soon).atexit = False
        self._progress = Progress(
            world=self._world,
            device=self._device,
            seed=self._seed,
            gradients=self._gradients,
            checkpoints=self._checkpoints,
            place=self._place,
            say=self._say_once,
            reseed=derive("rank", self._seed, self.rank) if self._seeded else None,
        )
        self._loggers = [logging.of_name(each, self.run_dir) for each in (loggers or ())]
        if self._seeded:
            seed_device(self._seed)
        atexit.register(ending.finish, self._checkpoints, self._loggers if self.is_main else ())
        backend = runtime.backends().get(self._device.type)
        ranks = f"{self.world_size} ranks over {backend}" if backend else "1 rank"
        if self._world.launcher != "paceline":  # whose own line has said it
            self._say(f"launcher {self._world.launcher} ({self._world.reason}); {ranks}; rank 0 on {self._device}")

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

    @property
    def step(self) -> int:
        """How often ``backward`` returned True, also before a restore: with one loss a step, optimizer steps."""
        return self._gradients.steps

    @property
    def run_dir(self) -> RunDir:
        """Names of the files of this run."""
        return self._place.run_dir

    @overload
    def setup(self, model: Module, /) -> Module: ...
    @overload
    def setup(self, model: Module, optimizer: AnyOptimizer, /) -> tuple[Module, AnyOptimizer]: ...
    @overload
    def setup(self, model: Module, /, *optimizers: Optimizer) -> tuple[Any, ...]: ...
    def setup(self, model: nn.Module, /, *optimizers: Optimizer) -> Any:
        """Move a model to the device, give it its precision, and make it data-parallel.

        All ranks start from rank 0's parameters and buffers.

        Args:
            model: A plain module. With several models that share an optimizer, set up first those without it.
            *optimizers: Those that update it, made before or after; they come back as they are.

        Returns:
            The model itself in a world of one, with fsdp, or if it has no parameter to train; else a plain
            ``DistributedDataParallel`` around it; with optimizers a tuple of that and them.

        Raises:
            UsageError: The model is wrapped already, or an optimizer holds parameters of something else.
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
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        **options: Any,
    ) -> Loader:
        """Return an iterable of batches on the device, shared out among the ranks.

        Each epoch has every sample exactly once, also where a batch or the dataset doesn't divide: shares
        are then uneven by one sample. A rank without a sample computes another rank's row in training, which counts
        nothing: ``loader.rows`` is 0 there. An evaluation leaves such a batch out on that rank, so evaluate with sums:
        ``session.reduce(loss_sum)``. What a sample draws at random in Python, NumPy and torch (on the CPU) is a
        function of seed, epoch and index, with any number of ranks and workers.

        Args:
            dataset: A dataset with ``__len__`` and ``__getitem__``; an ``IterableDataset`` of samples, the same on
                all ranks unless ``sharded``; or a DataLoader, whose parts are taken over (its batch size is global).
            batch_size: Samples of a batch, all ranks together. This or the next is needed.
            per_rank_batch_size: Samples of a batch on each rank.
            shuffle: Whether each epoch has a new order, a function of seed and epoch alone. Without, the
                order is that of the dataset.
            sampler: Decides the order instead; the same is drawn on all ranks, and then shared out.
            batch_sampler: Decides the global batches instead.
            last: What becomes of a last batch that is shorter: ``"exact"`` (default) serves it with its true
                weight, ``"drop"`` leaves it out.
            per_rank: Whether the batch size of a DataLoader counts for each rank.
            sharded: Whether each rank's stream is another one. Ranks whose stream ends earlier count nothing more.
            collate_fn: Makes a batch of a list of samples; torch's default if None.
            num_workers: Processes that load, for each rank; chosen from the usable CPUs if None, and said so.
            worker_init_fn: Called in each of them, as in torch's DataLoader.
            **options: ``pin_memory``, ``persistent_workers``, ``prefetch_factor``, ``timeout`` and
                ``multiprocessing_context`` of torch's DataLoader; those left out are chosen too. Workers are kept
                between epochs, also those of a DataLoader, unless ``persistent_workers=False`` is given here.

        Raises:
            UsageError: The data cannot be shared out, a batch size is bad, or options exclude each other.
        """
        arguments = {
            "batch_size": batch_size,
            "per_rank_batch_size": per_rank_batch_size,
            "shuffle": shuffle,
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "last": last,
            "sharded": sharded,
            "collate_fn": collate_fn,
            "num_workers": num_workers,
            "worker_init_fn": worker_init_fn,
            **options,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        dataset, given = adopted(dataset, given, per_rank=per_rank)
        around = surroundings(
            self._gradients, self._progress.at_boundary, world=self._world, seed=self._seed, accumulate=self._accumulate
        )
        loader = Loader(dataset, around, **given)
        if said := loader.describe():
            self._say_once(f"loader: {said}")
        self._progress.add_loader(loader)
        return loader

    def backward(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> bool:
        """Compute gradients, such that they are those of the mean over all samples of the step.

        Those of a step may be several batches on several ranks (``Session(accumulate=n)``). Gradients are averaged
        over ranks, true (not scaled) and complete when this returns True. Call it once for each forward: DDP
        averages in the first backward after a forward of its module, so several losses of a step are added up first.

        Args:
            loss: The mean over this rank's rows of the batch that its loader yielded last, shape ``[]``. That of
                another rank's row (``loader.rows`` is 0) counts nothing, whatever the weight.
            weight: How much it counts, if not its number of rows: of tokens, for example. In any unit.

        Returns:
            Whether the optimizer is to step now. Where float16 overflowed the step is skipped: gradients are
            None then, and ``optimizer.step()`` leaves everything as it is.

        Raises:
            UsageError: It is open which batch the loss belongs to, or no gradient would be averaged.
        """
        return self._gradients.backward(loss, None if weight is None else float(weight))

    def clip_grad_norm(self, what: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale gradients down to a norm; call it where ``backward`` returned True, before the optimizer's step.

        Args:
            what: An optimizer, a model, or parameters, also sharded ones.
            max_norm: The greatest norm that is left as it is.
            norm_type: Exponent of the norm.

        Returns:
            The norm before, over all shards, shape ``[]``.
        """
        return precisions.clip_norm(what, max_norm, norm_type)

    def clip_grad_value(self, what: Any, clip_value: float) -> None:
        """Cut gradients off at ``-clip_value`` and ``clip_value``; else as ``clip_grad_norm``."""
        nn.utils.clip_grad_value_(precisions.parameters_of(what), clip_value)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of mixed precision, for what is computed outside of ``forward``."""
        return precisions.autocast(self._precision, self._device)

    def recompute(self, model: nn.Module, layers: tuple[type[nn.Module], ...] | None = None) -> None:
        """Activation checkpointing: compute activations again in backward; less memory, about a third more time.

        Args:
            model: The user's own module.
            layers: Classes of these layers; None: the entries of every ``nn.ModuleList``.

        Raises:
            UsageError: The model has none.
        """
        count = activations.recompute(self.unwrap(model), layers)
        self._say(f"{count} layers of {type(model).__name__} recompute their activations")

    def scale_lr(
        self,
        optimizer: Optimizer,
        *,
        batch_size: int,
        base_batch_size: int,
        rule: str = "linear",
        warmup_steps: int = 0,
    ) -> LRScheduler:
        """Scale a learning rate that was found at one batch size to another, and say so.

        Args:
            optimizer: Its groups' learning rates are multiplied.
            batch_size: Samples of a step now (times ``accumulate``).
            base_batch_size: Samples of a step for which the learning rate was chosen.
            rule: ``"linear"`` (Goyal et al., 2017; for SGD) or ``"sqrt"`` (for Adam and its kin).
            warmup_steps: Steps from the old rate to the new one.

        Returns:
            The schedule of the warm-up: call its ``step()`` after each optimizer step, and register it.

        Raises:
            UsageError: The rule is not known, or a size is bad.
        """
        scaling.check_is_new(self._progress.has_restored)
        found = scaling.scaling(batch_size=batch_size, base_batch_size=base_batch_size, rule=rule)
        return scaling.apply(optimizer, found, warmup_steps, say=self._say)

    def reduce(self, value: T) -> T:
        """Return the sum of ``value`` over all ranks, on all of them.

        Args:
            value: An int (summed exactly), a float (in float64), a tensor of any shape (the same on all
                ranks), or a dict, list or tuple of them. A bool counts as an int; tensors of booleans or
                narrow integers come back as int64, as from ``torch.sum``.

        Raises:
            UsageError: ``value`` is, or holds, something else.
        """
        self._tally.meet()
        return cast(T, runtime.sum_over_ranks(together.as_the_others(value) if self._tally.is_uneven else value))

    def gather(self, value: T, loader: Loader | None = None) -> T:
        """Return the rows of all ranks, on all of them, in the order of the dataset.

        Hand it the rows of a batch, or all those of a loop over a loader, concatenated: they come back as one rank
        alone would have seen them, and exactly as many. Rows that are neither come back in the order of ranks.

        Args:
            value: A tensor of shape ``[rows, ...]``, or a dict, list or tuple of them. Detached.
            loader: The loader that they come from; the one that yielded last if None.

        Raises:
            UsageError: ``value`` holds something else.
        """
        self._tally.meet()
        iteration = self._tally.last if loader is None else loader.iteration
        return cast(T, together.gather(value, iteration))

    def once(self, fn: Callable[[], T], scope: str = "job") -> T:
        """Run ``fn`` on one rank while the others wait, and return its value on all.

        For downloads and preprocessing; there is no time limit, as the others hear a heartbeat.

        Args:
            fn: Takes nothing; what it returns must be picklable.
            scope: ``"job"``: on rank 0. ``"node"``: on the first rank of every node, as for a disk of each node's own.

        Raises:
            RunError: It failed on the rank that ran it (which raises the original), or that rank has gone.
            UsageError: The scope is neither.
        """
        self._tally.meet()
        return cast(T, together.do_once(fn, scope, world=self._world))

    def register(self, **objects: Any) -> None:
        """Let checkpoints hold more: anything with ``state_dict`` and ``load_state_dict``, by name."""
        for name, each in objects.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                what = f"{name} ({type(each).__name__}) has no state_dict and load_state_dict"
                raise UsageError(Finding("option-invalid", what, where="session.register(...)"))
            self._progress.register(name, each)

    def save(
        self,
        metric: float | torch.Tensor | None = None,
        *,
        mode: str = "max",
        keep_last: int = 2,
        keep_best: int = 1,
        wait: bool = False,
    ) -> None:
        """Save a checkpoint, on all ranks together; it is written while training goes on.

        Call it last in the body of ``epochs``, or in the loop over a loader. It serves any number of ranks.

        Args:
            metric: How good the model is, the same on all ranks; for ``restore("best")``.
            mode: Whether the best metric is the greatest (``"max"``) or the least (``"min"``).
            keep_last: How many of the newest checkpoints stay; the disk needs room for one more, since the next one is
                written beside them.
            keep_best: How many of the best stay.
            wait: Whether to return only when it is committed.

        Raises:
            RunError: This checkpoint, or the one before, cannot be written; those committed earlier are untouched.
        """
        self._progress.save(metric=metric, wait=wait, mode=mode, keep_last=keep_last, keep_best=keep_best)

    def restore(self, which: str | os.PathLike[str] = "latest", *, damaged: str | None = None) -> bool:
        """Go on from a checkpoint: models, optimizers, loaders, epochs, and what is or will be registered.

        Call it after ``setup``. It may have been saved by any number of ranks, with ddp or fsdp.

        Args:
            which: ``"latest"`` or ``"best"`` of the run folder, or a path.
            damaged: What to do where the latest is damaged: ``"refuse"``, or ``"skip"``, which warns and takes the
                latest one that is whole. None: as ``PACELINE_DAMAGED`` says, or refuse.

        Returns:
            Whether there was one.

        Raises:
            UsageError: It is of another model or other data, or there is none at the path.
            RunError: It is damaged.
        """
        return self._progress.restore(which, damaged=damaged)

    def stop(self) -> None:
        """Ask for a stop at the next step boundary: all ranks save a checkpoint and end with exit status 75."""
        self._progress.stop.ask("session.stop()")

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0, or from where a checkpoint was."""
        return self._progress.epochs(num_epochs)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Write numbers to the loggers; on rank 0 only, so reduce them before.

        Args:
            values: Numbers, or tensors with one element, by name.
            step: Where on the axis; ``session.step`` if None.
        """
        if self.is_main:
            numbers = {name: float(value) for name, value in values.items()}
            for logger in self._loggers:
                logger.log(numbers, self.step if step is None else step)

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            builtins.print(*values, flush=True)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._tally.meet()
        runtime.barrier()

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's own module of one that ``setup`` returned."""
        return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model

    def _say(self, text: str) -> None:
        if self.is_main:
            terminal.say(text)

    def _say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)
