"""The checkpoints of the run folder, under the names of a ModelCheckpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.train.checkpoint import list_of

if TYPE_CHECKING:
    from paceline.train.trainer.attributes import Attributes


class RunCheckpoints:
    """What ``trainer.checkpoint_callback`` is without a ModelCheckpoint."""

    def __init__(self, trainer: Attributes) -> None:
        self._trainer = trainer

    @property
    def dirpath(self) -> str:
        """Folder of the checkpoints."""
        return str(self._trainer.session.run_dir.checkpoints)

    @property
    def monitor(self) -> str | None:
        """The metric by which the best are kept."""
        return self._trainer.monitor

    @property
    def mode(self) -> str:
        """Whether smaller values of it are better."""
        return self._trainer.mode

    @property
    def best_model_path(self) -> str:
        """The best checkpoint, or the last one without a metric; empty without any."""
        scores = self._scores()
        if not scores:
            return self.last_model_path
        pick = min if self.mode == "min" else max
        return pick(scores, key=lambda path: scores[path])

    @property
    def best_model_score(self) -> torch.Tensor | None:
        """Metric of the best checkpoint; None without one."""
        scores = self._scores()
        return torch.tensor(scores[self.best_model_path]) if scores else None

    @property
    def best_k_models(self) -> dict[str, torch.Tensor]:
        """Metrics of the checkpoints that have one, by path."""
        return {path: torch.tensor(score) for path, score in self._scores().items()}

    @property
    def last_model_path(self) -> str:
        """The last checkpoint; empty without any."""
        paths = list(self._metrics())
        return paths[-1] if paths else ""

    def _scores(self) -> dict[str, float]:
        return {path: metric for path, metric in self._metrics().items() if metric is not None}

    def _metrics(self) -> dict[str, float | None]:
        """Return the metrics of this training's checkpoints by path, the oldest first."""
        folder = self._trainer.session.run_dir.checkpoints
        if not folder.is_dir():
            return {}
        _, committed = list_of(folder)
        own = [saved for saved in committed if saved.manifest.run == committed[-1].manifest.run]
        return {str(saved.path): saved.manifest.metric for saved in own}
