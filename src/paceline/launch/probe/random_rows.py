"""Give the rows of a part of a batch the random numbers that they had in the whole batch.

The k-th random operation of a pass over a part is that of the pass over the whole. Of its result
the part gets its rows where a dimension is the number of rows, and the same numbers where none is.
Where neither holds, as for a permutation of the rows, ``doubt`` says so. The mode also converts to
float64 what a script asks to be float32, and sees collectives. It is active in the backward too,
where checkpointed modules are computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.machine import accelerator

_LOW = (torch.float32, torch.bfloat16, torch.float16)
_COLLECTIVES = ("c10d", "c10d_functional")
_NO_EXCHANGE = ("barrier", "wait")
_READS = ("local_scalar_dense", "detach")  # a script also looks at its loss


@dataclass
class _Draw:
    """A random operation of the whole batch's pass."""

    name: str  # of the operation
    numbers: tuple[Any, ...]  # its arguments that are numbers
    shape: torch.Size | None  # of its first argument, if that is a tensor
    results: list[torch.Tensor]  # copies of what it has returned


class RandomRows(TorchDispatchMode):
    """Records the random operations of one pass, and repeats them in others."""

    def __init__(
        self,
        place: Callable[[], str],  # returns the line of the script that runs
    ) -> None:
        super().__init__()
        self._place = place
        self.is_double = self._is_on = self._records = False  # compute in float64
        # type to which something was rounded all the same; None if nothing was
        self.coarsest: torch.dtype | None = None
        # line of the script of the last operation
        # last collective of this pass that others may have seen
        # why numbers of this pass may not be those of the rows in the whole batch
        self.doubt = self.collective = self.last_place = ""
        self._size, self._rows = 0, list[int]()
        self._drawn: list[_Draw] = []
        self._next = 0

    def begin(self, size: int, rows: list[int], *, records: bool) -> None:
        """Begin a pass over some rows of a whole batch of ``size``.

        Its random operations are recorded, or repeat those.
        """
        self._is_on, self._records = True, records
        self._size, self._rows, self._next = size, rows, 0
        self.collective = ""
        if records:
            self._drawn = []

    def end(self) -> None:
        """Leave operations as they are from now on."""
        self._is_on = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_double:
            args, kwargs = self._lifted(func, args, kwargs)
        if not self._is_on:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name.strip("_") not in _READS:
            self.last_place = self._place() or self.last_place
        is_exchange = func.namespace.strip("_") in _COLLECTIVES and not name.startswith(
            _NO_EXCHANGE
        )
        if is_exchange and not _is_of_parallel_model(sys._getframe(1)):
            self.collective = f"{name.strip('_')} in {self.last_place}"
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._draw(func, args, kwargs)
        return func(*args, **kwargs)

    def _lifted(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of an operation with all its tensors in one type."""
        if kwargs.get("dtype") in _LOW:
            kwargs = {**kwargs, "dtype": torch.float64}
        name, leaves = func.overloadpacket.__name__, pytree.tree_leaves((args, kwargs))
        kinds = {leaf.dtype for leaf in leaves if _is_real(leaf)}
        is_of_scaler = name.strip("_").startswith("amp")  # its scale is always float32
        if len(kinds) < 2 or torch.float64 not in kinds or is_of_scaler:
            return args, kwargs
        kind = torch.float64
        if name.endswith("_") and _is_real(args[0]):
            kind = args[0].dtype
            self.coarsest = self.coarsest if kind == torch.float64 else kind
        lifted = pytree.tree_map(
            lambda leaf: leaf.to(kind) if _is_real(leaf) else leaf, (args, kwargs)
        )
        return lifted[0], lifted[1]

    def _draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        before = _states()
        out = func(*args, **kwargs)
        if kwargs.get("generator") is None and all(map(torch.equal, before, _states())):
            return out  # a dropout of no values, for example
        name = func.overloadpacket.__name__
        draw = _draw_of(name, args, out)
        if self._records:
            self._drawn.append(draw)
            return out
        self._next += 1
        if self._next > len(self._drawn) or self._drawn[self._next - 1].name != name:
            self._doubt(name)
            return out
        return self._repeated(draw, self._drawn[self._next - 1], func, args, out)

    def _repeated(self, draw: _Draw, whole: _Draw, func: Any, args: Any, out: Any) -> Any:
        """Return the numbers that the rows of this pass had in the whole batch."""
        values = [self._rows_of(*pair) for pair in zip(whole.results, draw.results, strict=True)]
        known = [value for value in values if value is not None]
        is_same_call = draw.numbers == whole.numbers and not _draws_rows(draw, whole)
        if is_same_call and len(known) == len(values):
            if isinstance(out, torch.Tensor):
                return out.copy_(known[0])  # in place, some operations return an argument
            if draw.name == "native_dropout":
                scale = 1 / (1 - args[1]) if args[1] < 1 else 0.0
                return args[0] * known[1] * scale, known[1]
        self._doubt(draw.name)  # also of a fused operation, of which only the result is known
        return out

    def _rows_of(self, whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor | None:
        """Return the rows of this pass; None if it is unknown which these are."""
        if whole.shape == part.shape:
            return whole.clone()
        if whole.dim() != part.dim():
            return None
        dims = [
            dim for dim, (a, b) in enumerate(zip(whole.shape, part.shape, strict=True)) if a != b
        ]
        dim, count = dims[0], len(self._rows)
        times = whole.shape[dim] // self._size
        sizes = (times * self._size, times * count)
        if len(dims) > 1 or (whole.shape[dim], part.shape[dim]) != sizes:
            return None
        if times > 1:  # heads of each row, or each row at every time
            self._doubt("with several numbers a row")
        by_row = whole.unflatten(dim, (self._size, times))
        rows = torch.tensor(self._rows, device=whole.device)
        own: torch.Tensor = by_row.index_select(dim, rows).flatten(dim, dim + 1)
        return own

    def _doubt(self, name: str) -> None:
        self.doubt = self.doubt or f"a random operation ({name}) in {self.last_place}"


def _draws_rows(draw: _Draw, whole: _Draw) -> bool:
    """Return whether an operation draws rows, and not a number for each of them."""
    return draw.name == "multinomial" and len(draw.shape or ()) == 1 and draw.shape != whole.shape


def _draw_of(name: str, args: Any, out: Any) -> _Draw:
    numbers = tuple(arg for arg in args if isinstance(arg, int | float))
    first = args[0].shape if args and isinstance(args[0], torch.Tensor) else None
    results = [leaf.clone() for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    return _Draw(name, numbers, first, results)


def _is_of_parallel_model(frame: FrameType | None) -> bool:
    """Return whether DistributedDataParallel compares buckets or buffers before its forward."""
    while frame is not None:
        if frame.f_code.co_name == "_pre_forward":
            return frame.f_globals.get("__name__") == "torch.nn.parallel.distributed"
        frame = frame.f_back
    return False


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _states() -> list[torch.Tensor]:
    """Return the states of torch's generators."""
    module = accelerator.module_in_use()
    others = [] if module is None else module.get_rng_state_all()
    return [torch.get_rng_state(), *others]
