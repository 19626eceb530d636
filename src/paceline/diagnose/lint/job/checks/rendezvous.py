"""Check the rendezvous of several nodes: number of nodes, node rank, address, endpoint, port."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch, nnodes
from paceline.diagnose.lint.job.shell.values import BATCH, NODE, Symbol, constant
from paceline.errors import Finding

_RANK = re.compile(r"\bSLURM_(NODEID|PROCID|LOCALID)\b")
_LOCAL_HOST = re.compile(r"localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1\]?")
_ITSELF = frozenset({"HOSTNAME", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "HOST"})
_WHOLE_LIST = frozenset({"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"})
_ALL_HOSTS = re.compile(r"scontrol\s+show\s+host(?:name)?s?\b[^|]*")
_DRAWN = re.compile(r"\bRANDOM\b|\$\((shuf|uuidgen|date)( -[in]\S* \S+| \+%[sN]+)*\)")
_SHARED_BY_NODES = ("rdzv_id", "rdzv_endpoint", "master_port", "main_process_port")
_OPTION = {
    "node_rank": {"accelerate launch": "--machine_rank", "fabric run": "--node-rank"},
    "addr": {"accelerate launch": "--main_process_ip", "fabric run": "--main-address"},
    "nnodes": {
        "accelerate launch": "--num_machines",
        "fabric run": "--num-nodes",
        "deepspeed": "--num_nodes",
    },
}
_USUAL = {"node_rank": "--node_rank", "addr": "--master_addr", "nnodes": "--nnodes"}


def option(launch: Launch, name: str) -> str:
    """Return a launcher's own name of an option that all launchers have."""
    return _OPTION[name].get(launch.kind, _USUAL[name])


def _texts(launch: Launch, name: str) -> tuple[str, ...]:
    plain = option(launch, name).lstrip("-").replace("-", "_")
    return "--" + plain, "--" + plain.replace("_", "-")


def together(case: Case, launch: Launch) -> int | None:
    """Return the number of nodes on which one srun starts the launcher, None if unknown or one."""
    step = launch.call.step
    if step is None or step.kind != "srun":
        return None
    nodes = case.shape(launch).nodes
    if nodes is None:
        # The number may come from `sbatch --nodes=4 job.sh`. Then the launcher's own number tells,
        # unless the step is one of several, each for a part of the nodes.
        node_range = nnodes(launch)
        restricted = {"ntasks", "nodes", "nodelist"} & set(step.options)
        if node_range is None or restricted or launch.call.looped:
            return None
        nodes = node_range[0]
    return nodes if nodes > 1 else None


def _supplied(launch: Launch) -> bool:
    """Return whether options may come from a file or an unknown variable."""
    return launch.vague or "config_file" in launch.options or "deepspeed_hostfile" in launch.options


def _takes_from_step(case: Case, launch: Launch) -> bool:
    """Return whether the launcher reads nodes, node rank and node 0 from the step."""
    uses_slurm = launch.kind == "paceline run" and not {"no_slurm", "standalone"} & set(
        launch.options
    )
    return uses_slurm and launch.call.step is not None and case.shape(launch).tasks_per_node == 1


def _ignores_node_rank(launch: Launch) -> bool:
    # A c10d rendezvous numbers the nodes itself; torchrun uses --node-rank for static ones only.
    backend = launch.says.get("backend", "static")
    return backend != "static" or "standalone" in launch.options


def node_count(case: Case) -> Iterator[Finding]:
    """Find launchers on several nodes whose number of nodes is missing or different."""
    for launch in case.training:
        # deepspeed takes the nodes from its hostfile, composer has a world size instead.
        if not launch.spawns or launch.kind in ("deepspeed", "composer"):
            continue
        step_nodes, node_range = together(case, launch), nnodes(launch)
        if step_nodes is None:
            yield from _alone(case, launch, node_range)
        elif "standalone" in launch.options or (
            "nnodes" not in launch.says and not _supplied(launch)
        ):
            yield from _no_node_count(case, launch, step_nodes)
        elif node_range is not None:
            least, most = node_range
            # With a launcher in each task, each counts as a node. A step may also be one of several
            # that make up the job's nodes together.
            tasks = step_nodes * (case.shape(launch).tasks_per_node or 1)
            if not least <= step_nodes <= most and least not in (case.job.nodes, tasks):
                yield _mismatch(case, launch, node_range, step_nodes)


