"""Choose the plan of a run: options and facts in, decisions with their reasons out.

Chosen are the number of ranks, their threads, backend, start method, endpoint and rendezvous, and
the times after which hangs are noticed and ranks are killed. Pure, and without torch, so that the
plan can be shown on a login node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline import deadlines, env
from paceline.errors import Finding, SetupError, UsageError, option_invalid
from paceline.launch.plan import early_variables
from paceline.launch.plan.option_values import split_endpoint
from paceline.launch.plan.options import DEFAULT_C10D_PORT, DEFAULT_PORT, Options
from paceline.machine.host import HostFacts

# The first optimizer imports torch._dynamo in each rank, which takes as long as importing torch.
_TRAINS = re.compile(r"\boptim\b|lightning|accelerate|transformers|paceline|compile\(|deepspeed")


@dataclass(frozen=True)
class Choice:
    """A value that paceline chose, and why."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a run will do on this node."""

    nproc: Choice  # ranks on this node
    threads: Choice  # ``OMP_NUM_THREADS`` of each rank; value None keeps the user's
    rendezvous: str  # ``"local"``, ``"static"``, ``"c10d"`` or another of torch's names
    host: str  # name or address of the rendezvous
    port: Choice  # port of the rendezvous; 0 lets the kernel choose
    start_method: Choice  # ``"fork"``, ``"spawn"`` or ``"exec"``
    warm_imports: tuple[str, ...]  # modules that the fork server imports in addition to torch
    backend: str  # the backend that ranks are expected to use
    grace_s: int  # seconds that ranks have to end before they are killed
    hang: Choice  # how long ranks may make no progress, in words
    keep_alive_s: int  # seconds between heartbeats of a node (c10d)
    last_call_s: int  # seconds to wait for more nodes once the least number has come (c10d)
    accelerate: str = ""  # settings from a configuration of accelerate, in words
    warnings: tuple[Finding, ...] = ()  # warnings that are printed below the plan

    def to_json(self) -> dict[str, Any]:
        """Return the plan for ``plan.json``, without the port: others may read that file."""
        return {name: value for name, value in asdict(self).items() if name != "port"}


def make(
    options: Options,
    facts: HostFacts,
    *,
    environ: Mapping[str, str],
    source: str,  # of the script; empty if it cannot be read
) -> Plan:
    """Return the plan of a run.

    Raises UsageError if options do not fit each other or this machine; SetupError if the platform
    is not supported, or there are too few GPUs.
    """
    nproc = choose_nproc(options.nproc_per_node, facts)
    _check_against(options, facts, nproc.value, environ.get(env.CUDA_DEVICES))
    rendezvous, host, port = choose_endpoint(options)
    grace = options.shutdown_timeout
    return Plan(
        nproc=nproc,
        threads=choose_threads(nproc.value, facts, environ),
        rendezvous=rendezvous,
        host=host,
        port=port,
        start_method=choose_start_method(options, facts, environ, source=source),
        warm_imports=("torch._dynamo",) if _TRAINS.search(source) else (),
        backend="nccl" if facts.num_gpus else "gloo",
        grace_s=(
            grace
            if grace is not None
            else _default_grace(environ.get(env.SHUTDOWN_TIMEOUT) or "30")
        ),
        hang=choose_hang(options, gpus=facts.num_gpus > 0),
        keep_alive_s=choose_keep_alive(options.max_nodes),
        last_call_s=choose_last_call(options.max_nodes),
        warnings=(
            *_without_effect(options, facts, nproc.value),
            *_short_of_files(nproc.value, options.min_nodes, facts),
        ),
    )


def _short_of_files(nproc: int, num_nodes: int, facts: HostFacts) -> Iterator[Finding]:
    """Yield the warning that the launcher may open fewer files than it needs."""
    # Measured: its own, output and reports of each of its ranks, and a connection to the store.
    needed = 30 + 6 * nproc + nproc * num_nodes
    if facts.most_files is None or not 0 <= facts.most_files < needed:
        return
    yield Finding(
        "too-many-open-files",
        f"the launcher may open {facts.most_files} files, and needs {needed} for these ranks",
        where=f"ulimit -Hn on {facts.hostname}",
        why="ranks that it cannot let in wait, and so do all that wait for them",
        fix="nofile in /etc/security/limits.conf, or in a container: --ulimit nofile=65536:65536",
        severity="warning",
    )


