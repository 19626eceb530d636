"""Compare what all ranks of a session must hold alike, after steps 1, 2, 4, 8, ... and saves.

Ranks that are equal after a step stay equal if their gradients are averaged. What makes them differ
is a mistake that no rank sees: a learning rate from one rank's validation, parameters that one rank
has loaded, a gradient that was never averaged. ``machine.fingerprints`` tells it from rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from paceline.errors import Finding, RunError, UsageError
from paceline.machine import agreement
from paceline.machine.fingerprints import TOTAL_LIMIT, Value, fingerprints, total
from paceline.text import terminal
from paceline.train import runtime
from paceline.train.model import sharded

# After so few steps no rounding can have added up, and nothing is lost yet.
LAST_FATAL_STEP = 2


class RankCheck:
    """Compares the ranks of a session, never a single one; each time one small collective."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        # steps of this process, and that after which the next comparison is due; -1 if none is
        self.num_steps, self.due = 0, 1 if is_on else -1
        # comparisons, the step of the last, and that after which ranks differed; 0 while they agree
        self.count = self.last_step = self.differs_since = 0

    def compare(
        self,
        models: Sequence[nn.Module],  # that were set up
        optimizers: Iterable[Optimizer],
        *,
        step: int,  # also counted before a restore
        frozen: Iterable[str] = (),  # names of parameters that no gradient was ever averaged of
    ) -> None:
        """Compare what ranks hold after a step; a collective.

        Raises RunError if ranks differ after the first steps, or where nothing keeps them equal.
        """
        if not self._is_on or not self.num_steps or (self.count and step == self.last_step):
            return
        self.due = 1 << self.num_steps.bit_length()  # the next power of two
        named = _named(models)
        values = fingerprints(named, optimizers, steps=self.num_steps)
        pieces = _pieces(named, steps=self.num_steps)
        if not (values or any(map(sharded.is_dtensor, named.values()))):
            return
        self.count, self.last_step = self.count + 1, step
        if self.differs_since:
            return
        finding = _difference(values, step=step) or _difference_in_pieces(pieces, step=step)
        if finding is None:
            return
        self.differs_since = step
        is_early = self.num_steps <= LAST_FATAL_STEP
        if is_early or any(line.removeprefix("first: ") in frozen for line in finding.evidence):
            fix = f"{finding.fix}; ranks that are to differ: Session(check_ranks=False)"
            raise RunError(replace(finding, fix=fix, severity="error"))
        if not dist.get_rank():
            terminal.say(finding.render())


def require_equal(model: nn.Module) -> None:
    """Refuse a model whose plain parameters differ between ranks; a collective.

    It is for a mesh on which several ranks see the same rows: the model may be one that the user
    has cut into parts without DTensors, of which a checkpoint would hold one rank's.
    """
    finding = _difference(fingerprints(dict(model.named_parameters()), [], steps=1), step=0)
    if finding is not None:
        raise UsageError(
            replace(
                finding,
                what="ranks have other parameters, and no parameter is a DTensor",
                where="session.setup(model) on a mesh",
                why="a checkpoint would hold one rank's parameters as those of all",
                fix=(
                    "parallelize_module or DTensor.from_local for parts of a model; or the same"
                    " seed on all ranks"
                ),
                severity="error",
            )
        )


def _difference(values: list[Value], *, step: int) -> Finding | None:
    """Return a finding if fingerprints of all ranks differ; a collective."""
    if not values or runtime.spread(total(values)) <= TOTAL_LIMIT:
        return None
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, values)
    return agreement.compare(dict(enumerate(of_ranks)), step=step)


def _pieces(parameters: dict[str, torch.Tensor], *, steps: int) -> dict[Any, list[Value]]:
    """Return fingerprints of what this rank holds of DTensors, by the piece that it is."""
    by_piece: dict[Any, dict[str, torch.Tensor]] = {}
    for name, parameter in parameters.items():
        piece = sharded.piece_of(parameter)
        if piece is not None and parameter.requires_grad:
            local = sharded.local_of(parameter).detach().requires_grad_()
            by_piece.setdefault(piece, {})[name] = local
    return {piece: fingerprints(locals_, [], steps=steps) for piece, locals_ in by_piece.items()}


def _difference_in_pieces(pieces: dict[Any, list[Value]], *, step: int) -> Finding | None:
    """Return a finding if ranks that hold the same pieces of DTensors differ; a collective."""
    if not pieces:
        return None
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, pieces)
    for piece in dict.fromkeys(piece for held in of_ranks for piece in held):
        values = {rank: held[piece] for rank, held in enumerate(of_ranks) if piece in held}
        if finding := agreement.compare(values, step=step):
            return finding
    return None


def _named(models: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """Return the parameters of models by name, with the model's number before it if several."""
    return {
        f"model {number}, {name}" if len(models) > 1 else name: parameter
        for number, model in enumerate(models, 1)
        for name, parameter in model.named_parameters()
    }