def _no_node_count(case: Case, launch: Launch, step_nodes: int) -> Iterator[Finding]:
    if _takes_from_step(case, launch):
        return
    symbols = [symbol for arg in launch.call.args for symbol in case.symbols.of(arg.text)]
    # bash -c '... --part $SLURM_PROCID' shares out independent work, such as inference.
    if any(symbol.place == NODE and _RANK.search(symbol.text) for symbol in symbols):
        return
    name = option(launch, "nnodes")
    option_text = "--standalone" if "standalone" in launch.options else f"no {name}"
    yield case.finding(
        "torchrun-nnodes-missing",
        f"srun starts {launch.kind} on {step_nodes} nodes with {option_text}",
        line=case.line_of(launch, launch.kind.split()[0]),
        more=[case.directive_line("nodes")],
        why="each node runs the whole training on its own, and all write the same files",
        fix=f"{name}=$SLURM_NNODES, with a node rank or an endpoint",
        severity=case.severity(launch),
    )


def _alone(case: Case, launch: Launch, node_range: tuple[int, int] | None) -> Iterator[Finding]:
    """Find a launcher that expects several nodes and runs on one."""
    if node_range is None or node_range[0] < 2 or not _runs_on_one_node(case, launch):
        return
    if _may_be_one_of_several(case, launch):
        return
    if case.shape(launch).tasks != node_range[0]:
        yield _mismatch(case, launch, node_range, 1)
    elif not _has_own_gpu(case, launch):
        yield _several_on_one_node(case, launch, node_range[0])


def _has_own_gpu(case: Case, launch: Launch) -> bool:
    """Return whether each launcher of a step has a GPU of its own, or needs none."""
    options = launch.call.step.options if launch.call.step is not None else {}
    binding = ("gpus-per-task", "gpu-bind", "tres-per-task")
    is_bound = bool(case.job.directives.last(*binding)) or any(name in options for name in binding)
    is_told = "CUDA_VISIBLE_DEVICES" in launch.call.env
    return is_bound or is_told or not case.job.requests_gpus


def _runs_on_one_node(case: Case, launch: Launch) -> bool:
    """Return whether a launcher certainly runs on a single node."""
    job, step = case.job, launch.call.step
    if not job.has_nodes or job.mixed:
        return False
    if step is None:
        return job.nodes == 1
    return step.kind == "srun" and case.shape(launch).nodes == 1


def _may_be_one_of_several(case: Case, launch: Launch) -> bool:
    """Return whether other launchers, of this script or of another job, may join the launcher."""
    call = launch.call
    # `for host in ...; do srun -w $host torchrun ... & done` starts them one by one.
    if launch.vague or call.background or call.looped:
        return True
    if case.job.several_nodes and _several(case, launch):
        return True
    if any(other.name in ("ssh", "pdsh") for other in case.trace.calls):
        return True
    # Slurm's variables are those of this one node; another unknown rank may differ between jobs.
    symbols = case.symbols.of(launch.says.get("node_rank", "0"))
    return not all(_RANK.search(symbol.text) for symbol in symbols)


def _mismatch(case: Case, launch: Launch, node_range: tuple[int, int], nodes: int) -> Finding:
    name = option(launch, "nnodes")
    least, most = node_range
    count = str(least) if least == most else f"{least}:{most}"
    allocation = "the job" if nodes == case.job.nodes else "this step"
    return case.finding(
        "torchrun-nnodes-mismatch",
        f"{name} is {count}, {allocation} has {nodes} node" + ("s" if nodes > 1 else ""),
        line=case.line_of(launch, *_texts(launch, "nnodes")),
        more=[case.directive_line("nodes")],
        why="the launcher waits for nodes that never come, or turns nodes away",
        fix=f"{name}=$SLURM_NNODES",
        severity=case.severity(launch),
    )


