"""Combine the batches of several training loaders, in one of the modes of a CombinedLoader."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from paceline.errors import UsageError
from paceline.train.trainer.options import one_of

TOGETHER = ("min_size", "max_size_cycle", "max_size")  # a batch of each loader at a time
SEQUENTIAL = "sequential"  # one loader after the other
MODES = (*TOGETHER, SEQUENTIAL)


class CombinedLoader:
    """Several loaders, and how the Trainer combines their batches.

    Args:
        iterables: A list or dict of DataLoaders, also nested.
        mode: ``"min_size"`` ends with the shortest loader; ``"max_size_cycle"`` begins the others
            again until the longest has ended; ``"max_size"`` gives None for those that have ended;
            ``"sequential"`` serves one after the other, with its number as ``dataloader_idx``.

    Raises:
        UsageError: The mode is unknown.
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        self.iterables = iterables
        self.mode = one_of("mode", mode, MODES, where="CombinedLoader")

    @property
    def flattened(self) -> list[Any]:
        """The loaders in order."""
        return leaves(self.iterables)


def leaves(tree: Any) -> list[Any]:
    """Return what a nested list, tuple or dict holds, in order."""
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def replaced(tree: Any, new: Iterator[Any]) -> Any:
    """Return a nested list, tuple or dict with other leaves, given in order."""
    if isinstance(tree, Mapping):
        return {name: replaced(part, new) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [replaced(part, new) for part in tree]
    return next(new)


class Batches:
    """The training batches of one loader."""

    # number of the loader that yielded last; None if steps do not get it
    dataloader_idx: int | None = None

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.loaders = [loader]
        loader.takes_any = True

    @property
    def rows(self) -> int:
        """Rows of this rank in the last batch."""
        return int(self._loader.rows)

    @property
    def weight(self) -> float | None:
        """Weight of the last batch's loss; None if the session knows it."""
        return None

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None if unknown."""
        return length_of(self._loader)

    def __iter__(self) -> Generator[Any, None, None]:
        yield from self._loader

    @property
    def has_begun(self) -> bool:
        """Whether the beginning epoch was begun before a checkpoint."""
        return _has_begun(self._loader)

    def num_done(self, counted: int) -> int:
        """Return how many of its batches were done, given their number as the checkpoint has it."""
        return _num_done(self._loader, counted)

    def skip_rest(self) -> None:
        """Advance to the next epoch if a limit left a rest of this one."""
        _skip_rest(self._loader)


class Together:
    """Training batches with a part of each loader."""

    dataloader_idx: int | None = None

    def __init__(
        self,
        tree: Any,  # loaders of the session, in a nested list or dict; a batch has the same form
        mode: str,  # one of ``TOGETHER``
    ) -> None:
        self._tree, self._mode = tree, mode
        self.loaders = leaves(tree)  # the loaders in order
        self._live = list(self.loaders)  # those with a part in the last batch
        for loader in self.loaders:
            loader.takes_any = True

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None if unknown."""
        lengths = [length_of(loader) for loader in self.loaders]
        known_lengths = [length for length in lengths if length is not None]
        if len(known_lengths) < len(lengths):
            return None
        return min(known_lengths) if self._mode == "min_size" else max(known_lengths)

    @property
    def rows(self) -> int:
        """Rows of this rank in the part of the first loader."""
        return int(self._live[0].rows)

    @property
    def weight(self) -> float | None:
        """Weight of the last batch's loss: this rank's rows in the part of the first loader.

        Raises UsageError if this rank's share of another part is larger or smaller, so no weight of
        the loss is right for both.
        """
        parts = [loader.iteration.rows for loader in self._live]
        first = parts[0]
        for part in parts[1:]:
            if part.of_rank * first.of_batch != first.of_rank * part.of_batch:
                raise _uneven(first, part)
        return float(first.of_rank)

    def __iter__(self) -> Generator[Any, None, None]:
        with ExitStack() as stack:
            iterators = [stack.enter_context(closing(iter(loader))) for loader in self.loaders]
            ended = [False] * len(iterators)
            while True:
                parts: list[Any] = []
                self._live = []
                for number, loader in enumerate(self.loaders):
                    try:
                        part = next(iterators[number])
                    except StopIteration:
                        ended[number] = True
                        if self._mode == "min_size" or all(ended):
                            return
                        if self._mode == "max_size":
                            parts.append(None)
                            continue
                        iterators[number] = stack.enter_context(closing(iter(loader)))
                        part = next(iterators[number])
                    parts.append(part)
                    self._live.append(loader)
                yield replaced(self._tree, iter(parts))

    @property
    def has_begun(self) -> bool:
        """Whether the beginning epoch was begun before a checkpoint."""
        return any(map(_has_begun, self.loaders))

    def num_done(self, counted: int) -> int:
        """Return how many batches of it were done."""
        return counted if self.has_begun else 0

    def skip_rest(self) -> None:
        """Advance all loaders to their next epoch."""
        for loader in self.loaders:
            _skip_rest(loader)


class InTurn:
    """Training batches of one loader after the other."""

    def __init__(
        self,
        loaders: Sequence[Any],  # of the session, of known length
    ) -> None:
        self.loaders = loaders  # the loaders in order
        self.dataloader_idx: int | None = 0  # number of the loader that yielded last
        self._start = 0  # batches done before a checkpoint
        for loader in loaders:
            loader.takes_any = True

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; None if unknown."""
        lengths = [length_of(loader) for loader in self.loaders]
        return None if None in lengths else sum(length or 0 for length in lengths)

    @property
    def rows(self) -> int:
        """Rows of this rank in the last batch."""
        return int(self.loaders[self.dataloader_idx or 0].rows)

    @property
    def weight(self) -> float | None:
        """Weight of the last batch's loss: the session knows it."""
        return None

    def __iter__(self) -> Generator[Any, None, None]:
        done, self._start = self._start, 0
        for number, loader in enumerate(self.loaders):
            length = length_of(loader)
            if length is not None and done >= length:
                done -= length
                continue
            done = 0  # the loader continues from its own position
            self.dataloader_idx = number
            with closing(iter(loader)) as batches:
                yield from batches

    @property
    def has_begun(self) -> bool:
        """Whether the beginning epoch was begun before a checkpoint."""
        epochs = {loader.state_dict()["epoch"] for loader in self.loaders}
        return len(epochs) > 1 or any(map(_has_begun, self.loaders))

    def num_done(self, counted: int) -> int:
        """Return how many batches of it were done."""
        self._start = counted if self.has_begun else 0
        return self._start

    def skip_rest(self) -> None:
        """Advance all loaders to the same epoch."""
        last = max(loader.state_dict()["epoch"] for loader in self.loaders)
        # Those that an epoch's limit left out have not begun it, and would lag behind for ever.
        begun = any(loader.state_dict()["done"] for loader in self.loaders)
        for loader in self.loaders:
            place = loader.state_dict()
            loader.load_state_dict({**place, "epoch": last + begun, "done": 0})


def combined(tree: Any, mode: str, loaders: Sequence[Any]) -> Batches | Together | InTurn:
    """Return the training batches of a loader, or of several in a nested list or dict.

    ``mode`` is one of ``MODES``, for several; ``loaders`` are the session's of them, in order.
    """
    if len(loaders) == 1 and not isinstance(tree, Mapping):
        return Batches(loaders[0])
    if mode == SEQUENTIAL:
        return InTurn(loaders)
    return Together(replaced(tree, iter(loaders)), mode)


def length_of(loader: Any) -> int | None:
    """Return the number of batches of a loader; None if it is unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


def _has_begun(loader: Any) -> bool:
    return bool(loader.state_dict()["done"])


def _num_done(loader: Any, counted: int) -> int:
    samples, size = loader.state_dict()["done"], loader.batch_size
    if not samples:
        return 0
    return samples // size if size else counted  # batches of a batch_sampler vary in size


def _skip_rest(loader: Any) -> None:
    place = loader.state_dict()
    if place["done"]:
        loader.load_state_dict({**place, "epoch": place["epoch"] + 1, "done": 0})


def _uneven(first: Any, part: Any) -> UsageError:
    return UsageError.of(
        "batch-weight-unknown",
        f"this rank has {first.of_rank} of {first.of_batch} rows of the first loader's batch,"
        f" and {part.of_rank} of {part.of_batch} of another's",
        where="training_step",
        why="the loss has one weight, and the result would depend on the number of ranks",
        fix=(
            "batch sizes that the number of ranks divides, with drop_last=True; or return"
            " {'loss': loss, 'weight': n}"
        ),
    )
