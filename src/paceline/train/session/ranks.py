"""The part of a Session that knows the ranks: who they are, and what they compute and print.

The mean of numbers is taken over the rows of all ranks, as a single rank would have got it. A
rank's loss is the mean over its own rows, of which ranks have different numbers, and none where the
row is another rank's. So a number counts with its rows. Which loop it comes from is decided by all
ranks together: a rank that is left out of a batch has fewer numbers.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch.distributed.device_mesh import DeviceMesh

from paceline.errors import UsageError, option_invalid
from paceline.text import terminal
from paceline.train import runtime
from paceline.train.data import BatchTracker, Iteration, Loader, not_of_samples
from paceline.train.model.mesh import DataRanks
from paceline.train.session import gathering, once
from paceline.train.session.gradients import Gradients
from paceline.world import World


class MainPrinter:
    """Prints lines on rank 0."""

    def __init__(self, *, is_main: bool) -> None:
        self.is_main = is_main
        self._printed: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line."""
        if self.is_main:
            terminal.say(text)

    def say_once(self, text: str) -> None:
        """Print a line unless it was printed by this method before."""
        if text not in self._printed:
            self._printed.add(text)
            self.say(text)


def describe_world(world: World, device: torch.device, mesh: str = "") -> str:
    """Return launcher, ranks and device in a line; the process group must be open."""
    backend = runtime.backends().get(device.type)
    ranks = f"{world.world_size} ranks over {backend}" if backend else "1 rank"
    parts = [f"launcher {world.launcher} ({world.reason})", ranks, f"rank 0 on {device}", mesh]
    return "; ".join(filter(None, parts))


_WHERE = "session.mean(...)"
_MOST_LOOPS = 16  # of the loaders that a script uses
_ROUNDING = 1e-9


def mean(
    value: Any,
    weight: Any,
    loops: Sequence[Iteration],
    last: Iteration | None,
    group: runtime.Group = None,  # the ranks that share out the data
) -> float:
    """Return the mean over the rows of all ranks.

    ``value`` is a number of the last batch, or a list with one for each batch of a loop, ``weight``
    that of each number, in any unit; None for its rows. The numbers may come from ``loops``;
    ``last`` is the one that yielded a batch last. Raises UsageError if a value is not a number, or
    it is unknown which rows it is the mean of.
    """
    values, is_list = _numbers(value), isinstance(value, list | tuple)
    loops = [loop for loop in loops if loop.rows is not None][-_MOST_LOOPS:]
    if weight is not None or not loops:
        weights = [1.0] * len(values) if weight is None else _numbers(weight)
        if len(values) != len(weights):
            raise _unknown(f"{len(values)} numbers have {len(weights)} weights", fix="one for each")
        total, rows, *_ = _over_ranks([_sums(values, weights)], group)[0]
        return total / rows if rows else float("nan")
    of_batch = not is_list and any(loop.live for loop in loops)
    table = [_of_loop(values, loop, loop is last, of_batch) for loop in loops]
    found = _over_ranks(table, group)
    fitting = {loop: sums for loop, sums in zip(loops, found, strict=True) if not sums[2]}
    if last in fitting and (last.live or is_list):  # of what is under way, or of what has ended
        fitting = {loop: sums for loop, sums in fitting.items() if _kind(loop) == _kind(last)}
    return _only(fitting, len(values))


def _only(fitting: dict[Iteration, list[float]], number: int) -> float:
    """Return the mean over the rows of the loop that some numbers come from."""
    means = [total / rows for total, rows, *_ in fitting.values() if rows] or [float("nan")]
    if not fitting:
        raise _unknown(
            f"no loop over a loader has had {number} batches",
            fix=(
                "of all batches of a loop: losses.append(loss.detach()) in it, session.mean(losses)"
                " after it; of its last one: session.mean(loss, weight=loader.rows)"
            ),
        )
    if max(means) - min(means) > _ROUNDING * max(map(abs, means)):
        raise _unknown(
            f"{len(fitting)} loaders have had batches that fit",
            fix="session.mean(loss, loader=train), with the loader of the rows",
        )
    if any(sums[3] for sums in fitting.values()):
        problem = next(iter(fitting)).any_problem or "the rows of a batch are not its samples"
        raise not_of_samples(problem, call="session.mean")
    return means[0]


def _of_loop(
    values: list[float], loop: Iteration, is_last: bool, of_batch: bool
) -> tuple[float, ...]:
    """Return the sums of ``_sums`` if numbers come from a loop, whether not, and if it may not."""
    rows = [float(rows.of_rank) for rows in loop.served]
    if of_batch and loop.live:
        rows = rows[-1:]
    if len(rows) != len(values):  # the script may leave out what is not this rank's
        rows = [number for number in rows if number]
    if len(rows) != len(values) or (of_batch and not loop.live and not is_last):
        return 0.0, 0.0, 1.0, 0.0
    return (*_sums(values, rows), 0.0, float(bool(loop.any_problem)))


def _sums(values: list[float], weights: list[float]) -> tuple[float, float]:
    own = [
        (value * weight, weight) for value, weight in zip(values, weights, strict=True) if weight
    ]
    return sum(total for total, _ in own), sum(weight for _, weight in own)