def _several_on_one_node(case: Case, launch: Launch, tasks: int) -> Finding:
    name = option(launch, "nnodes")
    return case.finding(
        "torchrun-nnodes-mismatch",
        f"srun starts {tasks} launchers on 1 node, and each takes itself for a node",
        line=case.line_of(launch, *_texts(launch, "nnodes")),
        more=[case.directive_line("ntasks-per-node", "ntasks")],
        why="the processes of each begin with local rank 0: several take the same GPU",
        fix=f"#SBATCH --ntasks-per-node=1, {name}=1 and --nproc_per_node={tasks}",
        severity=case.severity(launch),
    )


def node_rank(case: Case) -> Iterator[Finding]:
    """Find missing node ranks, and node ranks that are the same on all nodes."""
    for launch in case.training:
        step_nodes = together(case, launch)
        if step_nodes is None or not launch.spawns or _ignores_node_rank(launch):
            continue
        if launch.kind == "deepspeed":
            continue  # it gives its nodes numbers by the hostfile
        value = launch.says.get("node_rank")
        if value is None:
            yield from _no_rank(case, launch, step_nodes)
        elif symbol := same_on_all(case, launch, value):
            yield _on_batch_host(case, launch, symbol, step_nodes)
        elif launch.call.looped or _several(case, launch):
            continue  # other starts of the launcher may have the other numbers
        elif _one_number(case, launch, value):
            yield _all_the_same(case, launch, value, step_nodes)


def _one_number(case: Case, launch: Launch, value: str) -> bool:
    """Return whether a value is the same on all nodes."""
    # SLURM_LOCALID counts the tasks of a node: with one on each it is 0 everywhere.
    symbol = case.symbols.only(value)
    if symbol is not None:
        return symbol.name == "SLURM_LOCALID" and case.shape(launch).tasks_per_node == 1
    return constant(value) and value.isdigit()


def _several(case: Case, launch: Launch) -> bool:
    """Return whether the script starts the same launcher several times."""
    return sum(1 for other in case.training if other.kind == launch.kind) > 1


def _no_rank(case: Case, launch: Launch, step_nodes: int) -> Iterator[Finding]:
    # Without a number of nodes each node runs alone, and torchrun-nnodes-missing says so.
    is_composer = launch.kind == "composer"
    if _supplied(launch) or ("nnodes" not in launch.says and not is_composer):
        return
    if _takes_from_step(case, launch) or (is_composer and "NODE_RANK" in launch.call.env):
        return
    name = option(launch, "node_rank")
    why = "each node takes itself for node 0 and waits for the others"
    if "endpoint" in launch.says:
        why += " (without --rdzv_backend=c10d the endpoint alone does not number the nodes)"
    fix = (
        f"srun bash -c '... {name}=$SLURM_NODEID ...'  (single quotes: each node fills in its own)"
    )
    if launch.torchrun_like:
        fix = "--rdzv_backend=c10d with --rdzv_endpoint=HOST:PORT needs no rank"
    yield case.finding(
        "node-rank-missing",
        f"srun starts {launch.kind} on {step_nodes} nodes with a static rendezvous and no {name}",
        line=case.line_of(launch, *_texts(launch, "nnodes"), launch.kind.split()[0]),
        more=[case.directive_line("nodes")],
        why=why,
        fix=fix,
        severity=case.severity(launch),
    )


def same_on_all(case: Case, launch: Launch, value: str) -> Symbol | None:
    """Return the part of a rank that the batch script fills in, before srun; None without one."""
    for symbol in case.symbols.of(value):
        if symbol.place == BATCH and _RANK.search(symbol.text):
            return symbol
    return None


def _on_batch_host(case: Case, launch: Launch, symbol: Symbol, step_nodes: int) -> Finding:
    name = option(launch, "node_rank")
    return case.finding(
        "node-rank-on-batch-host",
        f"{name} {symbol.text} is filled in by the batch script, before srun: each of the"
        f" {step_nodes} nodes gets 0",
        line=case.line_of(launch, *_texts(launch, "node_rank"), symbol.text),
        why="each node takes itself for node 0; the job waits for ranks that never come",
        fix=(
            f"srun bash -c '{launch.kind} {name} $SLURM_NODEID ...'  (single quotes; export what is"
            " used inside)"
        ),
        severity=case.severity(launch),
    )


