"""Keep track of the other nodes: a control channel for each attempt, losses over all attempts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from paceline.launch.channel import silence
from paceline.launch.channel.remote import Remote
from paceline.launch.channel.silence import Loss

if TYPE_CHECKING:
    from paceline.launch.channel.control_channel import ControlChannel


class Peers:
    """The other nodes, as this node knows them. Any thread may use it."""

    def __init__(self) -> None:
        self.node = 0  # rank of this node; 0 until the nodes have met
        self.num_nodes = 1  # number of nodes; 1 until the nodes have met
        self.store_host = ""  # host of the run's store; empty until this node has reached it
        # the control channel of this attempt; None between attempts and on a single node
        self.channel: ControlChannel | None = None
        self._hosts: dict[int, str] = {}  # of nodes that were silent or lost, by node rank
        self._losses: dict[int, Loss] = {}
        self._store_loss: Loss | None = None

    def attach(self, channel: ControlChannel) -> None:
        """Use the control channel of a new attempt."""
        self.channel = channel

    def detach(self) -> ControlChannel | None:
        """Return the control channel of the ended attempt, to be closed; None without one."""
        channel, self.channel = self.channel, None
        return channel

    @property
    def remote(self) -> Remote:
        """The state of the other nodes in this attempt."""
        channel = self.channel  # the node's thread may reset it
        return Remote() if channel is None else channel.remote

    @property
    def clock_offset_ns(self) -> int:
        """How far this node's clock is ahead of the head's, in nanoseconds."""
        channel = self.channel
        return 0 if channel is None else channel.clock_offset_ns

    def fail(self) -> None:
        """Publish that this node has failed."""
        channel = self.channel
        if channel is not None:
            channel.fail()

    def stop(self, signum: signal.Signals) -> None:
        """Publish that a signal has asked this node to end."""
        channel = self.channel
        if channel is not None:
            channel.stop(signum)

    def hurry(self) -> None:
        """Ask all nodes to end their remaining ranks at once."""
        channel = self.channel
        if channel is not None:
            channel.hurry()

    def lose_store(self) -> None:
        """Record that the host of the run's store is lost."""
        self.remote.lose_store(Loss(self.store_host))

    def has_failure(self) -> bool:
        """Return whether another node has failed or is lost."""
        self._note_losses()
        remote = self.remote
        return remote.failed or remote.any_lost

    def exchange(
        self, content: dict[str, Any], *, until_s: float, linger: bool, give_up: Callable[[], bool]
    ) -> dict[int, dict[str, Any]]:
        """Exchange accounts as ``ControlChannel.exchange`` does; return {} on a single node."""
        channel = self.channel
        if channel is None:
            return {}
        return channel.exchange(content, until_s=until_s, linger=linger, give_up=give_up)

    def losses(self, nodes: Collection[int], *, store: bool = False) -> dict[str, Loss | None]:
        """Return why nodes are lost, by their names, first the host of the store if it is too.

        The value is None for an unknown reason.
        """
        losses: dict[str, Loss | None] = {}
        if store:
            losses[f"{self.store_host} (the host of the run's store)"] = self._store_loss
        for node in sorted(nodes):
            losses[silence.named(node, self._hosts.get(node, ""))] = self._losses.get(node)
        return losses

    def losses_at_end(self, heard: Collection[int]) -> dict[str, Loss | None]:
        """Return why nodes are lost, including silent ones, except those heard at the end."""
        self._note_losses()
        remote = self.remote
        nodes = (remote.lost | set(remote.silent)) - set(heard)
        return self.losses(nodes, store=remote.store_lost or remote.store_silent)

    def _note_losses(self) -> None:
        """Keep the channel's silent and lost nodes: the channel lives for one attempt only."""
        remote = self.remote
        losses = dict(remote.losses)  # the channel's thread adds to it meanwhile
        self._losses.update(losses)
        self._hosts.update(remote.silent)
        self._hosts.update({node: loss.host for node, loss in losses.items()})
        self._store_loss = remote.store_loss or self._store_loss


def known(losses: dict[str, Loss | None]) -> dict[str, Loss]:
    """Return the losses whose reason is known."""
    return {name: loss for name, loss in losses.items() if loss is not None}
