"""Say what makes the results of a session depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from paceline.train.data import BatchTracker
from paceline.train.model.strategy import DDP, Strategy
from paceline.train.session.few_rows import BATCH_NORMS
from paceline.train.session.loop_draws import DEPENDS, DROPOUT, Draw, LoopDraws, lines_of

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class Limits:
    """Notes the models and random operations whose results are those of a rank's own rows."""

    def __init__(
        self,
        say: Callable[[str], None],  # prints a line on rank 0, once
        *,
        device: torch.device,
        strategy: Strategy,
    ) -> None:
        self._say, self._device = say, device
        self._syncs_norms = isinstance(strategy, DDP) and strategy.sync_batchnorm
        self._has_dropout = False
        self.parts: list[str] = []  # what was noted, as parts of the last line of a run
        # watches the first step for random operations; None when it is over
        self.draws: LoopDraws | None = None

    def note_models(self, models: Sequence[nn.Module]) -> None:
        """Say which modules depend on the number of ranks, as they are in training."""
        modules = [module for model in models for module in model.modules() if module.training]
        lines = []
        norms = sum(isinstance(module, BATCH_NORMS) for module in modules)
        if norms and not self._syncs_norms:
            lines.append("batch norm's statistics are those of a rank's own rows")
            self.parts.append(f"batch norm ({_modules(norms)})")
        drops = sum(isinstance(module, DROPOUTS) and module.p > 0 for module in modules)
        if drops:
            lines.append(DROPOUT)
            self.parts.append(f"dropout ({_modules(drops)})")
            self._has_dropout = True
        if lines:
            self._say(f"{DEPENDS}: {'; '.join(lines)}")

    def watch_draws(self, tracker: BatchTracker, *, is_seeded: bool) -> None:
        """Say what the first step draws at random, on each rank for itself.

        ``is_seeded``: the session has seeded ranks differently.
        """

        def report(draws: list[Draw]) -> None:
            self.draws = tracker.on_batch = None
            places = [(one.operation, one.place) for one in draws if not one.is_dropout]
            self.parts += [f"{name} ({place})" if place else name for name, place in places]
            for line in lines_of(draws, says_dropout=not self._has_dropout):
                self._say(line)

        self.draws = LoopDraws(self._device, is_seeded=is_seeded, report=report)
        tracker.on_batch = self.draws.at_batch


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count} modules"
