"""Check for harmful settings: those that work, but cost stability, speed, correctness or
diagnosability.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.diagnose.variables.given import Settings
from paceline.diagnose.variables.lists import ALGORITHMS, STRICT_SINCE, parse_choices
from paceline.diagnose.variables.torch_pairs import BLOCKING, BUFFER, HANDLING
from paceline.errors import Finding

# From the EFA cheat sheet of AWS: name, the recommended value, and why it is no longer needed.
EFA = {
    "FI_EFA_USE_DEVICE_RDMA": ("1", "is for libfabric before 1.18 or aws-ofi-nccl before 1.7"),
    "FI_EFA_FORK_SAFE": ("1", "has no effect with Linux 5.15 or newer"),
    "FI_EFA_ENABLE_SHM_TRANSFER": ("1", "is the default"),
    "FI_EFA_SET_CUDA_SYNC_MEMOPS": ("0", "is for efa-installer before 1.29.1"),
}
# NCCL's levelsOldToNew, in whose order NVL does not occur; any greater number is SYS.
OLD_LEVELS = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS"}


def judge_harm(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about settings that do more harm than good."""
    for check in _CHECKS:
        yield from check(settings)


def _no_ring(settings: Settings) -> Iterator[Finding]:
    strict = settings.at_least("nccl", STRICT_SINCE)
    choices = {choice.function: choice for choice in parse_choices(settings.text("NCCL_ALGO"))}
    # Broadcast and reduce have Ring alone; an entry for the function wins over the one for all.
    choice = choices.get("broadcast", choices.get(""))
    if choice is None or strict is False or not choice.names:
        return
    allows_ring = ("ring" in choice.names) != choice.excluded
    has_unknown_names = not set(choice.names) <= set(ALGORITHMS)  # which have their own finding
    if allows_ring or has_unknown_names:
        return
    yield settings.harmful(
        ("NCCL_ALGO",),
        f"NCCL_ALGO={settings.text('NCCL_ALGO')} leaves no algorithm for broadcast and reduce,"
        " which have Ring only",
        why=(
            f"since NCCL {STRICT_SINCE} there is no fall-back, and DDP's first broadcast fails: no"
            " algorithm available"
        ),
        fix=(
            "unset NCCL_ALGO, or NCCL_ALGO=allreduce:tree for one function alone (NCCL 2.24 or"
            " newer)"
        ),
        severity="error" if strict else "warning",
    )


def _forced_ll128(settings: Settings) -> Iterator[Finding]:
    value = settings.text("NCCL_PROTO")
    for choice in parse_choices(value):
        # ``^LL`` too: a list with an exclusion allows all others, and what a list allows NCCL takes
        # without its own check of the hardware.
        if choice.names and ("ll128" in choice.names) != choice.excluded:
            yield settings.harmful(
                ("NCCL_PROTO",),
                f"NCCL_PROTO={value} forces LL128 on, also where the hardware does not support it",
                why=(
                    "then data can be silently corrupted; unset, NCCL uses LL128 only where it is"
                    " safe"
                ),
                fix=(
                    "unset NCCL_PROTO"
                    if not choice.excluded
                    else "NCCL_PROTO=^LL,LL128, or unset it"
                ),
            )
            return


def _loopback(settings: Settings) -> Iterator[Finding]:
    nodes = (
        settings.num_nodes
        or settings.number("SLURM_JOB_NUM_NODES")
        or settings.number("SLURM_NNODES")
        or 1
    )
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if nodes > 1 and settings.text(name).lstrip("=") == "lo":
            yield settings.harmful(
                (name,),
                f"{name}={settings.text(name)} is the loopback interface, and the job has {nodes}"
                " nodes",
                why="every node talks to itself: ranks of other nodes are never reached",
                fix=(
                    f"unset {name}, or the interface between the nodes: ip route get"
                    " ADDRESS_OF_ANOTHER_NODE"
                ),
                severity="error",
            )


def _through_the_network(settings: Settings) -> Iterator[Finding]:
    if settings.is_one("NCCL_P2P_DISABLE") and settings.is_one("NCCL_SHM_DISABLE"):
        yield settings.harmful(
            ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
            "without peer-to-peer and without shared memory GPUs of one node talk through the"
            " network",
            why="that is the slowest way, meant for finding out which of the others is broken",
            fix="unset NCCL_SHM_DISABLE once peer-to-peer is known to be at fault",
        )


def _blocking(settings: Settings) -> Iterator[Finding]:
    name = next((name for name in BLOCKING if settings.is_true(name)), None)
    if name and not any(settings.has(other) for other in HANDLING):
        yield settings.harmful(
            (name,),
            f"{name}=1 makes the CPU wait for each collective and starts no watchdog thread",
            why=(
                "it costs speed, and after a timeout no flight recorder shows which rank was"
                " missing"
            ),
            fix=f"unset {name}: a timeout ends the job without it too",
        )


def _no_handling(settings: Settings) -> Iterator[Finding]:
    # With blocking waits the error is raised in wait(), and the handling is rightly off.
    name = next((name for name in HANDLING if settings.number(name) == 0), None)
    if name and not settings.is_true(*BLOCKING):
        yield settings.harmful(
            (name,),
            f"{name}=0: a collective that times out does not end the program",
            why="the job hangs until its time limit",
            fix=f"unset {name}",
        )


