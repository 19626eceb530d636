"""Static rendezvous of torch's elastic agent, on a store whose port was bound when chosen."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from paceline.errors import Finding, Notice, RunError
from paceline.launch.rendezvous import presence
from paceline.launch.rendezvous.node_wait import Waiting
from paceline.launch.rendezvous.presence import Arrived
from paceline.launch.rendezvous.store import open_store
from paceline.machine.signed_store import SignedStore
from paceline.machine.signing import Signing
from paceline.text.plain_data import read_as


class HeldRendezvous(RendezvousHandler):
    """Static rendezvous on an existing store, whose port was bound when it was chosen.

    torch's own static handler creates the store itself, on a port number that the user guessed, and
    waits for the other nodes inside a constructor that no signal can interrupt.
    """

    def __init__(
        self,
        store: TCPStore,  # of the run
        *,
        rank: int,
        num_nodes: int,
        run_id: str,
        address: str,  # numeric, of the head
        join_s: float,  # how long to wait for the other nodes
        inform: Callable[[Notice], None],
        # of what launchers write for each other; None for a run that does not sign
        signing: Signing | None = None,
    ) -> None:
        self._signing = signing
        self._join_s = join_s
        self._inform = inform
        # returns the finding to end the wait with because a node is lost; None if no node is lost
        self.lost: Callable[[], Finding | None] = lambda: None
        self._store = store
        self._for_ranks = store
        self._rank = rank
        self._num_nodes = num_nodes
        self._run_id = run_id
        self._address = address
        self._rounds = 0

    def get_backend(self) -> str:
        return "static"

    @property
    def use_agent_store(self) -> bool:
        return True

    @property
    def rounds(self) -> int:
        """How many times nodes have met here."""
        return self._rounds

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all nodes, and return where the ranks of the next attempt meet."""
        prefix = f"torchelastic/{self._run_id}/{self._rounds}"
        if self._rounds and self._num_nodes == 1:
            # Ranks of the previous attempt have left their addresses in the store.
            self._for_ranks = open_store(self._address, 0, must=True, only=True) or self._store
        self._rounds += 1
        store = PrefixStore(prefix, self._store)
        if self._num_nodes > 1:
            self._await_all(SignedStore(store, self._signing, scope=prefix))
        return RendezvousInfo(
            store,
            self._rank,
            self._num_nodes,
            RendezvousStoreInfo(self._address, self._for_ranks.port),
        )

    def _await_all(self, store: SignedStore) -> None:
        """Announce this node and wait for the others, where a signal can interrupt the wait.

        Raises RunError if another node has this node's rank, a node is lost, or some have not come
        in time.
        """
        nodes = (self._num_nodes, self._num_nodes)
        me = Arrived(0, self._rank, socket.gethostname(), os.getpid(), nodes)
        announcement = json.dumps(asdict(me))
        first = store.claim(f"here/{self._rank}", announcement).decode()
        if first != announcement:
            raise RunError(presence.same_rank_twice(read_as(Arrived, json.loads(first)), me))
        waiting = Waiting(self._inform, limit_s=self._join_s)
        while len(present := self._present(store)) < self._num_nodes:
            lost = self.lost()
            if lost is not None:
                raise RunError(lost)
            if waiting.is_over:
                missing = presence.missing(
                    present, head=me, waited_s=waiting.waited_s, hosts=[], evidence=[]
                )
                raise RunError(missing)
            waiting.show(presence.notice(present, head=me, hosts=[], evidence=[], fix=""))
            time.sleep(0.05)

    def _present(self, store: SignedStore) -> list[Arrived]:
        announcements = store.find_by_node("here", range(self._num_nodes))
        return [read_as(Arrived, json.loads(content)) for content in announcements.values()]

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True
