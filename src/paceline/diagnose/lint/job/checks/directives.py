"""Check #SBATCH directives: options that Slurm ignores, does not know, or reads differently."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from paceline.diagnose.lint.job.allocation import GPU_OPTIONS, number
from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.directives import Directive
from paceline.diagnose.lint.job.sbatch_options import PLUGIN_OPTIONS, SBATCH, canonical, names
from paceline.errors import Finding, closest

# Options without which the job gets other resources.
_MATTER = names("nodes ntasks ntasks-per-node cpus-per-task mem mem-per-cpu time exclusive").union(
    GPU_OPTIONS
)
# Options that select nodes, so that the default partition may be right.
_SELECT_NODES = ("partition", "account", "qos", "reservation", "constraint", "clusters")
_QUOTED, _BEHIND = re.compile(r"'[^']*'|\"[^\"]*\""), re.compile(r"(?<=[/=])<[^<>()&|;]*>")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .-]*>")
_MEGABYTES = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2}


def dos_line_ends(case: Case) -> Iterator[Finding]:
    """Find lines that end with a carriage return, as editors on Windows write them."""
    if case.dos_line and case.job.directives.any:
        yield case.finding(
            "dos-line-ends",
            "lines end with \\r\\n, as on Windows",
            line=case.dos_line,
            why="sbatch refuses the script: Batch script contains DOS line breaks",
            fix=f"sed -i 's/\\r$//' {shlex.quote(case.name)}",
        )


def directives_after_command(case: Case) -> Iterator[Finding]:
    """Find #SBATCH lines after the first command, which sbatch does not read."""
    late = case.job.directives.late
    if not late:
        return
    in_time = {directive.name for directive in case.job.directives.active}
    # What stands above too is in effect all the same, so the others are named first.
    without_effect = [directive for directive in late if directive.name not in in_time]
    important = [directive for directive in without_effect if directive.name in _MATTER]
    reported = important or without_effect or late
    typed = ", ".join(dict.fromkeys(directive.typed for directive in reported))
    command = _first_command(case)
    yield case.finding(
        "directives-after-command",
        f"{typed} stand{'s' if ',' not in typed else ''} behind the first command (line {command})",
        line=reported[0].line,
        more=[command],
        why=(
            "sbatch stops reading at the first line that is not a comment, so the job runs without"
            " these options"
        ),
        fix="move all #SBATCH lines to the top of the script, directly below #!/bin/bash",
        severity="error" if important else "warning",
    )


