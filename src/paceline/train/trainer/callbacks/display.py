"""Callbacks that choose what is shown: the progress bar and a summary of the model."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from torch import nn

from paceline.train.trainer.callback import Callback
from paceline.train.trainer.options import count, invalid


class TQDMProgressBar(Callback):
    """The Trainer's progress bar, whose thread draws it a few times a second.

    Args:
        refresh_rate: 0 hides it; other values show it.
        process_position: Must be 0.
        leave: Must be False: each epoch leaves a line.

    Raises:
        UsageError: An option has no effect.
    """

    def __init__(
        self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False
    ) -> None:
        self.refresh_rate = count("refresh_rate", refresh_rate, least=0, where=type(self).__name__)
        if process_position:
            raise _without_effect(self, "process_position", process_position)
        if leave:
            raise _without_effect(self, "leave", leave)

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Show or hide the bar."""
        trainer.shows_progress = self.refresh_rate > 0


class RichProgressBar(TQDMProgressBar):
    """The same under the other name.

    Args:
        refresh_rate: 0 hides it; other values show it.
        leave: Must be False: each epoch leaves a line.
        theme: Must be None.
        console_kwargs: Must be None; ``trainer.console`` is rich's console.

    Raises:
        UsageError: An option has no effect.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: Any = None,
        console_kwargs: Any = None,
    ) -> None:
        super().__init__(refresh_rate, leave=leave)
        if theme is not None:
            raise _without_effect(self, "theme", theme)
        if console_kwargs is not None:
            raise _without_effect(self, "console_kwargs", console_kwargs)


def _without_effect(bar: Any, name: str, value: Any) -> Exception:
    return invalid(
        name, value, "an option of this bar", where=type(bar).__name__, fix="leave it out"
    )


class ModelSummary(Callback):
    """Prints a table of a module's parts and their parameters when a ``fit`` begins.

    Args:
        max_depth: Levels of parts inside parts; 0 prints nothing, -1 all levels.
    """

    def __init__(self, max_depth: int = 1) -> None:
        self.max_depth = count("max_depth", max_depth, least=-1, where="ModelSummary")

    def on_fit_start(self, trainer: Any, task: Any) -> None:
        """Print the table on rank 0."""
        if trainer.is_global_zero and self.max_depth and isinstance(task, nn.Module):
            trainer.console.print(summary(task, self.max_depth))


def summary(module: nn.Module, max_depth: int) -> Table:
    """Return a table of a module's parts, up to a depth (-1 for all), with their parameters."""
    table = Table("name", "type", "parameters", "trained")
    table.columns[2].justify = table.columns[3].justify = "right"
    for name, part in module.named_modules():
        depth = name.count(".") + 1
        if name and (max_depth < 0 or depth <= max_depth):
            table.add_row(name, type(part).__name__, *_counts(part))
    table.add_section()
    table.add_row("all", type(module).__name__, *_counts(module))
    return table


def _counts(module: nn.Module) -> tuple[str, str]:
    """Return the numbers of parameters and of trained ones, as text."""
    parameters = list(module.parameters())
    trained = sum(value.numel() for value in parameters if value.requires_grad)
    return f"{sum(value.numel() for value in parameters):,}", f"{trained:,}"