def _all_the_same(case: Case, launch: Launch, value: str, step_nodes: int) -> Finding:
    name = option(launch, "node_rank")
    return case.finding(
        "duplicate-ranks",
        f"{name} is {case.show(value)}, the same on all {step_nodes} nodes",
        line=case.line_of(launch, *_texts(launch, "node_rank")),
        why="each node takes itself for the same one; the job waits for ranks that never come",
        fix=(
            f"srun bash -c '{launch.kind} {name} $SLURM_NODEID ...'  (single quotes; export what is"
            " used inside)"
        ),
        severity=case.severity(launch),
    )


def endpoint_or_address(case: Case) -> Iterator[Finding]:
    """Find launchers on several nodes without an address or endpoint."""
    for launch in case.training:
        step_nodes = together(case, launch)
        if step_nodes is None or not _needs_address(case, launch):
            continue
        backend = launch.says.get("backend", "static")
        if launch.torchrun_like and backend == "c10d" and "endpoint" not in launch.says:
            yield _no_endpoint(case, launch, step_nodes)
        elif backend == "static" and not {"addr", "endpoint"} & set(launch.says):
            yield from _no_address(case, launch, step_nodes)


def _needs_address(case: Case, launch: Launch) -> bool:
    """Return whether only the launcher's options can name the place where its nodes meet."""
    if not launch.spawns or launch.kind == "deepspeed" or _supplied(launch):
        return False
    if _takes_from_step(case, launch) or "standalone" in launch.options:
        return False
    # Without a number of nodes each node runs alone, which another check reports.
    return "nnodes" in launch.says or launch.kind == "composer"


def _no_endpoint(case: Case, launch: Launch, step_nodes: int) -> Finding:
    note = ": --master_addr means nothing to it" if "addr" in launch.says else ""
    return case.finding(
        "c10d-without-rdzv-endpoint",
        f"--rdzv_backend=c10d on {step_nodes} nodes without --rdzv_endpoint{note}",
        line=case.line_of(launch, "rdzv_backend", "rdzv-backend"),
        why="each node waits at its own localhost until the rendezvous times out",
        fix="--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT in place of --master_addr and --master_port",
        severity=case.severity(launch),
    )


def _no_address(case: Case, launch: Launch, step_nodes: int) -> Iterator[Finding]:
    setting = case.assigned("MASTER_ADDR")
    # composer reads the variable. torchrun reads PET_MASTER_ADDR, and sets MASTER_ADDR for its
    # ranks from --master_addr, by default 127.0.0.1.
    if launch.kind == "composer" and setting is not None:
        return
    name = option(launch, "addr")
    set_here = f"MASTER_ADDR is set on line {setting.line}, but " if setting else ""
    yield case.finding(
        "master-addr-not-passed",
        f"{set_here}{launch.kind} on {step_nodes} nodes gets no {name}"
        + (" and does not read the variable" if setting else ""),
        line=case.line_of(launch, *_texts(launch, "nnodes"), launch.kind.split()[0]),
        more=[setting.line] if setting else [],
        why="without it every node looks for the master at 127.0.0.1",
        fix=(
            f"{name}=$MASTER_ADDR"
            if setting
            else f"{name}=$(hostname), filled in by the batch script"
        ),
        severity=case.severity(launch),
    )


def master_address(case: Case) -> Iterator[Finding]:
    """Find master addresses that do not name the first node."""
    for launch in case.training:
        step_nodes = together(case, launch)
        if step_nodes is None or launch.call.maybe or launch.kind == "deepspeed":
            continue
        for host, texts in _hosts(launch):
            why = _wrong(case, host)
            if why:
                yield case.finding(
                    "master-addr-wrong",
                    f"the master address {case.show(host)} {why}",
                    line=case.line_of(launch, *texts, "MASTER_ADDR="),
                    why=f"the {step_nodes} nodes do not meet",
                    fix=(
                        "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1), in"
                        " the batch script"
                    ),
                    severity=case.severity(launch),
                )
                break


