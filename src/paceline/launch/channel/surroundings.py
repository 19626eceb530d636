"""What a control channel needs from the launcher around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline import deadlines
from paceline.errors import Notice


@dataclass(frozen=True)
class Surroundings:
    """What a control channel needs from the launcher around it."""

    inform: Callable[[Notice], None] = lambda notice: None  # prints a notice
    count_steps: Callable[[], int] = lambda: 0  # returns how many steps this node's ranks have made
    # takes a node rank and returns the scheduler's state of that node; empty without a scheduler.
    # May take seconds.
    node_state: Callable[[int], str] = lambda node: ""
    # how long a node may be silent without any training step, in seconds
    node_timeout_s: float = deadlines.NODE_TIMEOUT
    store_host: str = ""  # host of the run's store
    is_quiet: bool = False  # whether all nodes print to one output and another node prints for all
