"""One node's part of a run: it meets the others, makes the run folder, and its agent keeps its ranks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import env, pulse
from paceline.errors import Finding, Notice, SetupError, UsageError
from paceline.launch.channel import silence
from paceline.launch.channel.silence import Loss
from paceline.launch.outcome import resume
from paceline.launch.outcome import root_cause as outcome
from paceline.launch.outcome.resume import Again
from paceline.launch.plan import folders
from paceline.launch.plan import plan as planning
from paceline.launch.plan import slurm_step as slurm
from paceline.launch.plan.options import Options
from paceline.launch.plan.plan import Plan
from paceline.launch.plan.task import FUNCTION, RankTask
from paceline.launch.run import starter
from paceline.launch.run.console import Console
from paceline.machine import interfaces, torch_requirements
from paceline.machine.cpus import usable_cpus
from paceline.machine.slurm_commands import ask
from paceline.rundir import events, identity, lease
from paceline.rundir.files import RUNS, RunDir, new_run_id, shown, write_whole
from paceline.rundir.identity import Training

_SINFO_S = 10.0

if TYPE_CHECKING:
    from paceline.launch.rendezvous.handler import Meeting
    from paceline.launch.run.agent import Agent


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
        self._lease: lease.Lease | None = None
        self._training = identity.of_command(
            options.script, options.script_args, env.snapshot(), folder=identity.working_folder()
        )
        self._asked_to_stop: signal.Signals | None = None
        self.agent: Agent | None = None
        self.run_dir: RunDir | None = None
        self.first_attempt = 0
        self.noticed: list[Finding] = []

    def run(self) -> bool:
        """Meet the other nodes and let the agent work; True if the ranks succeeded."""
        torch_requirements.require()  # where ranks are not forks, the launcher imports torch here for the first time
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from paceline.launch.rendezvous import handler as rendezvous
        from paceline.launch.run import agent as agents
        from paceline.launch.run import logs, ranks

        if not self._options.placed.left_to_head(self._options.node_rank):
            for finding in (*self._options.warnings, *self._plan.warnings):
                self.notice(finding)
        if self._options.event_log_handler == "console":
            agents.show_events(self._console)
        earlier = self._earlier_folder()
        # kept: the store of the run lives as long as it does
        self._meeting = meeting = rendezvous.meet(
            self._options,
            self._plan,
            script=self._options.script,
            run_name=earlier.name if earlier is not None else self._new_run_name(),
            first_attempt=RunDir(earlier).next_attempt() if earlier is not None else 0,
            inform=self.inform,
        )
        self.first_attempt = int(meeting.identity["first_attempt"])
        self.run_dir = run_dir = self._make_run_dir(str(meeting.identity["run_name"]), earlier)
        if meeting.hosts_store:  # one lease for a run: that of its head
            self._own(run_dir, str(meeting.identity["token"]))
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
            inform=self.inform,
            on_start=self._record_start,
            logs=logs.make_logs(self._options, run_dir, first_attempt=self.first_attempt),
            again=self.again(run_dir),
            node_state=self._node_state,
        )
        spec = agents.make_spec(self._options, self._plan, meeting)
        self.agent = agents.Agent(spec, machinery, meeting)
        if self._asked_to_stop is not None:  # before there was an agent to be told
            self.agent.ask_to_stop(self._asked_to_stop)
        try:
            result = self.agent.run()
        except SignalException:
            return False
        if result is None:  # the rendezvous was closed while this node waited: nothing of its own failed
            return True
        return not result.is_failed() and result.state.name == "SUCCEEDED"

    def ask_to_stop(self, signum: signal.Signals, *, reached_ranks: bool = False) -> None:
        """Ask the agent to stop, also if there is none yet; see ``Agent.ask_to_stop``."""
        self._asked_to_stop = signum
        if self.agent is not None:
            self.agent.ask_to_stop(signum, reached_ranks=reached_ranks)

    def leave(self) -> None:
        """Let the node that hosts the store know that this launcher ends in order."""
        if self._meeting is not None and self._meeting.connection is not None:
            self._meeting.connection.leave()

    def _node_state(self, node: int) -> str:
        """Return what Slurm says of a node of the step that this is in; empty outside Slurm."""
        from paceline.launch.rendezvous import handler as rendezvous

        names = rendezvous.hosts_by_rank(self._options)
        if node >= len(names):
            return ""
        return ask("sinfo", "--noheader", "--nodes", names[node], "--format=%T", timeout_s=_SINFO_S) or ""

    def again(self, run_dir: RunDir) -> Again:
        """Return how the run is started again."""
        return resume.plan(
            self._options,
            run_dir=shown(run_dir.root),
            function=self._task.kind == FUNCTION,
            numbered=self._plan.rendezvous == "static",
            environ=env.snapshot(),
            job_script=shown(run_dir.job_script) if run_dir.job_script.exists() else "",
        )

    def release(self) -> None:
        """Give the run folder back, and forget the run's secret: the run has ended."""
        if self._meeting is not None and self._meeting.shared_secret is not None:
            self._meeting.shared_secret.remove()
        if self._lease is not None:
            self._lease.release()

    def _earlier_folder(self) -> Path | None:
        """Return the folder that this run continues in: the one that was named, or that of this job's earlier start."""
        if self._options.run_dir is not None:
            return Path(self._options.run_dir)
        restarts = env.read(env.JOB_RESTARTS)
        if self._options.no_slurm or not self._training.job or restarts in (None, "0"):
            return None
        found = _folder_of_job(self._training)
        if found is not None:
            self._console.say(f"job {self._training.job} was queued again: it continues in {found}")
        return found

    def _new_run_name(self) -> str:
        training = self._training
        job = f"{training.array_job}_{training.array_task}" if training.array_task else training.job
        script = self._options.script or "function"
        return new_run_id(script, now_s=time.time(), salt=secrets.token_hex(2), job=job)

    def _make_run_dir(self, name: str, earlier: Path | None) -> RunDir:
        """Make the run folder; its path is absolute, because ranks may change their working directory."""
        if self._options.run_dir is not None:
            named = RunDir(Path(self._options.run_dir).absolute())
            try:
                named.create()
            except OSError as error:
                raise SetupError(folders.unusable(named.root, error, option="--run-dir")) from None
            return named
        usual = RunDir(RUNS.absolute() / name)
        is_head = self._meeting is not None and self._meeting.hosts_store
        # The folder alone says nothing: another node of this run may have been quicker to make it.
        if is_head and earlier is None and (usual.lease.exists() or usual.training.exists()):
            raise SetupError(_name_taken(usual.root))
        try:
            usual.create()
        except OSError as error:
            return self._make_spare_dir(name, usual, error)
        return usual

    def _make_spare_dir(self, name: str, usual: RunDir, error: OSError) -> RunDir:
        """Make the run folder in the system's folder for temporary files, and say why it is there."""
        why = folders.unusable(usual.root.parent, error, option="--run-dir", severity="warning")
        try:
            spare = RunDir(Path(tempfile.mkdtemp(prefix="paceline-")) / name)
            spare.create()
        except OSError:
            raise SetupError(replace(why, severity="error")) from None
        if why.name == "disk-full":
            self.notice(why)
        self._console.say(f"run folder {spare.root}, because {RUNS}/ cannot be written here: {error.strerror}")
        return spare

    def _own(self, run_dir: RunDir, token: str) -> None:
        """Become the owner of the run folder for all nodes.

        Raises:
            UsageError: It belongs to a living run, or to another array element.
        """
        recorded = identity.read(run_dir)
        conflict = identity.conflict(run_dir.root, recorded, self._training)
        if conflict is not None:
            raise UsageError(conflict)
        owner = lease.this_process(token, element=self._training.element)
        try:
            self._lease = lease.take(run_dir.root, owner, say=self._console.say)
        except OSError as error:
            self._console.say(f"the lease of the run folder {run_dir.root} cannot be written: {error.strerror}")
        if recorded is not None and (lines := identity.differences(recorded, self._training)):
            self.inform(Notice(f"{run_dir.root} is continued by another command", tuple(lines)))
        identity.record(run_dir, self._training)

    def _write_plan(self, endpoint: str) -> None:
        assert self.run_dir is not None
        if self._options.node_rank == 0 or self._plan.rendezvous != "static":
            with contextlib.suppress(OSError):  # the plan is printed, too
                write_whole(self.run_dir.plan(self.first_attempt), json.dumps(self._plan.to_json(), indent=2) + "\n")
        told_by_head = self._options.placed.one_voice and self._meeting is not None and not self._meeting.hosts_store
        if not told_by_head:
            self._console.say(
                planning.describe(
                    self._plan,
                    self._options,
                    address=endpoint,
                    run_dir=shown(self.run_dir.root),
                    is_signed=self._meeting is not None and self._meeting.signing.is_on,
                )
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
            interface = next((name for name, found in interfaces.addresses() if found == address), None)
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
            names = names_of(lost, {}, agent)
            verdict = outcome.judge(ends, lost=list(names.values()), losses=losses_of(names, agent), hang=hang)
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

    def inform(self, notice: Notice) -> None:
        """Print a notice. The final report repeats warnings, but not notices."""
        self._console.say(notice.render())

    def event(self, kind: str, **fields: Any) -> None:
        assert self.run_dir is not None
        node = self.agent.node_rank if self.agent else 0
        with contextlib.suppress(OSError):  # a full disk must not end a run
            events.append(self.run_dir.events(node), node=node, kind=kind, **fields)


def _folder_of_job(training: Training) -> Path | None:
    """Return the folder in which this Slurm job ran the same command before it was queued again."""
    owners = [(path, identity.read(RunDir(path))) for path in sorted(RUNS.glob(f"*-{training.job}-*"))]
    owners += [(path, identity.read(RunDir(path))) for path in sorted(RUNS.glob(f"*-{training.array_job}_*"))]
    same = [path for path, owner in owners if owner and owner.job == training.job and owner.same_as(training)]
    return same[-1] if same else None


def _name_taken(folder: Path) -> Finding:
    return Finding(
        "folder-not-writable",
        f"another run has chosen the same run folder {folder} in the same second",
        where=str(folder),
        fix="start this run again",
    )


def _detail_warning() -> Finding:
    return Finding(
        "debug-detail-crashes-ddp",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL ends DistributedDataParallel on gloo with SIGSEGV in torch 2.13",
        where=f"environment variable {env.DEBUG_LEVEL}",
        fix="export TORCH_DISTRIBUTED_DEBUG=INFO",
        severity="warning",
    )


def names_of(lost: set[int], found: Mapping[int, Any], agent: Agent) -> dict[int, str]:
    """Name the nodes that are lost and have not sent their account all the same."""
    names = {node: silence.named(node, host) for node, host in agent.hosts.items()}
    names[silence.STORE] = f"{agent.store_host} ({outcome.STORE})"
    return {node: names.get(node, f"node {node}") for node in sorted(lost - set(found))}


def losses_of(names: Mapping[int, str], agent: Agent) -> dict[str, Loss]:
    """Return why nodes are lost, by their names."""
    return {name: agent.losses[node] for node, name in names.items() if node in agent.losses}
