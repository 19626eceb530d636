"""Check the environment of programs: Python environments, networks, variables of NCCL and torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch
from paceline.diagnose.lint.job.shell.trace import CommandCall
from paceline.errors import Finding

# Finding the closest known name of an unknown variable takes time.
MOST_SETTINGS = 100

_NODE_LOCAL = re.compile(
    r"(\$\{?(SLURM_TMPDIR|TMPDIR|LOCAL_SCRATCH|LOCALSCRATCH|TMP_LOCAL|LSCRATCH|JOBTMP"
    r"|SLURM_JOB_TMP)"
    r"\b|/tmp\b|/dev/shm\b|/local(_?scratch)?\b|/scratch/local\b)"
)
_CONDA_READY = re.compile(
    r"hook|conda\.sh|mamba\.sh|bashrc|profile|\bsource\b|^\s*\.\s|conda init"
    r"|\b(module|ml)\b.*(conda|mamba|forge|python)",
    re.I,
)
# Tools that install before they run: what installs beforehand, and what switches it off.
_SYNCS = {
    "uv": (
        re.compile(r"\buv\s+(sync|run|pip)\b"),
        re.compile(r"--(no-sync|isolated|no-project)\b"),
    ),
    "pixi": (re.compile(r"\bpixi\s+(install|run)\b"), re.compile(r"--(no-install|as-is)\b")),
}
_BEFOREHAND = {
    "uv": "uv sync  (before srun), and srun ... uv run --no-sync ...",
    "pixi": "pixi install  (before srun), and srun ... pixi run --as-is ...",
}
# NCCL and gloo take a name as a prefix, so that `ib` or `eth` fits each node; with a number, or
# behind `=`, it is one interface.
_INTERFACE = re.compile(r"=?[a-z]+[a-z0-9]*\d[a-z0-9.]*", re.ASCII)
_ONLY_TUNES = re.compile(r"CHANNELS|RINGS|THREADS|BUFF|CHUNK|THRESHOLD|CTAS")


def environment_on_one_node(case: Case) -> Iterator[Finding]:
    """Find Python environments that are created in a node-local folder, on the first node only."""
    # On one node, or without srun, all programs run where the environment is.
    if not case.job.several_nodes or not case.spreads:
        return
    for call in case.trace.calls:
        folder = _created_folder(case, call) if call.step is None else ""
        if not folder:
            continue
        yield case.finding(
            "env-on-one-node-only",
            f"the environment {folder} is made on the first of {case.job.nodes} nodes only",
            line=call.line,
            more=[case.training[0].call.line] if case.training else [],
            why=(
                "the folder is local to each node: tasks elsewhere find no interpreter or no"
                " packages"
            ),
            fix=(
                "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 bash -c"
                f" '{case.text(call.line)} ...'"
            ),
        )
        return


def _created_folder(case: Case, call: CommandCall) -> str:
    """Return the node-local folder in which a command creates an environment, or empty."""
    words = [case.show(arg.text) for arg in call.args]
    # `--prefix=$TMPDIR/env` has the folder behind the equals sign
    local = (word for word in words[1:] if _NODE_LOCAL.match(word.partition("=")[2] or word))
    creates = "venv" in words[1:3] or "create" in words[1:2]
    has_own_command = call.name in ("virtualenv", "conda-unpack")
    # An environment that conda-pack has packed is unpacked by tar.
    unpacks = call.name == "tar" and any("env" in word for word in words[1:])
    return next(local, "") if creates or has_own_command or unpacks else ""


def environment_synced(case: Case) -> Iterator[Finding]:
    """Find ``uv run`` and ``pixi run`` in tasks of several nodes, which update one environment."""
    # UV_PROJECT_ENVIRONMENT or the like may put the environment on a disk of each node.
    if _NODE_LOCAL.search(case.code):
        return
    for launch in case.launches:
        nodes = case.shape(launch).nodes
        tool = _syncing_tool(case, launch)
        if launch.call.step is None or nodes is None or nodes < 2 or not tool:
            continue
        yield case.finding(
            "env-synced-by-every-task",
            f"{tool} run brings the environment up to date in the tasks of {nodes} nodes at the"
            " same time",
            line=case.line_of(launch, f"{tool} run"),
            more=[case.directive_line("nodes")],
            why=(
                "they install into one folder, and locks are not reliable on shared file systems:"
                " packages go missing"
            ),
            fix=_BEFOREHAND[tool],
            severity="warning",
        )
        return


def _syncing_tool(case: Case, launch: Launch) -> str:
    """Return the wrapper of a launch that installs before it runs the program, or empty."""
    call = launch.call
    tool = next((name for name in call.wrappers if name in _SYNCS), "")
    # uv reads this variable as its option --no-sync.
    if not tool or "UV_NO_SYNC" in call.env:
        return ""
    installs, switch_off = _SYNCS[tool]
    command = " ".join(case.text(line) for line in range(call.line, call.end_line + 1))
    beforehand = any(installs.search(line) for line in case.code_before(call.line))
    return "" if beforehand or switch_off.search(command) else tool


def conda_activate(case: Case) -> Iterator[Finding]:
    """Find ``conda activate`` in a batch shell that has not been set up for it."""
    shebang = case.lines[0] if case.lines else ""
    # A login or interactive shell reads the files that `conda init` has changed.
    if re.match(r"#!.*\s-\w*[li]", shebang) or "--login" in shebang:
        return
    for call in case.trace.calls:
        if call.name not in ("conda", "mamba", "micromamba") or call.step is not None:
            continue
        activates = len(call.args) > 1 and call.args[1].text == "activate"
        if activates and not any(map(_CONDA_READY.search, case.code_before(call.line))):
            yield case.finding(
                "conda-activate-without-hook",
                f"{call.name} activate in a shell that {call.name} has not been set up in",
                line=call.line,
                why=(
                    "a batch shell does not read .bashrc: the activation fails and another Python"
                    " runs"
                ),
                fix='eval "$(conda shell.bash hook)"  before it',
                severity="hint",
            )
            return


def network_settings(case: Case) -> Iterator[Finding]:
    """Find settings for one kind of machine: an interface, InfiniBand disabled, fixed GPUs."""
    yield from _named_interface(case)
    yield from _infiniband_disabled(case)
    yield from _fixed_gpus(case)


def _named_interface(case: Case) -> Iterator[Finding]:
    if not case.job.several_nodes:
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        setting = case.exported(name)
        interface = setting.value if setting else None
        if setting is None or not isinstance(interface, str) or not _INTERFACE.fullmatch(interface):
            continue
        prefix = re.split(r"[0-9]", interface.lstrip("="))[0] or "^lo,docker"
        yield case.finding(
            "hard-coded-interface",
            f"{name} names one interface, {interface}",
            line=setting.line,
            why="a node where it has another name finds no interface",
            fix=f"export {name}={prefix}  (a prefix)",
            severity="hint",
        )
        return


def _infiniband_disabled(case: Case) -> Iterator[Finding]:
    setting = case.exported("NCCL_IB_DISABLE")
    # Within a node NCCL uses NVLink, PCIe or shared memory.
    if setting and setting.value == "1" and case.job.nodes != 1:
        yield case.finding(
            "infiniband-disabled",
            "NCCL_IB_DISABLE=1 switches InfiniBand and RoCE off",
            line=setting.line,
            why=(
                "between nodes NCCL uses TCP then, which is several times slower where there is"
                " InfiniBand"
            ),
            fix="remove the line, unless InfiniBand is known to fail here",
            severity="hint",
        )


def _fixed_gpus(case: Case) -> Iterator[Finding]:
    setting = case.exported("CUDA_VISIBLE_DEVICES")
    gpus = setting.value if setting else None
    # Without Slurm somebody has to choose the GPUs.
    if setting is None or not isinstance(gpus, str) or not case.job.directives.any:
        return
    # UUIDs name GPUs of one machine, and a variable may come from Slurm: only numbers are reported.
    if re.fullmatch(r"\d+(,\d+)*", gpus):
        yield case.finding(
            "cuda-visible-devices-hard-coded",
            f"CUDA_VISIBLE_DEVICES={gpus} is set by hand",
            line=setting.line,
            why=(
                "Slurm sets it to the GPUs of the job; another list may name GPUs that the job does"
                " not have"
            ),
            fix="remove the line",
            severity="hint",
        )


def variables(case: Case) -> Iterator[Finding]:
    """Find variables of NCCL and torch that are unknown, renamed, or contradict each other."""
    exported = {s.name: s for s in case.trace.settings if s.exported and isinstance(s.value, str)}
    if not exported:
        return
    # imported here: its tables take a third of the time of a job without variables
    from paceline.diagnose.variables import judge_settings

    selection = dict(islice(exported.items(), MOST_SETTINGS))
    # an unknown value is shown as it is written, with its dollar, and then only the name is checked
    settings = {name: case.show(str(setting.value)) for name, setting in selection.items()}
    places = {name: case.place(setting.line) for name, setting in selection.items()}
    yield from of_consequence(judge_settings(settings, where=places, num_nodes=case.job.nodes))


def of_consequence(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings about variables on which a job depends."""
    for finding in findings:
        # doctor reports old names that still work and unknown names that only tune: the job does
        # not depend on them. A value that is read as another one is reported here too.
        names = {line.partition("=")[0] for line in finding.evidence}
        tunes = finding.name == "variable-unknown" and any(
            _ONLY_TUNES.search(name) and f"{name}=" not in finding.what for name in names
        )
        if finding.severity != "hint" and not tunes:
            yield finding


CHECKS = (environment_on_one_node, environment_synced, conda_activate, network_settings, variables)