def _first_command(case: Case) -> int:
    """Return the first line that is neither empty nor a comment."""
    for at, line in enumerate(case.lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return at
    return 1


def lowercase_directive_ignored(case: Case) -> Iterator[Finding]:
    """Find #sbatch in lower case, which is a comment."""
    in_effect = {directive.name for directive in case.job.directives.active}
    for line, text in case.job.directives.lower:
        name = canonical(re.split(r"[=\s]", text.lstrip("-"))[0])
        if not name or name in in_effect or re.search(r"\.(sh|sbatch|slurm|job|bash)\b", text):
            continue  # a disabled duplicate of a directive, or the command that submits the script
        yield case.finding(
            "lowercase-directive-ignored",
            f"#sbatch {text.split()[0]} is a comment: sbatch reads capitals only",
            line=line,
            why="the option has no effect and nothing says so",
            fix=f"#SBATCH {text}",
            severity="error" if name in _MATTER else "warning",
        )


def unknown_option(case: Case) -> Iterator[Finding]:
    """Find options that Slurm does not know, options without their value, and stray words."""
    for directive in case.job.directives.active:
        if not directive.exists:
            yield from _unknown(case, directive)
        elif directive.lacks_value:
            yield case.finding(
                "option-invalid",
                f"{directive.typed} has no value",
                line=directive.line,
                why="sbatch refuses the script",
                fix=f"#SBATCH --{directive.name}=VALUE",
            )
    for word, line in case.job.directives.stray:
        if "$(" in case.text(line):
            what = "no shell reads #SBATCH lines: $(...) stays as it is written"
            fix = "write the number itself, or give the option on the command line of sbatch"
        else:
            what = f"{word!r} belongs to no option"
            fix = "quote values with blanks, write comments behind #, no blanks around ="
        yield case.finding(
            "option-invalid",
            what,
            line=line,
            why="sbatch refuses the script: Invalid directive found in batch script",
            fix=fix,
        )
    for line in case.job.directives.unclosed:
        yield case.finding(
            "option-invalid",
            "a quote is not closed",
            line=line,
            why="sbatch refuses the script",
            fix="close the quote, or write a backslash before it",
        )


def _unknown(case: Case, directive: Directive) -> Iterator[Finding]:
    typed = directive.typed.lstrip("-")
    # pyxis adds options of these two beginnings, more of them with each release.
    if typed in PLUGIN_OPTIONS or typed.startswith(("container-", "no-container-")):
        return
    near = closest(typed, SBATCH) if directive.typed.startswith("--") else ""
    # A plugin of the site may add any name, but hardly one that is a typo of Slurm's.
    certain = bool(near) and _alike(typed, near)
    value = f"={directive.value}" if directive.value else ""
    yield case.finding(
        "unknown-sbatch-option",
        f"Slurm has no option {directive.typed}",
        line=directive.line,
        why="sbatch refuses the script"
        + ("" if certain else ", unless a plugin of this cluster adds the option"),
        fix=f"#SBATCH --{near}{value}" if near else "remove the line",
        severity="error" if certain else "warning",
    )


def _alike(typed: str, near: str) -> bool:
    # A missing dash, an s too many and two letters exchanged are the usual slips.
    squeezed = [re.sub(r"[-_]", "", text).rstrip("s") for text in (typed, near)]
    return (
        squeezed[0] == squeezed[1]
        or sorted(squeezed[0]) == sorted(squeezed[1])
        or _one_off(*squeezed)
    )


def _one_off(left: str, right: str) -> bool:
    from paceline.diagnose.variables import distance

    # Short names are all within two edits of each other.
    return min(len(left), len(right)) >= 4 and distance(left, right, 2) <= 2


def placeholder(case: Case) -> Iterator[Finding]:
    """Find ``<your-account>`` in a directive, and ``cd /x/<project>/y``, which bash redirects."""
    directives = {d.line for d in case.job.directives.active if d.name != "comment"}
    for line, typed in enumerate(case.lines, 1):
        text = typed.partition(" #")[0]
        if line in case.script.data_lines or (text.startswith("#") and line not in directives):
            continue
        # Nobody redirects directly behind a slash or an equals sign; what is quoted is a text.
        if line not in directives:
            text = "".join(_BEHIND.findall(_QUOTED.sub("", text)))
        if left := _PLACEHOLDER.search(text):
            yield case.finding(
                "option-invalid",
                f"{left[0]} is a placeholder that nobody has filled in",
                line=line,
                why="sbatch takes it as it is, and bash for a redirection",
                fix=f"write the name for {left[0]}",
            )


def duplicate_option(case: Case) -> Iterator[Finding]:
    """Find options that are set twice; the last one counts."""
    previous: dict[str, Directive] = {}
    for directive in case.job.directives.active:
        earlier = previous.get(directive.name)
        # Slurm adds up the types of several lines, and mail changes nothing about the job.
        if earlier is not None and directive.exists and not directive.name.startswith("mail-"):
            yield case.finding(
                "duplicate-option",
                f"{directive.typed} is given again: {earlier.value or 'before'} on line"
                f" {earlier.line}, {directive.value or 'again'} here",
                line=directive.line,
                more=[earlier.line],
                why="the last one counts",
                fix=f"remove line {earlier.line}",
                severity="hint",
            )
        previous[directive.name] = directive


def redundant_gpu_options(case: Case) -> Iterator[Finding]:
    """Find GPUs that are requested by several options."""
    by_name: dict[str, Directive] = {}
    for directive in case.job.directives.active:
        names_gpus = directive.name != "gres" or "gpu" in directive.value
        # The last one, tres-per-task, may request CPUs alone.
        if directive.name in GPU_OPTIONS[:5] and names_gpus:
            by_name[directive.name] = directive
    if len(by_name) < 2:
        return
    lines = [directive.line for directive in by_name.values()]
    yield case.finding(
        "redundant-gpu-options",
        "GPUs are asked for in several ways: " + ", ".join(d.typed for d in by_name.values()),
        line=lines[-1],
        more=lines,
        why="they have to agree, and which of them binds GPUs to tasks differs",
        fix="keep one of them, --gpus-per-node or --gres",
        severity="hint",
    )


def nodelist_larger_than_nodes(case: Case) -> Iterator[Finding]:
    """Find a --nodelist with more nodes than --nodes requests."""
    listed, nodes = case.job.directives.last("nodelist"), case.job.nodes
    if listed is None or not case.job.has_nodes or nodes is None:
        return
    count = count_hosts(listed.value)
    if count is not None and count > nodes:
        yield case.finding(
            "nodelist-larger-than-nodes",
            f"--nodelist names {count} nodes, --nodes asks for {nodes}",
            line=listed.line,
            more=[case.directive_line("nodes")],
            why="Slurm refuses the job, or leaves some of the listed nodes out",
            fix=f"#SBATCH --nodes={count}",
            severity="hint",
        )


def count_hosts(text: str) -> int | None:
    """Return the number of hosts in a list such as ``a[1-3,7],b``, None for a file or no list."""
    if "/" in text or not text:
        return None
    total = 0
    # A comma outside brackets separates hosts, one inside separates ranges of numbers. Several
    # brackets in a name, as in r[1-2]n[01-04], multiply.
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        count = 1
        for inner in re.findall(r"\[([^\]]*)\]", part):
            sizes = [_range(piece) for piece in inner.split(",")]
            if None in sizes:
                return None
            count *= sum(size for size in sizes if size)
        total += count
    return total


def _range(text: str) -> int | None:
    first, dash, last = text.partition("-")
    low, high = number(first), number(last) if dash else number(first)
    return high - low + 1 if low is not None and high is not None and high >= low else None


def missing_requests(case: Case) -> Iterator[Finding]:
    """Find missing requests: time, and what the cluster's configuration makes necessary."""
    if not case.job.directives.any or not case.training or case.job.mixed:
        return
    for name in _missing(case):
        what, why, fix = _REQUESTS[name]
        yield case.finding(
            name,
            what,
            line=case.directive_line("nodes", "ntasks", *GPU_OPTIONS),
            why=why,
            fix=fix,
            severity="hint",
        )


# Requests that may be missing: what is missing, why it matters, the line to add.
_REQUESTS = {
    "time-missing": (
        "no time limit is asked for",
        "the partition's default may be short, and a job without a limit starts later",
        "#SBATCH --time=1-00:00:00",
    ),
    "mem-missing": (
        "no memory is asked for",
        "the default is often a few GB for each CPU, and too little ends the job",
        "#SBATCH --mem=0  (all of a node that is not shared), or --mem=64G",
    ),
    "gpus-not-requested": (
        "no GPUs are asked for",
        "without --gres or --gpus-per-node the processes see no GPU on most clusters",
        "#SBATCH --gpus-per-node=4",
    ),
    "partition-missing": (
        "no partition is asked for",
        "the default partition is often one without GPUs",
        "#SBATCH --partition=NAME  (sinfo -s lists them)",
    ),
}


def _missing(case: Case) -> Iterator[str]:
    job, site = case.job, case.site
    if job.directives.last("time") is None:
        yield "time-missing"
    directive = job.directives.last("partition")
    partition = directive.value if directive else site.partition
    # Memory and GPUs have to be divided only where several jobs share a node.
    if job.exclusive or partition in site.whole_nodes:
        return
    # Without limits on memory (no cons_tres with memory) a job may use what a node has.
    if not job.requests_memory and site.limits_memory:
        yield "mem-missing"
    # A plain program may be one for CPUs, a launcher starts several processes for GPUs.
    starts_launcher = any(launch.spawns for launch in case.training)
    if job.requests_gpus or not site.binds_gpus or not starts_launcher:
        return
    yield "gpus-not-requested"
    if not job.directives.last(*_SELECT_NODES):
        yield "partition-missing"


def low_memory(case: Case) -> Iterator[Finding]:
    """Find small --mem requests; a number without a unit is in megabytes."""
    memory = case.job.directives.last("mem")
    if memory is None or not case.training:
        return
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", memory.value.strip(), re.IGNORECASE)
    # --mem=0 means all memory of the node.
    if not match or match[1] == "0":
        return
    unit = match[2].upper()
    if int(match[1]) * _MEGABYTES[unit] >= 2048:
        return
    note = "" if unit else " (megabytes, where no unit is given)"
    yield case.finding(
        "low-memory",
        f"--mem={memory.value} is little for a training run{note}",
        line=memory.line,
        why="Slurm ends the job when a process needs more",
        fix="#SBATCH --mem=32G" if unit else f"#SBATCH --mem={match[1]}G",
        severity="hint",
    )


def output_dev_null(case: Case) -> Iterator[Finding]:
    """Find job output that is discarded."""
    for name in ("error", "output"):
        directive = case.job.directives.last(name)
        if directive is not None and directive.value in ("/dev/null", "none"):
            yield case.finding(
                "output-dev-null",
                f"--{name}={directive.value} throws the job's messages away",
                line=directive.line,
                why="a failure leaves no trace",
                fix=f"#SBATCH --{name}=%x-%j.out",
                severity="hint",
            )
            return


CHECKS = (
    dos_line_ends,
    directives_after_command,
    lowercase_directive_ignored,
    unknown_option,
    placeholder,
    duplicate_option,
    redundant_gpu_options,
    nodelist_larger_than_nodes,
    missing_requests,
    low_memory,
    output_dev_null,
)
