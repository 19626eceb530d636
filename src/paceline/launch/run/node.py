"""One node's part of a run: meet the others, create the run folder, write the plan into it, and run
the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING

from paceline import env
from paceline.errors import Finding
from paceline.launch.plan import mpi_start, slurm_step
from paceline.launch.plan import plan as planning
from paceline.launch.plan.starter_defaults import MPI
from paceline.launch.run import folder as run_folder
from paceline.launch.run.context import LaunchContext
from paceline.launch.run.folder import RunFolder
from paceline.launch.run.link import Link, NodeEnd
from paceline.machine import interfaces, software, torch_requirements
from paceline.machine.cpus import usable_cpus
from paceline.rundir import identity
from paceline.rundir.files import RunDir, display_path, write_whole

if TYPE_CHECKING:
    from paceline.launch.rendezvous.handler import NodeMeeting


class Node:
    """This node, from the rendezvous to the end of its agent; runs in a separate thread."""

    def __init__(self, context: LaunchContext, link: Link) -> None:
        self._context = context
        self._link = link
        self._options = context.options
        self._plan = context.plan
        self._training = identity.of_command(
            context.options.script,
            context.options.script_args,
            env.snapshot(),
            folder=identity.working_folder(),
        )

    def run(self) -> None:
        """Take part in the run, and report how that ended. The target of the thread."""
        try:
            end = NodeEnd(succeeded=self._take_part())
        except BaseException as error:
            end = NodeEnd(error=error)
        self._link.advance(end=end)

    def _take_part(self) -> bool:
        """Meet the other nodes and run the agent; return True if the ranks succeeded."""
        # if ranks are not forked, the launcher imports torch here for the first time
        torch_requirements.require()
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from paceline.launch.run import agent as agents

        for finding in (*self._options.warnings, *self._plan.warnings):
            self._context.notices.warn(finding)
        if self._options.event_log_handler == "console":
            agents.show_events(self._context.console)
        meeting, folder = self._meet()
        rank_env = self._rank_env(meeting, folder.run_dir)
        agent = agents.Agent(self._context, meeting, folder, self._link, rank_env=rank_env)
        try:
            result = agent.run()
        except SignalException:
            return False
        if result is None:  # the rendezvous was closed while this node waited
            return True
        return not result.is_failed() and result.state.name == "SUCCEEDED"

    def _meet(self) -> tuple[NodeMeeting, RunFolder]:
        """Meet the other nodes, and create the run folder, which the head has named."""
        from paceline.launch.rendezvous import handler as rendezvous

        options, training, say = self._options, self._training, self._context.console.say
        earlier = run_folder.find_earlier(options, training, say=say)
        meeting = rendezvous.meet(
            self._options,
            self._plan,
            script=self._options.script,
            run_name=run_folder.new_name(options, training) if earlier is None else earlier.name,
            first_attempt=RunDir(earlier).next_attempt() if earlier is not None else 0,
            inform=self._context.notices.inform,
        )
        self._context.peers.store_host = str(meeting.identity["host"])
        # The link keeps the meeting: the store of the run lives as long as it.
        self._link.advance(meeting=meeting)
        run_dir = run_folder.make(
            self._options,
            str(meeting.identity["run_name"]),
            is_new=meeting.hosts_store and earlier is None,
            console=self._context.console,
            notices=self._context.notices,
        )
        folder = RunFolder(run_dir, int(meeting.identity["first_attempt"]))
        self._link.advance(folder=folder)
        if meeting.hosts_store:  # a run has one lease, which the head holds
            notice = folder.own(str(meeting.identity["token"]), training, say=say)
            if notice is not None:
                self._context.notices.inform(notice)
        self._write_plan(meeting, folder)
        self._warn_of_settings()
        return meeting, folder

    def _write_plan(self, meeting: NodeMeeting, folder: RunFolder) -> None:
        """Write the plan into the run folder, and print it."""
        if self._options.node_rank == 0 or self._plan.rendezvous != "static":
            with contextlib.suppress(OSError):  # the plan is printed as well
                path = folder.run_dir.plan(folder.first_attempt)
                values = {**self._plan.to_json(), "software": asdict(software.installed())}
                write_whole(path, json.dumps(values, indent=2) + "\n")
        if self._options.starter_defaults.shared_output and not meeting.hosts_store:
            return
        self._context.console.say(
            planning.describe(
                self._plan,
                self._options,
                head=meeting.endpoint.rpartition(":")[0],
                run_dir=display_path(folder.run_dir.root),
                is_signed=meeting.signing.is_on,
            )
        )

    def _warn_of_settings(self) -> None:
        """Print known problems with the environment of this node."""
        if (env.read(env.DEBUG_LEVEL) or "").upper() == "DETAIL" and self._plan.backend == "gloo":
            self._context.console.say(_detail_warning().render())
        if self._options.starter_defaults.starter == MPI:
            installed = os.cpu_count() or 1
            bound = mpi_start.bound_cpus(
                env.snapshot(), usable=usable_cpus()[0], installed=installed
            )
            if bound is not None:
                self._context.notices.warn(bound)
        if not self._options.no_slurm:
            dropped = slurm_step.dropped_cpus(env.snapshot(), usable_cpus()[0])
            if dropped is not None:
                self._context.notices.warn(dropped)

    def _rank_env(self, meeting: NodeMeeting, run_dir: RunDir) -> dict[str, str]:
        """Return variables for every rank, in addition to torchrun's."""
        # Of several nodes only those that have a secret in common can have another one.
        own = secrets.token_hex(32) if self._options.one_node else ""
        values = {
            env.RUN_TOKEN: str(meeting.identity["token"]),
            env.STORE_SECRET: meeting.signing.derived("ranks") or own,
            env.RUN_DIR: str(run_dir.root.absolute()),
        }
        for name in (env.CUDA_DEVICES, env.LOG_PREFIX):
            if env.read(name) is not None:
                values[name] = str(env.read(name))
        values[env.ASYNC_ERROR_HANDLING] = env.read(env.ASYNC_ERROR_HANDLING) or "1"
        return values | self._gloo_interface(meeting.address) | self._nccl_debug()

    def _gloo_interface(self, address: str) -> dict[str, str]:
        """Return gloo's variable with the interface of this node's address; empty if unknown."""
        # A head without a named address does not know which interface the other nodes use.
        is_known = self._options.one_node or self._options.head_named
        if not is_known or env.read(env.GLOO_INTERFACE) is not None:
            return {}
        interface = next((name for name, own in interfaces.addresses() if own == address), None)
        return {} if interface is None else {env.GLOO_INTERFACE: interface}

    def _nccl_debug(self) -> dict[str, str]:
        if not self._options.nccl_debug:
            return {}
        return {
            env.NCCL_DEBUG: "INFO",
            env.NCCL_DEBUG_SUBSYS: "INIT,NET,GRAPH,ENV,TUNING",
            env.CPP_LOG_LEVEL: "INFO",
            env.DEBUG_LEVEL: "INFO",
        }


def _detail_warning() -> Finding:
    return Finding(
        "debug-detail-crashes-ddp",
        f"{env.DEBUG_LEVEL}=DETAIL ends DistributedDataParallel on gloo with SIGSEGV in torch 2.13",
        where=f"environment variable {env.DEBUG_LEVEL}",
        fix="export TORCH_DISTRIBUTED_DEBUG=INFO",
        severity="warning",
    )