def _no_flight_recorder(settings: Settings) -> Iterator[Finding]:
    name = next((name for name in BUFFER if settings.number(name) == 0), None)
    if name:
        yield settings.harmful(
            (name,),
            f"{name}=0 switches the flight recorder off",
            why="after a timeout nothing shows which rank was missing in which collective",
            fix=f"unset {name} (2000 entries, a few MB)",
        )


def _launch_blocking(settings: Settings) -> Iterator[Finding]:
    if settings.text("CUDA_LAUNCH_BLOCKING") == "1":
        yield settings.harmful(
            ("CUDA_LAUNCH_BLOCKING",),
            "CUDA_LAUNCH_BLOCKING=1 waits for each kernel",
            why=(
                "for finding the line of an error only: nothing overlaps, and several streams can"
                " wait for each other"
            ),
            fix="unset CUDA_LAUNCH_BLOCKING in runs that count",
        )


def _for_debugging(settings: Settings) -> Iterator[Finding]:
    effects = {}
    if settings.text("TORCH_DISTRIBUTED_DEBUG").upper() == "DETAIL":
        effects["TORCH_DISTRIBUTED_DEBUG"] = "all ranks compare each collective before it"
    has_lines = settings.text("NCCL_DEBUG").upper() in ("INFO", "TRACE")
    if has_lines and settings.text("NCCL_DEBUG_SUBSYS").upper() == "ALL":
        effects["NCCL_DEBUG_SUBSYS"] = "NCCL writes a line for each collective of each rank"
    if effects:
        yield settings.harmful(
            effects,
            f"{' and '.join(effects)}: for a run that looks for a fault, as each step is slower",
            why="; ".join(effects.values()),
            fix=f"unset {' '.join(effects)} in runs that count",
            severity="warning",
        )


def _old_levels(settings: Settings) -> Iterator[Finding]:
    for name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        text = settings.text(name)
        if text.isdecimal():
            yield settings.harmful(
                (name,),
                f"{name}={text}: levels by number are old, and their meaning has changed between"
                " versions",
                why=f"{text} is read as {OLD_LEVELS.get(text, 'SYS')}; NVL has no number",
                fix=f"{name}={OLD_LEVELS.get(text, 'SYS')}",
            )


def _efa(settings: Settings) -> Iterator[Finding]:
    old = [name for name, (value, _) in EFA.items() if settings.text(name) == value]
    reasons = [f"{name} {EFA[name][1]}" for name in old]
    uses_efa = settings.text("FI_PROVIDER").lower() == "efa"
    if uses_efa and settings.text("NCCL_PROTO").lower() == "simple":
        old.append("NCCL_PROTO")
        reasons.append(
            "NCCL_PROTO=simple is for aws-ofi-nccl 1.5 or older, and slows small messages"
        )
    if old:
        yield settings.harmful(
            old,
            f"settings that newer software for EFA does not need: {', '.join(old)}",
            why="; ".join(reasons),
            fix=f"unset {' '.join(old)}, unless the software is that old",
        )


def _fork_safe(settings: Settings) -> Iterator[Finding]:
    if settings.has("RDMAV_FORK_SAFE"):
        yield settings.harmful(
            ("RDMAV_FORK_SAFE",),
            "RDMAV_FORK_SAFE changes how memory is shared with child processes",
            why="on newer kernels it breaks things; AWS says: do not use it with EFA",
            fix="unset RDMAV_FORK_SAFE",
        )


def _needless(settings: Settings) -> Iterator[Finding]:
    name = "TORCH_NCCL_AVOID_RECORD_STREAMS"
    if settings.is_true(name) and settings.at_least("torch", "2.8"):
        yield settings.harmful(
            (name,),
            f"{name}=1 is the default since torch 2.8",
            why="torch warns of it in each rank",
            fix=f"unset {name}",
        )
    if settings.text("NCCL_LAUNCH_MODE").upper() == "GROUP":
        yield settings.harmful(
            ("NCCL_LAUNCH_MODE",),
            "NCCL_LAUNCH_MODE=GROUP is deprecated since NCCL 2.9",
            why="it is for processes with several GPUs, and slows the others",
            fix="unset NCCL_LAUNCH_MODE",
        )


def _shared_dumps(settings: Settings) -> Iterator[Finding]:
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        path = settings.text(name)
        # A digit may be a job's id, as in /home/me/4711/trace_, and /tmp is one node's own.
        if path.startswith(("/home", "~")) and not any(letter.isdecimal() for letter in path):
            yield settings.harmful(
                (name,),
                f"{name}={path} is the same for all jobs",
                why="the rank is added and nothing else: a job overwrites the dumps of another",
                fix=f"{name}={path}$SLURM_JOB_ID-",
            )


_CHECKS = (
    _no_ring,
    _forced_ll128,
    _loopback,
    _through_the_network,
    _blocking,
    _no_handling,
    _no_flight_recorder,
    _launch_blocking,
    _for_debugging,
    _old_levels,
    _efa,
    _fork_safe,
    _needless,
    _shared_dumps,
)
