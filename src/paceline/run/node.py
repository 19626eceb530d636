"""One node's part of a run: it meets the others, makes the run folder, and its agent keeps its ranks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import env, pulse
from paceline.cpus import usable_cpus
from paceline.errors import Finding, SetupError
from paceline.launcher import host, outcome, resume, slurm, starter
from paceline.launcher import plan as planning
from paceline.launcher.console import Console
from paceline.launcher.options import Options
from paceline.launcher.plan import Plan
from paceline.launcher.resume import Again
from paceline.launcher.task import FUNCTION, RankTask
from paceline.rundir import RunDir, append_event, new_run_id, write_whole

if TYPE_CHECKING:
    from paceline.launcher.agent import Agent
    from paceline.launcher.rendezvous import Meeting


class Node:
    """This node, from its first look for the others to the end of its agent; runs in a thread of its own.

    Attributes:
        agent: Keeps the ranks; None until all have met.
        run_dir: The run folder; None until the run has a name.
        first_attempt: Number that the first attempt of this start has in it.
        noticed: Warnings of this node that the run's account repeats.
    """

    def __init__(
        self, options: Options, plan: Plan, task: RankTask, *, warm: starter.Starter, handle: int, console: Console
    ) -> None:
        self._options = options
        self._plan = plan
        self._task = task
        self._warm = warm
        self._handle = handle
        self._console = console
        self._meeting: Meeting | None = None
        self.agent: Agent | None = None
        self.run_dir: RunDir | None = None
        self.first_attempt = 0
        self.noticed: list[Finding] = []

    def run(self) -> bool:
        """Meet the other nodes and let the agent work; True if the ranks succeeded."""
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from paceline.launcher import agent as agents
        from paceline.launcher import logs, ranks, rendezvous

        asked_dir = self._options.run_dir
        # kept: the store of the run lives as long as it does
        self._meeting = meeting = rendezvous.meet(
            self._options,
            self._plan,
            script=self._options.script,
            run_name=self._new_run_name(),
            first_attempt=RunDir(Path(asked_dir)).next_attempt() if asked_dir is not None else 0,
            say=self._console.say,
        )
        self.first_attempt = int(meeting.identity["first_attempt"])
        self.run_dir = run_dir = self._make_run_dir(str(meeting.identity["run_name"]))
        self._write_plan(meeting.endpoint)
        machinery = ranks.Machinery(
            options=self._options,
            plan=self._plan,
            starter=self._warm,
            console=self._console,
            pulses=pulse.PulseBoard(self._handle, int(self._plan.nproc.value)) if self._handle >= 0 else None,
            pulse_handle=self._handle,
            run_dir=run_dir,
            task=self._task,
            base_env=self._base_env(meeting.identity, address=meeting.address),
            first_attempt=self.first_attempt,
            notice=self.notice,
            on_start=self._record_start,
            logs=logs.make_logs(self._options, run_dir, first_attempt=self.first_attempt),
            again=self.again(run_dir),
        )
        spec = agents.make_spec(self._options, self._plan, meeting)
        self.agent = agents.Agent(spec, machinery, meeting)
        try:
            result = self.agent.run()
        except SignalException:
            return False
        if result is None:  # the rendezvous was closed while this node waited: nothing of its own failed
            return True
        return not result.is_failed() and result.state.name == "SUCCEEDED"

    def again(self, run_dir: RunDir) -> Again:
        """Return how the run is started again."""
        return resume.plan(
            self._options,
            run_dir=str(run_dir.root),
            function=self._task.kind == FUNCTION,
            numbered=self._plan.rendezvous == "static",
            environ=env.snapshot(),
            job_script=str(run_dir.job_script) if run_dir.job_script.exists() else "",
        )

    def _new_run_name(self) -> str:
        return new_run_id(self._options.script or "function", now_s=time.time(), salt=secrets.token_hex(2))

    def _make_run_dir(self, name: str) -> RunDir:
        if self._options.run_dir is not None:
            asked = RunDir(Path(self._options.run_dir))
            try:
                asked.create()
            except OSError as error:
                raise SetupError(_not_writable(asked.root, error)) from None
            return asked
        usual = RunDir(Path("runs") / name)
        try:
            usual.create()
        except OSError as error:
            spare = RunDir(Path(tempfile.mkdtemp(prefix="paceline-")) / name)
            spare.create()
            self._console.say(f"run folder {spare.root}, because runs/ cannot be written here: {error.strerror}")
            return spare
        return usual

    def _write_plan(self, endpoint: str) -> None:
        assert self.run_dir is not None
        if self._options.node_rank == 0 or self._plan.rendezvous != "static":
            write_whole(self.run_dir.plan(self.first_attempt), json.dumps(self._plan.to_json(), indent=2) + "\n")
        told_by_head = self._options.placed.one_voice and self._meeting is not None and not self._meeting.hosts_store
        if not told_by_head:
            self._console.say(
                planning.describe(self._plan, self._options, address=endpoint, run_dir=str(self.run_dir.root))
            )
        if (env.read(env.DEBUG_LEVEL) or "").upper() == "DETAIL" and self._plan.backend == "gloo":
            self._console.say(_detail_warning().render())
        if not self._options.no_slurm:
            dropped = slurm.dropped_cpus(env.snapshot(), usable_cpus()[0])
            if dropped is not None:
                self.notice(dropped)

    def _base_env(self, identity: Mapping[str, Any], *, address: str) -> dict[str, str]:
        values = {env.RUN_TOKEN: str(identity["token"])}
        assert self.run_dir is not None
        values[env.RUN_DIR] = str(self.run_dir.root.absolute())
        for name in (env.CUDA_DEVICES, env.LOG_PREFIX):
            if env.read(name) is not None:
                values[name] = str(env.read(name))
        values[env.ASYNC_ERROR_HANDLING] = env.read(env.ASYNC_ERROR_HANDLING) or "1"
        # A head that was not given its own address does not know through which interface the others come.
        known = self._options.one_node or self._options.head_named
        if known and env.read(env.GLOO_INTERFACE) is None:
            interface = next((name for name, found in host.addresses() if found == address), None)
            if interface is not None:
                values[env.GLOO_INTERFACE] = interface
        if self._options.nccl_debug:
            values |= {env.NCCL_DEBUG: "INFO", env.NCCL_DEBUG_SUBSYS: "INIT,NET,GRAPH,ENV,TUNING"}
            values |= {env.CPP_LOG_LEVEL: "INFO", env.DEBUG_LEVEL: "INFO"}
        return values

    def _record_start(self, restarts: int) -> None:
        agent = self.agent
        assert agent is not None and agent.group is not None
        group = agent.group.attempt
        if restarts:
            ends, lost, hang = agent.earlier[-1]
            verdict = outcome.judge(ends, lost=names_of(lost, {}, agent), hang=hang)
            told = verdict.causes or verdict.lost or hang
            what = verdict.finding.what if told else "a rank on another node failed"
            if not self._options.placed.left_to_head(agent.node_rank):
                self._console.say(f"{what}; ranks were started again ({restarts} of {self._options.max_restarts})")
            self.event("restart", attempt=group.number, why=verdict.finding.to_json())
        self.event(
            "start",
            attempt=group.number,
            ranks=sorted(group.ranks.values()),
            pids=[group.pids[local] for local in sorted(group.pids)],
            world_size=group.world_size,
            host=socket.gethostname(),
            launcher=os.getpid(),
        )

    def notice(self, finding: Finding) -> None:
        """Say a warning now, once, and keep it for the run's account."""
        if finding not in self.noticed:
            self.noticed.append(finding)
            self._console.say(finding.render())

    def event(self, kind: str, **fields: Any) -> None:
        assert self.run_dir is not None
        node = self.agent.node_rank if self.agent else 0
        with contextlib.suppress(OSError):  # a full disk must not end a run
            append_event(self.run_dir.events(node), node=node, kind=kind, **fields)


def _not_writable(folder: Path, error: OSError) -> Finding:
    return Finding(
        "folder-not-writable",
        f"the run folder {folder} cannot be written: {error.strerror}",
        where=str(folder),
        fix="give another folder with --run-dir",
    )


def _detail_warning() -> Finding:
    return Finding(
        "debug-detail-crashes-ddp",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL ends DistributedDataParallel on gloo with SIGSEGV in torch 2.13",
        where=f"environment variable {env.DEBUG_LEVEL}",
        fix="export TORCH_DISTRIBUTED_DEBUG=INFO",
        severity="warning",
    )


def names_of(lost: set[int], found: Mapping[int, Any], agent: Agent) -> list[str]:
    """Name the nodes that are lost and have not sent their account all the same."""
    hosts = agent.board.remote.hosts if agent.board else {}
    names = {node: f"node {node}" + (f" ({hosts[node]})" if hosts.get(node) else "") for node in lost if node >= 0}
    names[-1] = f"{agent.store_host} ({outcome.STORE})"
    return [names[node] for node in sorted(lost - set(found))]
