"""The agent of a node: torch elastic's agent, with ranks from the fork server.

torch's agent keeps its loop, its rendezvous and its restarts. Three things differ: ``ForkServer``
starts and reaps the ranks; a failure on any node stops the ranks of all nodes; a silent node is
noticed. This module adapts: ``Supervision`` watches the ranks of an attempt, and ``Peers`` knows
the other nodes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server import api as torch_agent
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.multiprocessing.api import (
    SignalException,
)
from torch.distributed.elastic.rendezvous import RendezvousError

from paceline import env
from paceline.errors import Finding
from paceline.launch.channel import silence
from paceline.launch.channel.control_channel import ControlChannel
from paceline.launch.channel.silence import NodeLost
from paceline.launch.channel.surroundings import Surroundings
from paceline.launch.in_rank import store_token_check
from paceline.launch.monitor.attempt import Attempt
from paceline.launch.outcome import root_cause
from paceline.launch.outcome.grace_check import SaveWatch
from paceline.launch.outcome.rank_exit import RankExit
from paceline.launch.outcome.weight import CAUSE, weigh
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan, rank_environment
from paceline.launch.preflight import comparison
from paceline.launch.rendezvous import roll_call
from paceline.launch.rendezvous.handler import NodeMeeting, hosts_by_rank, node_timeout_s
from paceline.launch.rendezvous.held_rendezvous import HeldRendezvous
from paceline.launch.run import peers
from paceline.launch.run.console import Console
from paceline.launch.run.context import LaunchContext
from paceline.launch.run.folder import RunFolder, resume_command
from paceline.launch.run.link import Link
from paceline.launch.run.log_names import make_logs
from paceline.launch.run.ranks import RankGroup
from paceline.launch.run.supervision import Supervision
from paceline.machine import interfaces
from paceline.machine.signed_store import SignedStore
from paceline.machine.slurm_commands import ask

# For every event that it records, torch asks DNS for the host's full name. That can take seconds
# each time if names do not resolve. The machine knows its short name without DNS.
torch_agent._get_fq_hostname = socket.gethostname

_SINFO_S = 10.0


class _Previous(NamedTuple):
    """An attempt that is followed by another."""

    ends: list[RankExit]  # the exits of this node's ranks
    lost: set[int]  # ranks of the lost nodes
    hang: Finding | None  # why the ranks hung, if they were stopped for a hang; else None


class Agent(LocalElasticAgent):
    """The agent of this node."""

    def __init__(
        self,
        context: LaunchContext,  # what all attempts share
        meeting: NodeMeeting,  # how this node takes part in the run
        folder: RunFolder,  # the run folder
        link: Link,  # tells the launcher's main thread how far this node has come
        *,
        rank_env: Mapping[str, str],  # variables for every rank, in addition to torchrun's
    ) -> None:
        logs = make_logs(context.options, folder.run_dir, first_attempt=folder.first_attempt)
        spec = make_spec(context.options, context.plan, meeting)
        super().__init__(spec=spec, logs_specs=logs)
        self._logs = logs
        self._context = context
        self._peers = context.peers
        self._link = link
        self._rank_env = rank_env
        self._folder = folder
        self._saves = SaveWatch(
            folder.run_dir.checkpoints,
            grace_s=context.plan.grace_s,
            resume_command=resume_command(
                folder.run_dir, context.options, context.plan, context.task
            ),
            notice=context.notices.warn,
        )
        self._meeting = meeting
        self._identity = json.dumps(meeting.identity)
        self._talks = meeting.store is not None  # etcd's store cannot be cloned
        self._has_met = False
        self._supervision: Supervision | None = None
        self._previous: _Previous | None = None
        self._restarts_before = 0
        self._master = ("", 0)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        before = self._peers.detach()  # it belongs to the previous attempt
        # torch keeps the address of the first round's store. A node that joins in a later round
        # would wait for it in vain, and ranks would find the addresses of the previous ranks there.
        if hasattr(worker_group.spec.rdzv_handler, "_bootstrap_store_info"):
            worker_group.spec.rdzv_handler._bootstrap_store_info = None
        if self._has_met and self._meeting.places:
            roll_call.publish_places(self._meeting.signed_store, [])
        handler = self._meeting.handler
        if before is not None and isinstance(handler, HeldRendezvous):
            handler.lost = lambda: _lost_meanwhile(before)
        try:
            super()._rendezvous(worker_group)
        finally:
            if before is not None:
                before.close()  # until now its heartbeat showed that this node is coming
        self._join(worker_group)

    def _join(self, worker_group: WorkerGroup) -> None:
        """Open the control channel to the nodes that have met, and compare the nodes."""
        node, num_nodes = int(worker_group.group_rank or 0), int(worker_group.group_world_size or 1)
        self._peers.node, self._peers.num_nodes = node, num_nodes
        self._master = (str(worker_group.master_addr), int(worker_group.master_port or 0))
        if self._talks and node == 0:
            self._name_the_run()
        scope = self._meeting.scope(self._master[1])
        store = SignedStore(worker_group.store, self._meeting.signing, scope=scope)
        if num_nodes > 1 and self._talks:
            channel = ControlChannel(
                store, node=node, num_nodes=num_nodes, surroundings=self._surroundings()
            )
            self._peers.attach(channel)
        if self._meeting.gathering is not None:
            self._meeting.gathering.close()
        if self._talks and not self._context.options.no_check:
            self._call_roll(store)
        self._has_met = True

    def _surroundings(self) -> Surroundings:
        """Return what the control channel needs from this launcher."""
        options = self._context.options
        return Surroundings(
            inform=self._context.notices.inform,
            count_steps=self._count_steps,
            node_state=lambda node: _node_state(options, node),
            node_timeout_s=node_timeout_s(options),
            store_host=self._peers.store_host,
            is_quiet=options.starter_defaults.head_reports(self._peers.node),
        )

    def _count_steps(self) -> int:
        supervision = self._supervision
        if supervision is None:
            return 0
        ranks = supervision.ranks
        return sum(ranks.counted(local).steps for local in ranks.attempt.ranks)

    def _call_roll(self, store: SignedStore) -> None:
        """Compare the nodes before ranks start, when all of them meet for the first time."""
        context, node, num_nodes = self._context, self._peers.node, self._peers.num_nodes
        if self._meeting.places:
            roll_call.record_places(
                self._meeting.signed_store, store, node=node, num_nodes=num_nodes
            )
        result = comparison.compare(
            store,
            context.options,
            context.plan,
            self._folder.run_dir.root,
            node=node,
            num_nodes=num_nodes,
            token=str(self._meeting.identity["token"]),
            address=self._meeting.address,
            first=not self._has_met,
        )
        for finding in result.warnings:
            context.notices.warn(finding)
        if result.line and not context.options.starter_defaults.head_reports(node):
            context.console.say(result.line)
        self._rank_env = {**self._rank_env, **result.env}
        if result.master and interfaces.is_loopback(self._master[0]):
            self._master = (result.master, self._master[1])

    def _name_the_run(self) -> None:
        """Write the run's identity into the store of the ranks: c10d opens a separate one."""
        store = TCPStore(*self._master, is_master=False, wait_for_workers=False)
        token = str(self._meeting.identity["token"])
        store.set(store_token_check.own_key(self._rank_env[env.STORE_SECRET], token), "")
        store.set(store_token_check.IDENTITY_KEY, self._identity)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._obey_stop()  # a signal may have come while the nodes met
        workers = worker_group.workers
        count = self._meeting.num_before
        if count is None:
            count = self._restarts
        attempt = Attempt(
            number=self._folder.first_attempt + count,
            ranks={worker.local_rank: worker.global_rank for worker in workers},
            world_size=workers[0].world_size,
        )
        envs = self._environments(worker_group, count)
        ranks = RankGroup(
            self._context,
            attempt,
            envs,
            run_dir=self._folder.run_dir,
            rank_env=self._rank_env,
            logs=self._logs,
        )
        self._pcontext = ranks
        is_head = self._peers.node == 0
        self._supervision = Supervision(
            self._context,
            ranks,
            run_dir=self._folder.run_dir,
            saves=self._saves if is_head else None,
            is_first=is_head and self._previous is None,
        )
        self._link.advance(supervision=self._supervision)
        self._supervision.begin()
        self._record_start(ranks)
        self._restarts_before = self._restarts
        return ranks.pids()

    @property
    def _restarts(self) -> int:
        """How many of ``--max-restarts`` this node has used."""
        return int(self._context.options.max_restarts - self._remaining_restarts)

    def _environments(
        self, worker_group: WorkerGroup, restart_count: int
    ) -> dict[int, dict[str, str]]:
        """Return the variables that torchrun sets for each rank of this node, by local rank."""
        spec = worker_group.spec
        return {
            worker.local_rank: rank_environment(
                options=self._context.options,
                ranks={
                    "rank": worker.global_rank,
                    "local_rank": worker.local_rank,
                    "world_size": worker.world_size,
                    "local_world_size": spec.local_world_size,
                    "node_rank": self._peers.node,
                    "num_nodes": self._peers.num_nodes,
                    "role_rank": worker.role_rank,
                    "role_world_size": worker.role_world_size,
                },
                master=self._master,
                restart_count=restart_count,
                run_id=spec.rdzv_handler.get_run_id(),
                agent_store=spec.rdzv_handler.use_agent_store,
                visible_devices=self._rank_env.get(env.CUDA_DEVICES),
            )
            for worker in worker_group.workers
        }

    def _record_start(self, ranks: RankGroup) -> None:
        """Append the start of an attempt to the run's events."""
        if self._previous is not None:
            self._report_restart(self._previous, number=ranks.attempt.number)
        pids = ranks.pids()
        self._folder.event(
            "start",
            node=self._peers.node,
            attempt=ranks.attempt.number,
            ranks=sorted(ranks.attempt.ranks.values()),
            pids=[pids[local] for local in sorted(pids)],
            world_size=ranks.attempt.world_size,
            host=socket.gethostname(),
            launcher=os.getpid(),
        )

    def _report_restart(self, previous: _Previous, *, number: int) -> None:
        """Print and record why ranks were started again."""
        context, restarts = self._context, self._restarts
        if restarts == self._restarts_before:  # torch counts failures only
            context.console.say("another node has come; ranks were started again")
            return
        losses = self._peers.losses(previous.lost)
        verdict = root_cause.judge(
            previous.ends,
            lost=list(losses),
            losses=peers.known(losses),
            hang=previous.hang,
        )
        is_known = verdict.causes or verdict.lost or previous.hang
        what = verdict.finding.what if is_known else "a rank on another node failed"
        if not context.options.starter_defaults.head_reports(self._peers.node):
            count = f"{restarts} of {context.options.max_restarts}"
            context.console.say(f"{what}; ranks were started again ({count})")
        why = verdict.finding.to_json()
        self._folder.event("restart", node=self._peers.node, attempt=number, why=why)

    def _obey_stop(self) -> None:
        """Raise SignalException if a signal has asked for the end, here or on another node."""
        signum = self._stop_signal()
        if signum is not None:
            self._link.advance(is_stopping=True)
            if self._supervision is not None:
                self._supervision.note_places()
            raise SignalException(f"the launcher got {signum.name}", sigval=signum)

    def _stop_signal(self) -> signal.Signals | None:
        """Return the signal that ranks must get because the run must end; None if it continues."""
        if self._context.stop.request is not None:
            return self._context.stop.request.signum
        remote = self._peers.remote.stop
        return signal.Signals(remote) if remote else None

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        supervision = self._supervision
        assert supervision is not None
        supervision.ranks.listen(self._context.options.monitor_interval)
        self._obey_stop()
        result: RunResult = super()._monitor_workers(worker_group)
        supervision.report_late_variables(at_once=result.state != WorkerState.HEALTHY)
        has_failed = result.state == WorkerState.FAILED
        peer_has_failed = not has_failed and self._peers.has_failure()
        if (has_failed or peer_has_failed) and self._is_joined(supervision.ranks):
            return RunResult(state=WorkerState.HEALTHY)  # torch starts the ranks again
        if has_failed:
            return result
        if peer_has_failed:
            supervision.ranks.stop("a rank on another node failed")
            return RunResult(state=WorkerState.FAILED)
        if result.state == WorkerState.SUCCEEDED and not supervision.all_done():
            result = RunResult(state=WorkerState.HEALTHY)
        if result.state == WorkerState.HEALTHY and supervision.must_end():
            return RunResult(state=WorkerState.FAILED)
        return result

    def _is_joined(self, ranks: RankGroup) -> bool:
        """Return whether ranks have only lost those that other nodes end because a node joins."""
        if self._peers.remote.any_lost or any(
            end.failed and weigh(end) == CAUSE for end in ranks.ends()
        ):
            return False
        try:
            return bool(self._meeting.handler.num_nodes_waiting())
        except RendezvousError:  # the store does not answer
            return False

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        supervision, channel = self._supervision, self._peers.channel
        assert supervision is not None
        self._stop_workers(worker_group)
        if channel is not None and not channel.answers(
            give_up=lambda: self._context.stop.request is not None
        ):
            # Nodes could not meet again: they would wait, for minutes if the store's host is
            # silent.
            raise ConnectionError("the store of the run does not answer")
        remote = self._peers.remote
        if isinstance(self._meeting.handler, HeldRendezvous) and remote.any_lost:
            raise NodeLost("static rendezvous has no place for another node")
        supervision.release()
        self._previous = _Previous(supervision.ranks.ends(), remote.lost, supervision.hang)
        self._link.advance(num_attempts=self._link.progress.num_attempts + 1)
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Do nothing: nodes wait for each other in the loop, where they still see a failure."""


def _lost_meanwhile(channel: ControlChannel) -> Finding | None:
    """Return the finding to end with if a node was lost while the nodes meet again; else None."""
    by_node = dict(channel.remote.losses)  # the channel's thread adds to it meanwhile
    losses = {silence.named(node, loss.host): loss for node, loss in by_node.items()}
    store_loss = channel.remote.store_loss
    if store_loss is not None:
        losses = {silence.store_named(store_loss.host): store_loss, **losses}
    return root_cause.judge([], lost=list(losses), losses=losses).finding if losses else None


def _node_state(options: Options, node: int) -> str:
    """Return Slurm's state of a node of this Slurm step; empty outside Slurm."""
    names = hosts_by_rank(options)
    if node >= len(names):
        return ""
    words = ("sinfo", "--noheader", "--nodes", names[node], "--format=%T")
    return ask(*words, timeout_s=_SINFO_S) or ""


def show_events(console: Console) -> None:
    """Send torch's log of events to the console, not to the stderr that the run folder keeps."""
    handler = get_logging_handler("console")
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(os.fdopen(os.dup(console.err), "w", buffering=1))


def make_spec(options: Options, plan: Plan, meeting: NodeMeeting) -> WorkerSpec:
    """Return torch's description of this node's ranks."""
    return WorkerSpec(
        role=options.role,
        local_world_size=int(plan.nproc.value),
        rdzv_handler=meeting.handler,
        entrypoint="paceline",
        max_restarts=options.max_restarts,
        # the agent waits for events, so torch need not sleep
        monitor_interval=0.001,
        event_log_handler=options.event_log_handler,
    )
