"""The agent of a node: torch elastic's, with ranks from the warm process and an ear for the other nodes.

torch's agent keeps its loop, its rendezvous and its restarts. What differs: ranks are started and reaped by
``Starter``; how each ended is kept with its exception and its pulse; a failure on any node stops the ranks of
all; a node that goes silent is noticed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import threading
from dataclasses import replace
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server import api as torch_agent
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.multiprocessing.api import (
    SignalException,
)

from paceline import deadlines, env
from paceline.errors import Finding
from paceline.launch.channel import silence
from paceline.launch.channel.board import Board, Surroundings
from paceline.launch.channel.signed_store import SignedStore
from paceline.launch.channel.silence import Loss, NodeLost
from paceline.launch.in_rank import guard, rank_files
from paceline.launch.monitor import ras
from paceline.launch.monitor.attempt import Attempt
from paceline.launch.monitor.fork_watch import ForkWatch
from paceline.launch.monitor.observer import Observer
from paceline.launch.monitor.watch import Watch
from paceline.launch.outcome import root_cause as outcome
from paceline.launch.outcome.endings import RankEnd
from paceline.launch.outcome.saving import SaveWatch
from paceline.launch.plan.early_variables import LateVariables
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan, rank_environment
from paceline.launch.preflight import rollcall
from paceline.launch.rendezvous import arrival
from paceline.launch.rendezvous.handler import HeldRendezvous, Meeting, node_timeout_s
from paceline.launch.run.console import Console
from paceline.launch.run.ranks import Machinery, RankGroup
from paceline.machine import interfaces

# torch asks DNS for the host's full name with every event that it records, which can take seconds each
# time where names do not resolve. The short name is what the machine knows of itself.
torch_agent._get_fq_hostname = socket.gethostname

# How long ranks may go on at least after another one has ended to be resumed.
_LEFT_ALONE_S = 5.0


class Agent(LocalElasticAgent):
    """The agent of this node."""

    def __init__(self, spec: WorkerSpec, machinery: Machinery, meeting: Meeting) -> None:
        super().__init__(spec=spec, logs_specs=machinery.logs)
        self._machinery = machinery
        self._identity = json.dumps(meeting.identity)
        self.hosts_store = meeting.hosts_store
        self.store_host = str(meeting.identity["host"])
        self._talks = meeting.store is not None  # etcd's store has no clients of its own to give
        self._meeting = meeting
        self._has_met = False
        self._asked_to_stop: signal.Signals | None = None
        self._wait_s = machinery.options.monitor_interval
        self.board: Board | None = None
        self.hosts: dict[int, str] = {}  # of nodes that were silent, by node rank
        self.losses: dict[int, Loss] = {}  # why nodes are lost
        self.group: RankGroup | None = None
        self.hang: Finding | None = None  # what the ranks of this attempt hung in, if they were stopped for it
        self._watch: Watch | None = None
        self._forks: ForkWatch | None = None
        self._late_variables: LateVariables | None = None
        self._observer: Observer | None = None
        self._saves = SaveWatch(
            machinery.run_dir.checkpoints,
            grace_s=machinery.plan.grace_s,
            again=machinery.again,
            notice=machinery.notice,
        )
        # of attempts that were followed by another: how ranks ended, the nodes that were lost, what they hung in
        self.earlier: list[tuple[list[RankEnd], set[int], Finding | None]] = []
        self.node_rank = 0
        self._master = ("", 0)
        self.num_nodes = 1
        self.stopping = threading.Event()

    def ask_to_stop(self, signum: signal.Signals, *, reached_ranks: bool = False) -> None:
        """Let the loop hand a signal on to the ranks and end, on all nodes; from any thread.

        Args:
            signum: The signal.
            reached_ranks: The ranks of this node have got it already: its sender has sent it to them too.
        """
        if reached_ranks and self.group is not None:
            self.group.reached_by = signum
        self._asked_to_stop = signum
        if self.board is not None:
            self.board.stop(signum)

    @property
    def noticed_hang(self) -> Finding | None:
        """What a notice has named as the cause of a wait that still lasts, None if there is none."""
        return self._watch.cause if self._watch is not None else None

    @property
    def attempts(self) -> int:
        """How often ranks have been started."""
        return len(self.earlier) + 1

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        before, self.board = self.board, None  # what it heard was about the attempt before
        # torch keeps the address of the first round's store; a node that joins in a later round would wait for
        # it in vain, and ranks would find the addresses that those before have left there.
        if hasattr(worker_group.spec.rdzv_handler, "_bootstrap_store_info"):
            worker_group.spec.rdzv_handler._bootstrap_store_info = None
        if self._has_met and self._meeting.places:
            arrival.tell_places(self._meeting.signed_store, [])
        handler = self._meeting.handler
        if before is not None and isinstance(handler, HeldRendezvous):
            handler.lost = lambda: self._lost_meanwhile(before)
        try:
            super()._rendezvous(worker_group)
        finally:
            if before is not None:
                before.close()  # until now its heartbeat said that this node is on its way
        self.node_rank = int(worker_group.group_rank or 0)
        self.num_nodes = int(worker_group.group_world_size or 1)
        self._master = (str(worker_group.master_addr), int(worker_group.master_port or 0))
        if self._talks and self.node_rank == 0:
            self._name_the_run()
        store = SignedStore(worker_group.store, self._meeting.signing, scope=self._meeting.scope(self._master[1]))
        if self.num_nodes > 1 and self._talks:
            self.board = Board(store, node=self.node_rank, num_nodes=self.num_nodes, surroundings=self._surroundings())
        if self._meeting.gathering is not None:
            self._meeting.gathering.close()
        if self._talks and not self._machinery.options.no_check:
            self._call_roll(store)
        self._has_met = True

    def _lost_meanwhile(self, board: Board) -> Finding | None:
        """Return what to end with if a node was lost while the nodes meet again."""
        losses = {silence.named(node, loss.host): loss for node, loss in dict(board.remote.losses).items()}
        return outcome.judge([], lost=list(losses), losses=losses).finding if losses else None

    def _surroundings(self) -> Surroundings:
        """Return what the board asks this launcher, and how it reports."""
        options = self._machinery.options
        return Surroundings(
            inform=self._machinery.inform,
            count_steps=self._count_steps,
            node_state=self._machinery.node_state,
            node_timeout_s=node_timeout_s(options),
            store_host=self.store_host,
            is_quiet=options.placed.left_to_head(self.node_rank),
        )

    def _count_steps(self) -> int:
        group = self.group
        return 0 if group is None else sum(group.counted(local).steps for local in group.attempt.ranks)

    def _call_roll(self, store: SignedStore) -> None:
        """Compare the nodes before ranks start: when this node meets others for the first time, and so do they."""
        if self._meeting.places:
            places = self._meeting.signed_store
            arrival.keep_places(places, store, node=self.node_rank, num_nodes=self.num_nodes)
        found = rollcall.compare(
            store,
            self._machinery.options,
            self._machinery.plan,
            self._machinery.run_dir.root,
            node=self.node_rank,
            num_nodes=self.num_nodes,
            token=str(self._meeting.identity["token"]),
            address=self._meeting.address,
            first=not self._has_met,
        )
        for finding in found.warnings:
            self._machinery.notice(finding)
        if found.line and not self._machinery.options.placed.left_to_head(self.node_rank):
            self._machinery.console.say(found.line)
        self._machinery.base_env = {**self._machinery.base_env, **found.env}
        if found.master and interfaces.is_loopback(self._master[0]):
            self._master = (found.master, self._master[1])

    def _name_the_run(self) -> None:
        """Write the run's identity where the ranks meet: c10d rendezvous opens a store of its own for them."""
        store = TCPStore(*self._master, is_master=False, wait_for_workers=False)
        store.set(guard.IDENTITY_KEY, self._identity)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._obey_stop()  # it may have come while the nodes met
        spec = worker_group.spec
        restarts = spec.max_restarts - self._remaining_restarts
        workers = worker_group.workers
        envs = {
            worker.local_rank: rank_environment(
                options=self._machinery.options,
                ranks={
                    "rank": worker.global_rank,
                    "local_rank": worker.local_rank,
                    "world_size": worker.world_size,
                    "local_world_size": spec.local_world_size,
                    "node_rank": self.node_rank,
                    "num_nodes": self.num_nodes,
                    "role_rank": worker.role_rank,
                    "role_world_size": worker.role_world_size,
                },
                master=self._master,
                restart_count=restarts,
                run_id=spec.rdzv_handler.get_run_id(),
                agent_store=spec.rdzv_handler.use_agent_store,
                visible_devices=self._machinery.base_env.get(env.CUDA_DEVICES),
            )
            for worker in workers
        }
        attempt = Attempt(
            number=self._machinery.first_attempt + restarts,
            ranks={worker.local_rank: worker.global_rank for worker in workers},
            world_size=workers[0].world_size,
        )
        self.group = group = RankGroup(self._machinery, attempt, envs, self._tell_others, self._is_hurried)
        self._pcontext = group
        group.start()
        self.hang = None
        if self.node_rank == 0 and not self.earlier:  # later attempts and other nodes would say the same
            self._late_variables = LateVariables(lambda: group.reported(rank_files.VARIABLE), self._machinery.inform)
        if self._machinery.pulses is not None and self._machinery.options.on_hang != "off":
            self._watch = Watch(
                group,
                self.board,
                asked_s=self._machinery.options.hang_timeout,
                give_up=self._is_over,
                inform=self._machinery.inform,
                ask_nccl=self._ask_nccl if self._machinery.plan.backend == "nccl" else None,
            )
            inform = self._machinery.inform if self.node_rank == 0 and not self.earlier else None
            self._forks = ForkWatch(group, self._machinery.pulses, inform=inform)
        if self._machinery.pulses is not None:
            self._observer = Observer(
                group,
                self._machinery.pulses,
                self.board,
                run_dir=self._machinery.run_dir,
                notice=self._machinery.notice,
            )
        self._machinery.on_start(restarts)
        return group.pids()

    def _tell_others(self) -> None:
        if self.board is not None:
            self.board.fail()

    def _is_over(self) -> bool:
        """Whether something has happened that is more urgent than a look at where ranks stand."""
        return self._asked_to_stop is not None or (self.board is not None and self.board.remote.failed)

    def _is_hurried(self) -> bool:
        return self.board is not None and self.board.remote.hurry

    def _obey_stop(self) -> None:
        """Raise SignalException where a signal has asked for the end, here or on another node."""
        if self.board is not None and self.board.remote.stop and self._asked_to_stop is None:
            self._asked_to_stop = signal.Signals(self.board.remote.stop)
        if self._asked_to_stop is not None:
            self.stopping.set()
            raise SignalException(f"the launcher got {self._asked_to_stop.name}", sigval=self._asked_to_stop)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self.group is not None
        self.group.listen(self._wait_s)
        self._obey_stop()
        result: RunResult = super()._monitor_workers(worker_group)
        if self._late_variables is not None:
            self._late_variables.tick(at_once=result.state != WorkerState.HEALTHY)
        if result.state == WorkerState.FAILED:
            return result
        if self.others_failed():
            self.group.stop("a rank on another node failed")
            return RunResult(state=WorkerState.FAILED)
        if result.state == WorkerState.SUCCEEDED and not self._all_done():
            result = RunResult(state=WorkerState.HEALTHY)
        if result.state == WorkerState.HEALTHY and self._observer is not None:
            self._observer.tick()
        if result.state == WorkerState.HEALTHY and self.node_rank == 0:
            self._saves.tick()
        if result.state == WorkerState.HEALTHY and self._watch is not None and self._hangs(self._watch):
            return RunResult(state=WorkerState.FAILED)
        if result.state == WorkerState.HEALTHY and self.group.left_s > self._patience_s():
            self._tell_others()
            self.group.stop("another rank had left to be resumed")
            return RunResult(state=WorkerState.FAILED)
        return result

    def _all_done(self) -> bool:
        """Tell that this node's ranks have succeeded; True once those of all nodes have.

        The head says so last, when it has judged what all ranks have shown: until then the others answer it, and
        need to ask for nothing but its word.
        """
        board, observer = self.board, self._observer
        if board is not None and board.node == 0 and not board.all_have("done", but_head=True):
            return False
        if observer is not None and not observer.close():
            return False
        if board is None:
            return True
        board.post("done", True)
        if board.node and board.announced("done", 0) is None:
            return False
        if observer is not None:
            observer.listen()
        return True

    def _hangs(self, watch: Watch) -> bool:
        """Look whether the run hangs, and if it is to be stopped for it, stop this node's ranks."""
        found = (self._forks and self._forks.tick()) or watch.tick()
        if found is None:
            return False
        if self._machinery.options.on_hang == "report":
            self._machinery.notice(replace(found, severity="warning"))
            return False
        self.hang = found
        self._tell_others()
        assert self.group is not None
        self.group.stop("the run hung")
        return True

    def _ask_nccl(self) -> list[str]:
        """Return the gist of NCCL's own report, which is kept whole in the run folder."""
        report = ras.ask(env.read(env.NCCL_RAS_ADDR) or ras.DEFAULT)
        if report:
            with contextlib.suppress(OSError):
                self._machinery.run_dir.nccl_ras.write_text(report)
        return ras.notable(report)

    def _patience_s(self) -> float:
        """How long ranks may go on after the first has left to be resumed: they do so together, and take their time.

        With several nodes a lost one must be noticed first: it is the better explanation.
        """
        patience_s = max(_LEFT_ALONE_S, self._machinery.plan.grace_s)
        notice_s = deadlines.scaled(deadlines.SILENT_NODE_NOTICE)
        return patience_s + (notice_s if self.board is not None else 0)

    def others_failed(self) -> bool:
        """Return whether another node has failed or gone."""
        if self.board is None:
            return False
        self.note_losses()
        return self.board.remote.failed or bool(self.board.remote.lost)

    def note_losses(self) -> None:
        """Keep what the board knows of nodes that are silent or lost: it lives for one attempt."""
        if self.board is not None:
            losses = dict(self.board.remote.losses)  # the board's thread adds to it meanwhile
            self.losses.update(losses)
            self.hosts.update(self.board.remote.silent)
            self.hosts.update({node: loss.host for node, loss in losses.items()})

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        assert self.group is not None
        self._stop_workers(worker_group)
        if self.board is not None and not self.board.answers(give_up=lambda: self._asked_to_stop is not None):
            # Nodes could not meet again, and would wait for it: for minutes if the head's host is silent.
            raise ConnectionError("the store of the run does not answer")
        is_static = isinstance(self._meeting.handler, HeldRendezvous)
        if is_static and self.board is not None and self.board.remote.lost:
            raise NodeLost("static rendezvous has no place for another node")
        self.group.keep_files()
        self.earlier.append((self.group.ends(), self.board.remote.lost if self.board else set(), self.hang))
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Nodes wait for each other in the loop, where a failure elsewhere is still heard."""


def show_events(console: Console) -> None:
    """Let torch's log of events reach the console: its handler writes to the stderr that is kept in the run folder."""
    handler = get_logging_handler("console")
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(os.fdopen(os.dup(console.err), "w", buffering=1))


def make_spec(options: Options, plan: Plan, meeting: Meeting) -> WorkerSpec:
    """Return torch's description of this node's ranks."""
    return WorkerSpec(
        role=options.role,
        local_world_size=int(plan.nproc.value),
        rdzv_handler=meeting.handler,
        entrypoint="paceline",
        max_restarts=options.max_restarts,
        # the agent waits for news by itself, without the delay of a fixed sleep
        monitor_interval=0.001,
        event_log_handler=options.event_log_handler,
    )
