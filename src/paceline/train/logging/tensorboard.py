"""TensorBoard's event files, by torch's own writer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.train.logging.logger import require

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger:
    """TensorBoard's event files, one for each process that logged.

    Args:
        folder: Folder of the files; ``tensorboard --logdir FOLDER`` shows them.

    Raises:
        SetupError: tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._writer: SummaryWriter | None = None
        require("tensorboard", "TensorBoardLogger")

    @property
    def experiment(self) -> SummaryWriter:
        """TensorBoard's writer, for histograms and other kinds."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(os.fspath(self.folder))
        return self._writer

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each number as a scalar."""
        writer = self.experiment
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def close(self) -> None:
        """Close the event file; a later ``log`` starts another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def log_image(self, name: str, image: Any, step: int) -> None:
        """Write an image, shape ``[height, width, channels]``."""
        self.experiment.add_image(name, image, step, dataformats="HWC")

    def log_text(self, name: str, text: str, step: int) -> None:
        """Write a text, which TensorBoard renders as Markdown."""
        self.experiment.add_text(name, text, step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Write a table of the arguments of the run, as a text."""
        rows = [f"| {name} | {value} |" for name, value in values.items()]
        self.log_text("hyperparameters", "\n".join(["| name | value |", "| --- | --- |", *rows]), 0)
