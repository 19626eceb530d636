"""Communication hooks of DDP that send less than the full gradients, with gloo and NCCL.

DDP compares a hook's annotations with the types themselves, so they must not be strings here (no
``from __future__ import annotations``).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

_LEAST_PIECE = 1 << 14  # elements; less takes as long


class Reducer:
    """Averages a bucket over all ranks: in one piece, or in several process groups at once.

    A ring all-reduce sends, adds up what came, and sends again, so that one of gloo's leaves the
    link idle for moments. On 1 Gbit/s four buckets of 25 MB filled 0.78 of what a TCP connection
    did in one group, and pieces of a few MB in eight groups 1.0, where tokens for 0.5 ms were saved
    (``tc tbf burst 64kb``). Where a sender may catch up 8 ms, both filled 0.99 and more.

    Args:
        num_groups: Number of new groups, which reduce a piece each; 0 means the default group.
        timeout: Timeout of their collectives; torch's default if None.
    """

    def __init__(self, num_groups: int, timeout: timedelta | None) -> None:
        self._groups = [dist.new_group(timeout=timeout) for _ in range(num_groups)] or [None]
        self._narrow: dict[int, torch.Tensor] = {}  # what is sent, by number of the bucket

    def average(self, bucket: GradBucket, dtype: torch.dtype) -> torch.futures.Future[torch.Tensor]:
        """Replace a bucket's gradients by their mean over all ranks, sent as ``dtype``.

        Each piece is prepared, sent and written back alone: while the first ones are on their way
        the others are divided, and after the last one only that piece remains to be written.

        Returns:
            A future of the bucket's buffer.
        """
        buffer = bucket.buffer()
        sent = self._sent(bucket.index(), buffer, dtype)
        length = max(_LEAST_PIECE, -(-buffer.numel() // len(self._groups)))
        pieces = zip(buffer.split(length), sent.split(length), self._groups, strict=False)
        futures = [_average_piece(piece, narrow, group) for piece, narrow, group in pieces]
        if len(futures) == 1:
            return futures[0].then(lambda done: _checked(buffer, [done]))
        together = torch.futures.collect_all(futures)
        return together.then(lambda done: _checked(buffer, done.value()))

    def _sent(self, number: int, buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor that is sent: the buffer itself if it has the type."""
        if buffer.dtype == dtype:
            return buffer
        if buffer.is_cuda:  # whose allocator keeps freed memory
            return torch.empty_like(buffer, dtype=dtype)
        before = self._narrow.get(number)
        if before is None or before.shape != buffer.shape:
            # Kept between steps: each page of new memory costs a fault, some 15 ms for 50 MB.
            self._narrow[number] = torch.empty_like(buffer, dtype=dtype)
        return self._narrow[number]


def _average_piece(
    piece: torch.Tensor, sent: torch.Tensor, group: Any
) -> torch.futures.Future[Any]:
    is_narrow = sent.dtype != piece.dtype
    if is_narrow:
        sent.copy_(piece)
    sent.div_(dist.get_world_size())
    work = dist.all_reduce(sent, group=group, async_op=True)
    future: torch.futures.Future[Any] = work.get_future()
    if not is_narrow:
        return future

    def write_back(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()  # raises the error of a failed reduction
        return piece.copy_(sent)

    return future.then(write_back)


def _checked(buffer: torch.Tensor, futures: list[torch.futures.Future[Any]]) -> torch.Tensor:
    """Return the buffer, or raise the error of a piece."""
    for future in futures:
        future.value()
    return buffer


def full_hook(state: Reducer, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of full gradients."""
    return state.average(bucket, bucket.buffer().dtype)


def narrow_hook(dtype: torch.dtype) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """Return a communication hook that sends gradients as ``dtype``; its state is a ``Reducer``.

    It works like torch's ``fp16_compress_hook``. Torch's bf16 hook requires NCCL by name, although
    gloo reduces bfloat16 too.
    """

    def hook(state: Reducer, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return state.average(bucket, dtype)

    return hook


class PowerSGD:
    """State of the low-rank hook between steps: initial factors, and error feedback.

    Args:
        rank: Rank of the factors.
        start: Steps that send full gradients first; at least one, after which DDP rebuilds its
            buckets.
    """

    def __init__(self, rank: int, start: int) -> None:
        self.rank, self.start = rank, max(start, 1)
        self.steps = 0
        self.unsent: dict[int, torch.Tensor] = {}
        self.factors: dict[tuple[int, int], torch.Tensor] = {}


def powersgd_hook(state: PowerSGD, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients by low-rank factors, with error feedback (Vogels et al., 2019).

    This is algorithm 1 of the paper. The collectives run one after the other, in the order of
    buckets. Those of torch's hook run in callbacks, whose order may differ between ranks, so that
    gloo confuses them.
    """
    buffer, size = bucket.buffer(), dist.get_world_size()
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    if state.steps >= state.start:
        number = bucket.index()
        buffer.add_(state.unsent.get(number, 0.0))
        target = buffer.clone()
        _approximate(state, number, bucket.gradients(), size)
        state.unsent[number] = _finite(target.sub_(buffer))
    else:
        dist.all_reduce(buffer.div_(size))
    if bucket.is_last():
        state.steps += 1
    done.set_result(buffer)
    return done


def _approximate(state: PowerSGD, bucket: int, gradients: list[torch.Tensor], size: int) -> None:
    low = [tensor for tensor in gradients if _worth(tensor, state.rank)]
    full = [tensor for tensor in gradients if not _worth(tensor, state.rank)]
    matrices = [tensor.view(tensor.shape[0], -1) for tensor in low]
    _mean_of_all(full, size)
    qs = [
        _orthogonal(_factor(state, (bucket, number), matrix))
        for number, matrix in enumerate(matrices)
    ]
    ps = [matrix @ q for matrix, q in zip(matrices, qs, strict=True)]
    _mean_of_all(ps, size)
    ps = [_orthogonal(p) for p in ps]
    qs = [matrix.t() @ p for matrix, p in zip(matrices, ps, strict=True)]
    _mean_of_all(qs, size)
    for number, (matrix, p, q) in enumerate(zip(matrices, ps, qs, strict=True)):
        torch.matmul(p, q.t(), out=matrix)
        state.factors[bucket, number] = _finite(q)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    wide = matrix.float() if matrix.dtype == torch.bfloat16 else matrix  # qr has no bfloat16
    columns: torch.Tensor = torch.linalg.qr(wide)[0].to(matrix)
    return columns


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Clear non-finite values of a skipped step, which would otherwise stay in all later steps."""
    return values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _worth(gradient: torch.Tensor, rank: int) -> bool:
    """Whether both factors together are smaller than the matrix."""
    if gradient.dim() < 2:
        return False
    rows, columns = gradient.shape[0], gradient.numel() // gradient.shape[0]
    return (rows + columns) * rank < rows * columns


def _factor(state: PowerSGD, key: tuple[int, int], matrix: torch.Tensor) -> torch.Tensor:
    before = state.factors.get(key)
    shape = (matrix.shape[1], min(state.rank, *matrix.shape))
    if before is not None and before.shape == shape:
        return before
    generator = torch.Generator().manual_seed(key[0] * 1000 + key[1])  # the same on all ranks
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(matrix)


def _mean_of_all(tensors: list[torch.Tensor], size: int) -> None:
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(size)
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