def _default_grace(text: str) -> int:
    if not re.fullmatch("[0-9]+", text):
        raise option_invalid(
            f"{env.SHUTDOWN_TIMEOUT}={text} is not a whole number of seconds",
            where=f"environment variable {env.SHUTDOWN_TIMEOUT}",
            fix=f"export {env.SHUTDOWN_TIMEOUT}=30",
        )
    return int(text)


def choose_nproc(requested: str, facts: HostFacts) -> Choice:
    """Return the number of ranks of this node: as requested, else one per GPU, else one.

    Raises SetupError if GPUs are requested and there are none.
    """
    if requested.isdigit():
        return Choice(int(requested), "--nproc-per-node")
    if requested in ("", "gpu", "auto") and facts.num_gpus:
        return Choice(facts.num_gpus, f"one per GPU ({facts.gpu_reason})")
    if requested in ("cpu", "auto"):
        return Choice(facts.usable_cpus, f"one per usable CPU ({facts.cpu_reason})")
    if requested == "" and facts.granted_gpus:
        return Choice(
            facts.granted_gpus, f"one per GPU that Slurm gave this node; {facts.gpu_reason}"
        )
    if requested in ("gpu", "xpu"):
        raise SetupError.of(
            "gpus-fewer-than-processes",
            f"--nproc-per-node {requested}: there is no {requested.upper()} here",
            where=facts.hostname,
            evidence=(facts.gpu_reason,),
            fix="--nproc-per-node 2 runs two ranks on CPUs; nvidia-smi shows what the driver sees",
        )
    return Choice(1, "no GPU here")


