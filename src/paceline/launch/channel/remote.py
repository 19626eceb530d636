"""What one node knows about the others in an attempt; the channel's thread writes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.launch.channel.silence import Loss


@dataclass
class Remote:
    """What is known about the other nodes."""

    failed: bool = False  # whether some node's ranks have failed in this attempt
    look: int = 0  # number of the last look at the ranks' places that a node has asked for
    hurry: bool = False  # whether a repeated signal asks to end the remaining ranks at once
    # the signal that some node's launcher received; all nodes end with it. 0 for none.
    stop: int = 0
    lost: set[int] = field(default_factory=set)  # ranks of lost nodes
    losses: dict[int, Loss] = field(default_factory=dict)  # why each of them is lost, by node rank
    # hosts of nodes that were named as silent and may come back, by node rank
    silent: dict[int, str] = field(default_factory=dict)
    store_loss: Loss | None = None  # why the host of the run's store is lost; None if it is not
    # whether the host of the store was named as silent and may come back
    store_silent: bool = False

    @property
    def store_lost(self) -> bool:
        """Whether the host of the run's store is lost."""
        return self.store_loss is not None

    @property
    def any_lost(self) -> bool:
        """Whether a node or the host of the run's store is lost."""
        return bool(self.lost) or self.store_lost

    def lose(self, node: int, loss: Loss) -> None:
        """Record that a node is lost."""
        self.losses.setdefault(node, loss)
        self.lost.add(node)

    def lose_store(self, loss: Loss) -> None:
        """Record that the host of the run's store is lost."""
        self.store_loss = self.store_loss or loss