def _hosts(launch: Launch) -> Iterator[tuple[str, tuple[str, ...]]]:
    # A c10d rendezvous meets at the endpoint, and --master_addr has no effect on it.
    if _ignores_node_rank(launch) and launch.spawns:
        endpoint = launch.says.get("endpoint")
        if endpoint is not None:
            yield re.sub(r":[^:]*$", "", endpoint), ("rdzv_endpoint", "rdzv-endpoint")
        return
    if "addr" in launch.says:
        yield launch.says["addr"], _texts(launch, "addr")
    exported = launch.call.env.get("MASTER_ADDR")
    # A launcher replaces the variable in its processes; without one the script reads it.
    if not launch.spawns and isinstance(exported, str):
        yield exported, ("MASTER_ADDR=",)


def _wrong(case: Case, host: str) -> str:
    if _LOCAL_HOST.fullmatch(host):
        return "means each node itself"
    symbol = case.symbols.only(host)
    if symbol is None:
        return ""
    # In the batch script `hostname` is right: the batch script runs on the first node.
    is_own_name = symbol.name in _ITSELF or re.fullmatch(r"hostname(\s+-\S+)*", symbol.command)
    if symbol.place == NODE and is_own_name:
        return "is filled in on each node: each takes itself for the master"
    if symbol.name in _WHOLE_LIST:
        return "is the list of all nodes, no host"
    if symbol.place == BATCH and _ALL_HOSTS.fullmatch(symbol.command):
        return "is all nodes, one to a line, no host"
    return ""


def drawn_on_each_node(case: Case) -> Iterator[Finding]:
    """Find rendezvous ids and ports that each node draws for itself."""
    for launch in case.training:
        step_nodes = together(case, launch)
        # Launchers without a number of nodes, or that set RANDOM, may be independent on purpose.
        if not step_nodes or launch.says.get("nnodes", "1") == "1" or case.assigned("RANDOM"):
            continue
        values = "".join(launch.options.get(name, "") for name in _SHARED_BY_NODES)
        on_node = [symbol.text for symbol in case.symbols.of(values) if symbol.place == NODE]
        drawn = next(filter(_DRAWN.search, on_node), "")
        if drawn:
            yield case.finding(
                "rendezvous-differs-by-node",
                f"{drawn} is filled in on each of the {step_nodes} nodes: each gets another",
                line=case.line_of(launch, drawn),
                why="nodes with another id or port do not meet, and wait until the time-out",
                fix="--rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$MASTER_ADDR:29500",
                severity=case.severity(launch),
            )


def fixed_port(case: Case) -> Iterator[Finding]:
    """Find constant ports, on which two jobs on one node collide."""
    # A node of one's own has no second job whose port could collide.
    if case.job.exclusive:
        return
    for launch in case.training:
        port, texts = _port(case, launch)
        if port:
            yield case.finding(
                "fixed-port",
                f"the port is always {port}",
                line=case.line_of(launch, *texts),
                why="a second job on the same node fails with: address already in use",
                fix="MASTER_PORT=$((20000 + SLURM_JOB_ID % 30000))",
                severity="hint",
            )
            return


def _port(case: Case, launch: Launch) -> tuple[str, tuple[str, ...]]:
    port = launch.says.get("port", "")
    texts: tuple[str, ...] = ("_port", "-port")
    if "endpoint" in launch.says:
        _, _, port = launch.says["endpoint"].rpartition(":")
        texts = ("endpoint",)
    elif not launch.spawns:
        exported = launch.call.env.get("MASTER_PORT", "")
        port = exported if isinstance(exported, str) else ""
    setting = case.assigned("MASTER_PORT")
    if setting is not None and setting.value == port:
        texts = ("MASTER_PORT=",)
    return (port, texts) if port.isdigit() and port != "0" else ("", ())


CHECKS = (
    node_count,
    node_rank,
    endpoint_or_address,
    master_address,
    drawn_on_each_node,
    fixed_port,
)
