"""Run a task's ``predict_step`` over loaders, and put the predictions of all ranks together."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from paceline.errors import UsageError, option_invalid
from paceline.train.data import parts_of_batch
from paceline.train.trainer.gathering import mapped

if TYPE_CHECKING:
    from paceline.train.trainer.evaluating import Evaluation

STAGE = "predict"


def predict(
    evaluation: Evaluation,
    loaders: Sequence[Any],
    limits: Sequence[int | None],  # maximum number of batches of each; None for all
    *,
    returns: bool,
) -> list[Any] | None:
    """Return the predictions for each batch as a single rank would make them, on all ranks.

    The list has the result of ``predict_step`` for each batch; with several loaders it has these
    lists; None if ``returns`` is False, and predictions are not kept in memory. Raises UsageError
    if, on several ranks, a result is not made of tensors with a row for each sample.
    """
    hooks, results = evaluation.hooks, []
    with evaluation.work.evaluating(inference=evaluation.trainer.inference_mode):
        hooks.call_task("on_predict_model_eval")
        hooks.call("on_predict_start")
        hooks.call("on_predict_epoch_start")
        for number, (loader, limit) in enumerate(zip(loaders, limits, strict=True)):
            position = (number,) if len(loaders) > 1 else ()
            with evaluation.display.progress.aside(STAGE, limit):
                results.append(_over(evaluation, loader, limit, position, returns=returns))
        hooks.call("on_predict_epoch_end")
        hooks.call("on_predict_end")
    if not returns:
        return None
    return results if len(results) > 1 else results[0]


def _over(
    evaluation: Evaluation,
    loader: Any,
    limit: int | None,
    position: Sequence[int],
    *,
    returns: bool,
) -> list[Any]:
    """Return the predictions for the batches of one loader."""
    begin = evaluation.hooks.caller("on_predict_batch_start")
    end = evaluation.hooks.caller("on_predict_batch_end")
    index = position[0] if position else 0
    outputs, sizes = [], []
    for batch_idx, raw in enumerate(itertools.islice(loader, limit)):
        batch = raw if evaluation.transfer is None else evaluation.transfer(raw, index)
        if not loader.rows:
            if evaluation.work.is_sharded:  # every forward is a collective
                with evaluation.work.uncounted():
                    evaluation.work.evaluate("predict_step", batch, batch_idx, *position)
            continue
        if begin:
            begin(batch, batch_idx, index)
        result = evaluation.work.evaluate("predict_step", batch, batch_idx, *position)
        if end:
            end(result, batch, batch_idx, index)
        if returns:
            outputs.append((result, loader.rows))
            sizes.append(loader.iteration.rows.of_batch)
        evaluation.display.progress.batch += 1
    if evaluation.trainer.world_size == 1:
        return [result for result, _ in outputs]
    return _of_all_ranks(evaluation.trainer.session, loader, outputs, sizes) if returns else []


def _of_all_ranks(
    session: Any, loader: Any, outputs: Sequence[tuple[Any, int]], sizes: list[int]
) -> list[Any]:
    """Return the predictions of all ranks by batch, in the order of the dataset.

    Rank 0 has rows of every batch, so it knows the sizes of all, and the form of a result.
    """
    for result, rows in outputs:
        _check(result, rows)
    empty = session.once(lambda: mapped(outputs[0][0], _without_rows) if outputs else None)
    sizes = session.once(lambda: sizes)
    if not sizes:
        return []
    parts = [empty, *(result for result, _ in outputs)]
    whole = session.gather(_joined(parts), loader)
    return _divided(whole, sizes)


def _without_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0].cpu()


def _check(result: Any, rows: int) -> None:
    """Refuse a result that is not made of tensors with a row for each sample."""
    if isinstance(result, Mapping | list | tuple):
        for part in parts_of_batch(result):
            _check(part, rows)
    elif not isinstance(result, torch.Tensor) or not result.dim() or len(result) != rows:
        raise _not_of_rows(result, rows)


def _joined(values: Sequence[Any]) -> Any:
    """Return nested values of equal form as one, their tensors concatenated."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _joined([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        parts = [_joined(parts) for parts in zip(*values, strict=True)]
        return parts if isinstance(first, list) else tuple(parts)
    # The first part has no rows, and is on the CPU of the rank that described it.
    return torch.cat([value.to(values[-1].device) for value in values])


def _divided(whole: Any, sizes: Sequence[int]) -> list[Any]:
    """Return nested values divided into batches."""
    ends = itertools.accumulate(sizes)
    spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [mapped(whole, operator.itemgetter(rows)) for rows in spans]


def _not_of_rows(result: Any, rows: int) -> UsageError:
    kind = type(result).__name__
    shape = f" of shape {list(result.shape)}" if isinstance(result, torch.Tensor) else ""
    return option_invalid(
        f"predict_step returned a {kind}{shape} for a batch with {rows} rows on this rank",
        where="predict_step",
        why="predictions of several ranks are put together row by row",
        fix=(
            "return tensors of shape [rows, ...], also in a dict or list; or"
            " trainer.predict(..., return_predictions=False) with on_predict_batch_end"
        ),
    )