def choose_threads(nproc: int, facts: HostFacts, environ: Mapping[str, str]) -> Choice:
    """Return ``OMP_NUM_THREADS``: the user's value, else an equal share of the usable CPUs."""
    if environ.get(env.OMP_THREADS):
        return Choice(None, f"{env.OMP_THREADS}={environ[env.OMP_THREADS]} is set")
    share = max(1, facts.usable_cpus // nproc)
    return Choice(share, f"{_count(facts.usable_cpus, 'usable CPU')} / {_count(nproc, 'rank')}")


def choose_endpoint(options: Options) -> tuple[str, str, Choice]:
    """Return the kind, the host and the port of the rendezvous."""
    if options.rdzv_backend != "static":
        if not options.rdzv_endpoint:
            return "local", "127.0.0.1", Choice(0, "chosen by the kernel")
        if options.rdzv_backend != "c10d":
            return options.rdzv_backend, options.rdzv_endpoint, Choice(0, "in --rdzv-endpoint")
        host, port = split_endpoint(options.rdzv_endpoint, DEFAULT_C10D_PORT)
        starter = options.starter_defaults
        is_starters = "rdzv_endpoint" in starter.values
        return "c10d", host, Choice(port, starter.port_reason if is_starters else "--rdzv-endpoint")
    if options.rdzv_endpoint:
        host, port = split_endpoint(options.rdzv_endpoint, DEFAULT_PORT)
        return "static", host, Choice(port, "--rdzv-endpoint")
    if options.master_port is not None:
        starter = options.starter_defaults
        reason = starter.port_reason if "master_port" in starter.values else "--master-port"
        return "static", options.master_addr, Choice(options.master_port, reason)
    if options.one_node:
        return "local", "127.0.0.1", Choice(0, "chosen by the kernel")
    return "static", options.master_addr, Choice(DEFAULT_PORT, "torch's default")


def choose_start_method(
    options: Options, facts: HostFacts, environ: Mapping[str, str], *, source: str
) -> Choice:
    """Return how ranks start: ``fork`` from the fork server, unless something prevents it."""
    if options.no_python:
        return Choice("exec", "--no-python")
    if environ.get(env.PYTHON_EXEC):
        return Choice("exec", f"{env.PYTHON_EXEC} names another Python")
    if options.start_method in ("spawn", "exec"):
        return Choice(options.start_method, options.source_of("start_method"))
    if facts.platform != "linux":
        return Choice("spawn", "forking a process with torch loaded is safe on Linux only")
    if options.script == "-":
        return Choice("exec", "Python reads the script from standard input")
    if facts.python_flags:
        return Choice(
            "spawn", f"ranks get no {' '.join(facts.python_flags)}, which Python was started with"
        )
    early = next(filter(early_variables.is_early, early_variables.set_in(source)), None)
    if early:
        return Choice("spawn", f"the script sets {early}, which torch reads when it is imported")
    if options.nccl_debug:
        return Choice("spawn", "--nccl-debug: torch reads its log level when it is imported")
    return Choice("fork", "")


def choose_hang(options: Options, *, gpus: bool) -> Choice:
    """Return the time without progress after which a hang is reported, in words.

    torch's own timeout of collectives (10 minutes for NCCL, 30 for gloo, or the script's value)
    also ends a run, with less information; it comes first if it is shorter.
    """
    if options.no_probe:
        return Choice("hangs are not watched", options.source_of("no_probe"))
    if options.on_hang == "off":
        return Choice("hangs are not watched", options.source_of("on_hang"))
    if options.hang_timeout is None:
        end = "ended only if it is proven" if options.on_hang == "stop" else "never ended"
        source = f"; {options.source_of('on_hang')}" if "on_hang" in dict(options.preferred) else ""
        return Choice(f"hang: notice after {deadlines.HANG_NOTICE:g} s", f"{end}{source}")
    torch_s = 600 if gpus else 1800
    first = (
        f"; torch's own timeout of {torch_s} s comes first"
        if options.hang_timeout > torch_s
        else ""
    )
    return Choice(
        f"hang: {options.on_hang} after {options.hang_timeout:g} s",
        f"{options.source_of('hang_timeout')}{first}",
    )


def choose_keep_alive(num_nodes: int) -> int:
    """Return the seconds between heartbeats of a node; after three missed ones the node is lost.

    torch's default is 5 s. With 2 s a lost node is detected within 8 s. The head answers a request
    of each node, so the interval grows with their number, to torch's default at about 1,000 nodes.
    """
    return min(5, 2 + num_nodes // 256)


def choose_last_call(num_nodes: int) -> int:
    """Return the seconds that a rendezvous waits for more nodes once the least number has come.

    torch's default is 30 s, which is most of the 42.6 s that it needs to continue with fewer nodes.
    A wait that is too short splits groups whose nodes start at different speeds, so it grows with
    their number.
    """
    return min(30, 5 + num_nodes // 8)


def _check_against(options: Options, facts: HostFacts, nproc: int, visible: str | None) -> None:
    if facts.platform == "win32":
        raise SetupError.of(
            "platform-unsupported",
            "paceline run works on Linux, and on macOS with fewer features; not on Windows",
            fix="run it in WSL 2",
        )
    for finding in _contradictions(options, facts, nproc, visible):
        raise UsageError(finding)


def _contradictions(
    options: Options, facts: HostFacts, nproc: int, visible: str | None
) -> Iterator[Finding]:
    """Yield the options that this machine cannot provide."""
    if 0 < facts.granted_gpus < nproc:
        granted = _count(facts.granted_gpus, "GPU")
        yield Finding(
            "gpus-fewer-than-processes",
            f"{nproc} ranks on this node, and Slurm gave it {granted}",
            where=options.starter_defaults.source,
            fix=(
                f"#SBATCH --gpus-per-node={nproc}, or --nproc-per-node {facts.granted_gpus}; "
                "on CPUs: export CUDA_VISIBLE_DEVICES=; to share GPUs: --no-slurm"
            ),
        )
    devices = visible.split(",") if visible else None
    has_short_list = devices is not None and len(devices) < nproc
    has_too_few = facts.num_gpus < nproc and (facts.num_gpus > 0 or has_short_list)
    if options.virtual_local_rank and has_too_few:
        fewer_ranks = f"--nproc-per-node {facts.num_gpus}"
        yield _contradicted(
            f"--virtual-local-rank gives each rank its own GPU: {nproc} ranks,"
            f" {facts.num_gpus} GPUs",
            facts,
            fix=fewer_ranks if facts.num_gpus else "remove --virtual-local-rank",
        )
    if options.numa_binding and not facts.num_gpus:
        yield _contradicted(
            "--numa-binding binds ranks to the CPUs near their GPU, and there is no GPU here",
            facts,
            fix="remove --numa-binding",
        )


def _contradicted(what: str, facts: HostFacts, *, fix: str, severity: str = "error") -> Finding:
    return Finding(
        "option-contradicted",
        what,
        where="command line",
        evidence=(facts.gpu_reason,),
        fix=fix,
        severity=severity,
    )


def _without_effect(options: Options, facts: HostFacts, nproc: int) -> Iterator[Finding]:
    """Yield warnings about options that torchrun ignores on a machine like this one."""
    beyond = [rank for rank in options.local_ranks_filter if rank >= nproc]
    if beyond:
        valid_ranks = [str(rank) for rank in options.local_ranks_filter if rank < nproc]
        yield Finding(
            "option-contradicted",
            f"--local-ranks-filter names local rank {beyond[0]}, but this node has"
            f" {_count(nproc, 'rank')}",
            where="command line",
            fix=f"--local-ranks-filter {','.join(valid_ranks) or '0'}",
            severity="warning",
        )
    if options.virtual_local_rank and not facts.num_gpus:
        yield _contradicted(
            "--virtual-local-rank gives each rank its own GPU, and there is no GPU here",
            facts,
            fix="remove --virtual-local-rank",
            severity="warning",
        )


def describe(
    plan: Plan,
    options: Options,
    *,
    head: str,  # of the store; its port is for nobody who reads the output of a job
    run_dir: str,
    is_signed: bool = True,  # launchers sign the values that they write to the store
) -> str:
    """Return the plan as the one line that is printed before the start.

    The line leaves out defaults; ``plan.json`` in the run folder has all of the plan, with reasons.
    """
    parts = [_layout(plan, options), plan.backend]
    if options.max_nodes > 1:
        parts.append(f"head {head}")
    if options.hang_timeout is not None or options.on_hang != "stop" or options.no_probe:
        parts.append(f"{plan.hang.value} ({plan.hang.reason})")
    if plan.start_method.reason:
        parts.append(f"{plan.start_method.value} ({plan.start_method.reason})")
    if plan.accelerate:
        parts.append(plan.accelerate)
    if not is_signed and not options.one_node:
        parts.append("unauthenticated store")
    if options.starter_defaults.source:
        parts.insert(1, options.starter_defaults.source)
    return " · ".join([*parts, run_dir])


def _layout(plan: Plan, options: Options) -> str:
    """Return the numbers of nodes and ranks: ``2 nodes x 8 ranks (one per GPU)``."""
    if options.min_nodes == options.max_nodes:
        nodes = _count(options.max_nodes, "node")
    else:
        nodes = f"{options.min_nodes}-{options.max_nodes} nodes"
    ranks = _count(plan.nproc.value, "rank")
    if plan.nproc.reason == "--nproc-per-node":
        return f"{nodes} x {ranks}"
    return f"{nodes} x {ranks} ({plan.nproc.reason.partition(' (')[0]})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rank_environment(
    *,
    options: Options,
    ranks: Mapping[str, int],
    master: tuple[str, int],  # of the ranks' store
    restart_count: int,
    run_id: str,
    agent_store: bool,  # the launcher hosts that store
    visible_devices: str | None,  # ``CUDA_VISIBLE_DEVICES`` of the launcher
) -> dict[str, str]:
    """Return the variables that torchrun 2.13 sets for a rank, with torchrun's values.

    ``ranks`` has ``rank, local_rank, world_size, local_world_size, node_rank, num_nodes, role_rank,
    role_world_size``.
    """
    values = {
        env.RANK: str(ranks["rank"]),
        env.LOCAL_RANK: str(ranks["local_rank"]),
        env.WORLD_SIZE: str(ranks["world_size"]),
        env.LOCAL_WORLD_SIZE: str(ranks["local_world_size"]),
        env.GROUP_RANK: str(ranks["node_rank"]),
        env.GROUP_WORLD_SIZE: str(ranks["num_nodes"]),
        env.ROLE_RANK: str(ranks["role_rank"]),
        env.ROLE_NAME: options.role,
        env.ROLE_WORLD_SIZE: str(ranks["role_world_size"]),
        env.MASTER_ADDR: master[0],
        env.MASTER_PORT: str(master[1]),
        env.RESTART_COUNT: str(restart_count),
        env.MAX_RESTARTS: str(options.max_restarts),
        env.RUN_ID: run_id,
        env.USE_AGENT_STORE: str(agent_store),
        env.SIGNALS: ",".join(options.signals_to_handle),
    }
    if options.virtual_local_rank:
        devices = visible_devices.split(",") if visible_devices else None
        local = ranks["local_rank"]
        values[env.CUDA_DEVICES] = devices[local].strip() if devices else str(local)
        values[env.LOCAL_RANK] = "0"
    return values
