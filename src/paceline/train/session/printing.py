"""Print a session's lines to stderr, on rank 0 only."""

from __future__ import annotations

import torch

from paceline.text import terminal
from paceline.train import runtime
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


def describe_world(world: World, device: torch.device) -> str:
    """Return launcher, ranks and device in a line; the process group must be open."""
    backend = runtime.backends().get(device.type)
    ranks = f"{world.world_size} ranks over {backend}" if backend else "1 rank"
    return f"launcher {world.launcher} ({world.reason}); {ranks}; rank 0 on {device}"