def _over_ranks(table: list[tuple[float, ...]], group: runtime.Group) -> list[list[float]]:
    """Return the sums of a table over the ranks, which may have different numbers of loops."""
    padded = torch.tensor([(0.0, 0.0, 1.0, 0.0)] * _MOST_LOOPS, dtype=torch.float64)
    for row, sums in zip(padded, table, strict=False):
        row[: len(sums)] = torch.tensor(sums, dtype=torch.float64)
    found: list[list[float]] = runtime.sum_of_numbers(padded, group).tolist()
    return found[: len(table)]


def _kind(loop: Iteration) -> bool | None:
    """Return whether a loop that is under way computes gradients; None for one that has ended."""
    return loop.with_grad if loop.live else None


def _numbers(value: Any) -> list[float]:
    parts = value if isinstance(value, list | tuple) else [value]
    try:
        return [float(part.detach() if isinstance(part, torch.Tensor) else part) for part in parts]
    except (TypeError, ValueError, RuntimeError) as error:
        raise option_invalid(
            f"a mean is of a number or a list of them: {error}",
            where=_WHERE,
            fix="session.mean(loss.mean()); session.gather(rows) for one number of each row",
        ) from None


def _unknown(what: str, *, fix: str) -> UsageError:
    return UsageError.of(
        "batch-weight-unknown",
        f"{what}, so the rows that this is the mean of are not known",
        where=_WHERE,
        why="ranks have different numbers of rows, and a borrowed row must not count",
        fix=fix,
    )


T = TypeVar("T")


class SessionRanks:
    """The ranks of a session, and the collectives between them."""

    _world: World
    _data: DataRanks
    _device: torch.device
    _gradients: Gradients
    _tracker: BatchTracker

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
        """Rank on this node, 0 to the node's number of ranks - 1."""
        return self._world.local_rank

    @property
    def mesh(self) -> DeviceMesh | None:
        """The device mesh of ``Session(mesh=...)``; None without one."""
        return self._data.mesh

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._world.rank == 0

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self._device

    def reduce(self, value: T) -> T:
        """Return the sum of ``value`` over all ranks, on all ranks; for a loss, see ``mean``.

        On a mesh, over the ranks with other rows: those that see the same rows count once.

        Args:
            value: An int (summed exactly), a float (in float64), a tensor of any shape (the same on
                all ranks), or a dict, list or tuple of them. A bool counts as an int. Tensors of
                booleans or narrow integers are returned as int64, as from ``torch.sum``.

        Raises:
            UsageError: ``value`` is, or holds, another type.
        """
        self._gradients.begin_collective()
        if self._tracker.is_uneven:
            value = gathering.as_the_others(value, self._data.group)
        return cast(T, runtime.sum_over_ranks(value, self._data.group))

    def mean(
        self,
        value: Any,
        weight: Any = None,
        *,
        loader: Loader | None = None,
    ) -> float:
        """Return the mean over the rows of all ranks, on all ranks: what a single rank would get.

        A collective: in the loop it is one for each batch, of a list after the loop a single one.

        Args:
            value: The mean over this rank's rows of the batch that its loader yielded last, such as
                a loss; or a list of them, one for each batch of the loop. Without a loader ranks
                count equally.
            weight: What ``value`` is a mean over, if not rows: tokens. For a list, a list.
            loader: The loader of the rows; None means the one that fits.

        Raises:
            UsageError: ``value`` is not a number, or it is unknown which rows it is the mean of.
        """
        self._gradients.begin_collective()
        loops = [loop for of, loop in self._tracker.latest.items() if loader in (None, of)]
        return mean(value, weight, loops, self._tracker.last, self._data.group)

    def gather(self, value: T, loader: Loader | None = None, *, gradients: bool = False) -> T:
        """Return the rows of all ranks, on all ranks, in the order of the dataset.

        Pass the rows of a batch, or all rows of a loop over a loader, concatenated: the result is
        what a single rank would have seen. Other rows are returned in the order of ranks.

        Args:
            value: A tensor of shape ``[rows, ...]``, or a dict, list or tuple of them.
            loader: The loader of the rows; None means the loader that yielded last.
            gradients: Whether a backward continues through the rows, also on the ranks that they
                come from, as for a contrastive loss. Otherwise the result is detached. All ranks
                must then use the result in the loss that they pass to ``backward``.

        Raises:
            UsageError: ``value`` holds another type.
        """
        self._gradients.begin_collective()
        iteration = self._tracker.last if loader is None else loader.iteration
        group = self._data.group
        return cast(T, gathering.gather(value, iteration, gradients=gradients, group=group))

    def once(self, fn: Callable[[], T], scope: str = "job") -> T:
        """Run ``fn`` on one rank while the others wait, and return its value on all ranks.

        For downloads and preprocessing. It may take any time: waiting ranks get heartbeats.

        Args:
            fn: Takes no argument; its return value must be picklable.
            scope: ``"job"`` runs it on rank 0, ``"node"`` on each node's first (for local disks).

        Raises:
            RunError: ``fn`` failed on another rank (which raises the original), or that rank ended.
            UsageError: The scope is unknown.
        """
        self._gradients.begin_collective()
        return cast(T, once.do_once(fn, scope, world=self._world))

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            builtins.print(*values, flush=True)

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self._gradients.begin_collective()
        runtime.barrier()
