"""What a control channel needs from the launcher around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline import deadlines
from paceline.errors import Notice


@dataclass(frozen=True)
class Surroundings:
    """What a control channel needs from the launcher around it.

    Attributes:
        inform: Prints a notice.
        count_steps: Returns how many steps this node's ranks have made.
        node_state: Takes a node rank and returns the scheduler's state of that node; empty
            without a scheduler. May take seconds.
        node_timeout_s: How long a node may be silent without any training step, in seconds.
        store_host: Host of the run's store.
        is_quiet: Whether all nodes print to one output and another node prints for all.
    """

    inform: Callable[[Notice], None] = lambda notice: None
    count_steps: Callable[[], int] = lambda: 0
    node_state: Callable[[int], str] = lambda node: ""
    node_timeout_s: float = deadlines.NODE_TIMEOUT
    store_host: str = ""
    is_quiet: bool = False
