"""Check the shell code of a job script: line continuations, quotes, unset variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch
from paceline.diagnose.lint.job.sbatch_options import names
from paceline.diagnose.lint.job.shell.trace import CommandCall
from paceline.diagnose.lint.job.shell.values import NODE, Symbol, constant
from paceline.errors import Finding, closest

_BROKEN = re.compile(r"\\(?:\s+(#).*)?$")  # a line of the case has no blanks at its end
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")
_OPTION_ALONE = re.compile(r"--?[A-Za-z]")
_SHELLS_OWN = names("HOSTNAME HOST HOME USER PWD RANDOM SECONDS UID SLURMD_NODENAME")
_EXPORTS_ALL = re.compile(r"\bset\s+-\w*a|allexport|--export\b")
_FOR_PROGRAMS = re.compile(
    r"MASTER_(ADDR|PORT)|(LOCAL_)?(RANK|WORLD_SIZE)|OMP_NUM_THREADS|(NCCL|GLOO)_\w+"
)
# Options of the rendezvous, and their usual values.
_ADDRESS = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
_PORT = "$((20000 + SLURM_JOB_ID % 30000))"
_RENDEZVOUS = {
    "master_addr": _ADDRESS,
    "main_process_ip": _ADDRESS,
    "main_address": _ADDRESS,
    "rdzv_endpoint": _ADDRESS,
    "master_port": _PORT,
    "main_process_port": _PORT,
    "nnodes": "$SLURM_NNODES",
    "num_machines": "$SLURM_NNODES",
    "nproc_per_node": "$SLURM_GPUS_ON_NODE",
}
# Slurm's variables that are only set with an option -> that option, and what to use instead.
_ONLY_WITH = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node", "$SLURM_GPUS_ON_NODE"),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task", "$SLURM_GPUS_ON_NODE"),
    "SLURM_GPUS": ("gpus", "$((SLURM_NNODES * SLURM_GPUS_ON_NODE))"),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node", "#SBATCH --ntasks-per-node=1"),
}
# Slurm's variables without their prefix, for the search for the one that a misspelt name means.
_SLURM = names(
    "NNODES JOB_NUM_NODES NODEID PROCID LOCALID NTASKS NPROCS NTASKS_PER_NODE CPUS_PER_TASK"
    " CPUS_ON_NODE GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_TASK GPUS JOB_ID JOBID JOB_NAME JOB_NODELIST"
    " NODELIST STEP_NODELIST STEP_NUM_NODES STEP_NUM_TASKS STEP_TASKS_PER_NODE TASKS_PER_NODE"
    " JOB_CPUS_PER_NODE JOB_GPUS STEP_GPUS SUBMIT_DIR SUBMIT_HOST TMPDIR ARRAY_JOB_ID ARRAY_TASK_ID"
    " ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX ARRAY_TASK_STEP MEM_PER_NODE MEM_PER_CPU"
    " MEM_PER_GPU JOB_PARTITION JOB_ACCOUNT JOB_QOS JOB_END_TIME JOB_START_TIME LAUNCH_NODE_IPADDR"
    " RESTART_COUNT CLUSTER_NAME TASK_PID GTIDS NODE_ALIASES TOPOLOGY_ADDR CONF JOB_USER JOB_UID"
    " STEP_ID STEPID SRUN_COMM_HOST HET_SIZE CPUS_PER_GPU DISTRIBUTION EXPORT_ENV CONSTRAINT"
    " JOB_RESERVATION JOB_DEPENDENCY NTASKS_PER_SOCKET NTASKS_PER_CORE NTASKS_PER_GPU"
    " THREADS_PER_CORE JOB_CONSTRAINTS TRES_PER_TASK MPI_TYPE "
)


def broken_line_continuation(case: Case) -> Iterator[Finding]:
    """Find backslashes that are not the last character of a line, and options run as commands."""
    lines = dict.fromkeys([*case.script.broken, *case.trace.broken])
    broken = [line for line in lines if _BROKEN.search(case.text(line))]
    yield from (_text_after_backslash(case, line) for line in broken)
    # No program is called --nnodes=2: the command of the line above ended too early.
    reported = set(broken)
    for before, call in pairwise(case.trace.calls):
        if not _OPTION_ALONE.match(call.args[0].text) or before.line >= call.line:
            continue
        if call.line - 1 not in reported:
            reported.add(call.line)
            yield _option_as_command(case, before, call)


def _text_after_backslash(case: Case, line: int) -> Finding:
    match = _BROKEN.search(case.text(line))
    is_comment = match is not None and match[1] is not None
    following = case.text(line + 1)
    what, fix = ("blanks follow", "remove the blanks behind the backslash")
    if is_comment:
        what, fix = ("a comment follows", "move the comment above the command")
    return case.finding(
        "broken-line-continuation",
        f"{what} the backslash at the end of the line",
        line=line,
        why=(
            "the command ends here and gets a blank as its last argument; the next line runs as its"
            " own command"
        ),
        fix=fix,
        severity="error" if following and not following.startswith("#") else "warning",
    )


def _option_as_command(case: Case, before: CommandCall, call: CommandCall) -> Finding:
    return case.finding(
        "broken-line-continuation",
        f"{case.show(call.args[0].text)} runs as its own command",
        line=call.line,
        more=range(max(before.line, call.line - 2), call.line),
        why=(
            "the command before it ended early: a backslash is missing, or a comment or blank line"
            " stands between"
        ),
        fix="end the line before it with a backslash, and move comments out of the command",
    )


def unset_variable(case: Case) -> Iterator[Finding]:
    """Find variables in a launch that are not set there."""
    reported: set[str] = set()
    for launch in case.launches:
        options = [*launch.options.items()]
        if launch.call.step is not None:
            options += [*launch.call.step.options.items()]
        for option, value in options:
            for symbol in case.symbols.of(value):
                # ${NAME:-2} has a default, ${NAME:?} stops the script by itself.
                if symbol.name in reported or not symbol.name or symbol.text.startswith("${"):
                    continue
                findings = list(_unset(case, launch, symbol, option))
                reported |= {symbol.name} if findings else set()
                yield from findings


def node_count_unset(case: Case) -> Iterator[Finding]:
    """Find uses of a number of nodes, such as $NODES, that nothing in the script mentions else."""
    if not case.job.directives.any or case.trace.sourced:
        return
    text = re.sub(r"\$\(\([^)]*\)\)", "", "\n".join(case.lines))  # arithmetic sets nothing
    for name in ("NODES", "NNODES", "NUM_NODES", "N_NODES"):
        used = re.compile(rf"^[^#']*\$(?:{name}\b|\{{{name}\}})")
        uses = [number for number, line in enumerate(case.lines, 1) if used.match(line)]
        # set in any way, or asked for
        is_known = re.search(
            rf"(?<![${{\w]){name}\b|(?:\[|test) -[nz] +\"?\$\{{?{name}\b|\{{{name}[^}}]", text
        )
        if uses and not is_known:
            yield case.finding(
                "unset-variable",
                f"nothing in this script sets ${name}, and Slurm does not",
                line=uses[0],
                why="it is empty, unless it comes from the shell that submits the job",
                fix=f"{name}=$SLURM_JOB_NUM_NODES",
                severity="warning",
            )


def cpus_per_task_unset(case: Case) -> Iterator[Finding]:
    """Find uses of $SLURM_CPUS_PER_TASK without --cpus-per-task, which makes Slurm set it."""
    name, requests = "SLURM_CPUS_PER_TASK", ("cpus-per-task", "tres-per-task")
    job = case.job
    if not job.directives.any or job.mixed or job.directives.last(*requests):
        return
    if case.assigned(name) or _has_default(case, name):
        return
    # srun -c 8 sets it for the tasks of its step.
    steps = [call.step for call in case.trace.calls if call.step is not None]
    if any(step.vague or set(requests) & set(step.options) for step in steps):
        return
    # Behind a backslash it is for another shell, perhaps that of another job.
    plain = re.compile(rf"(?<!\\)\$(?:{name}\b|\{{{name}\}})")
    lines = [
        at
        for at, line in enumerate(case.lines, 1)
        if plain.search(line) and not line.lstrip().startswith("#")
    ]
    if lines:
        yield case.finding(
            "unset-variable",
            f"${name} is only set where --cpus-per-task is given",
            line=lines[0],
            why="what is set from it is empty: as many threads as each library likes, or an error",
            fix="#SBATCH --cpus-per-task=8  (the CPUs of a node divided by its tasks)",
            severity="warning",
        )


def _unset(case: Case, launch: Launch, symbol: Symbol, option: str) -> Iterator[Finding]:
    name = symbol.name
    line = case.line_of(launch, f"${name}", f"${{{name}")
    short = name.removeprefix("SLURM_")
    # A name without the prefix is the user's own, also if it resembles one of Slurm's.
    is_unknown = short != name and short not in _SLURM
    if _lacks_its_option(case, name):
        yield _set_with_option_only(case, launch, name, option, line)
    elif is_unknown and (meant := closest(short, _SLURM)):
        near = f"SLURM_{meant}"
        yield case.finding(
            "unset-variable",
            f"Slurm sets no ${name}",
            line=line,
            why=f"{option} gets nothing",
            fix=f"${near}",
            severity="error" if _very_near(name, near) else "warning",
        )
    elif symbol.lost and symbol.place == NODE:
        yield _not_exported(case, name, option, line)
    elif not name.startswith("SLURM") and not case.trace.sourced:
        yield from _misspelt(case, symbol, line, option)


def _lacks_its_option(case: Case, name: str) -> bool:
    """Return whether Slurm sets a variable only with an option that the job does not have."""
    needs, _ = _ONLY_WITH.get(name, ("", ""))
    if not needs or not case.job.directives.any:
        return False
    if any(directive.name == needs for directive in case.job.directives.active):
        return False
    # A job that requests no GPUs or tasks at all may get them from sbatch's command line, and the
    # variable with them.
    return case.job.requests_gpus if "GPU" in name else case.job.has_ntasks


def _set_with_option_only(case: Case, launch: Launch, name: str, option: str, line: int) -> Finding:
    needs, instead = _ONLY_WITH[name]
    return case.finding(
        "unset-variable",
        f"${name} is only set where --{needs} is given",
        line=line,
        more=[case.directive_line("gres", "gpus", "ntasks", "gpus-per-node")],
        why=f"{option} gets nothing, and {launch.kind} or srun refuses it",
        fix=f"--{option}={instead}" if instead.startswith("$") else instead,
    )


def _not_exported(case: Case, name: str, option: str, line: int) -> Finding:
    setting = case.assigned(name)
    return case.finding(
        "unset-variable",
        f"${name} is set without export, and used inside quotes that a new shell reads",
        line=line,
        more=[setting.line] if setting else [],
        why=f"that shell sees exported variables only: {option} gets nothing",
        fix=f"export {name}",
    )


def never_exported(case: Case) -> Iterator[Finding]:
    """Find variables that only programs read, and that are set without export."""
    if case.trace.sourced or _EXPORTS_ALL.search(case.code):
        return
    for name in dict.fromkeys(setting.name for setting in case.trace.settings):
        setting = case.assigned(name)
        if setting is None or case.exported(name) or not _FOR_PROGRAMS.fullmatch(name):
            continue
        # another mention, an export in another form, or of a variable whose value is a name
        used = rf"\b{name}\b(?!\+?=)|\b(declare|typeset|env)\b.*\b{name}=|export +\"?\$"
        if not re.search(used, case.code):
            yield case.finding(
                "unset-variable",
                f"{name} is set without export, and nothing else in this script uses it",
                line=setting.line,
                why="programs see exported variables only: they get another one, or none",
                fix=f"export {case.text(setting.line)}",
                severity="warning",
            )


def _very_near(name: str, near: str) -> bool:
    """Return whether two names differ in underscores, a final S or the order of letters only."""
    name, near = name.replace("_", ""), near.replace("_", "")
    return name in (near, f"{near}S", near.removesuffix("S")) or sorted(name) == sorted(near)


def _misspelt(case: Case, symbol: Symbol, line: int, option: str) -> Iterator[Finding]:
    assigned = {setting.name for setting in case.trace.settings}
    if symbol.name in assigned or symbol.name in _SHELLS_OWN or not symbol.name.isidentifier():
        return
    near = closest(symbol.name, assigned)
    # Names of a few letters all resemble each other.
    if near and len(near) >= 5 and _very_near(symbol.name, near):
        what, fix = f"nothing sets ${symbol.name}; {near} is set", f"${near}"
        severity = "error"
    elif option in _RENDEZVOUS and case.job.directives.any and not _has_default(case, symbol.name):
        # environments rarely have lower-case names, and the first node is unknown before the job
        # has nodes
        sure = symbol.name.islower() or symbol.name == "MASTER_ADDR"
        what = f"nothing in the script sets ${symbol.name}"
        severity = "error" if sure else "warning"
        fix = f"{symbol.name}={_RENDEZVOUS[option]}"
    else:
        return
    why = f"{option} gets nothing, unless it comes from the shell that submits the job"
    yield case.finding("unset-variable", what, line=line, why=why, fix=fix, severity=severity)


def _has_default(case: Case, name: str) -> bool:
    """Return whether the script expects that a variable may come from outside, or be missing."""
    pattern = re.compile(
        rf"\$\{{{name}:?[-=?+]|-[zn]"
        rf" *\"?\$\{{?{name}\b|--export\S*{name}|\b(unset|read)\b.*\b{name}\b"
    )
    return bool(pattern.search("\n".join(case.lines)))


def not_filled_in(case: Case) -> Iterator[Finding]:
    """Find quoted variables that no shell expands, so that the launcher gets their names."""
    for launch in case.launches:
        for option, value in launch.options.items():
            # What a shell expands is a symbol here; a dollar that is left is a plain character.
            variable = _VARIABLE.search(value) if constant(value) else None
            if variable is None or option not in launch.says_by:
                continue
            yield case.finding(
                "option-invalid",
                f"--{option} gets the text {value}: the quotes keep the shell from filling it in",
                line=case.line_of(launch, variable[0]),
                why=(
                    f"no shell stands between srun and {launch.kind}, which takes the text as it is"
                ),
                fix=f"srun bash -c '{launch.kind} --{option} {variable[0]} ...'",
                severity=case.severity(launch),
            )


CHECKS = (
    broken_line_continuation,
    not_filled_in,
    unset_variable,
    never_exported,
    node_count_unset,
    cpus_per_task_unset,
)
