"""Check job scripts inside scripts (``sbatch <<EOF``, ``--wrap``): variables expanded too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.shell.trace import Submitted
from paceline.diagnose.lint.job.shell.values import constant
from paceline.errors import Finding

_DOLLAR = re.compile(
    r"\\(?P<escaped>[\\$`])|\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<plain>[A-Za-z_]\w*))"
)
# Arithmetic and the output of commands, which this shell computes.
_COMPUTED = re.compile(
    r"(?<!\\)(?:\$\(\([^\n]*?\)\)|\$\((?:[^()\n]|\([^()\n]*\))*\)|`[^`\n]*(?<!\\)`)"
)
_SLURM = re.compile(r"(?<!\\)\$\{?(SLURM_\w+)")
_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(.*)", re.MULTILINE)
_FILLED = re.compile(r"\bfor\s+([A-Za-z_]\w*)\s+in\b|\bread\s+(?:-\w+\s+)*([A-Za-z_]\w*)")
_ONLY_SHOWS = re.compile(r"\s*(echo|printf|#(?!SBATCH))\b")
# Set on the login node too.
_OF_THE_LOGIN = frozenset(
    {"SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_ROOT"}
)


def expanded_too_early(case: Case) -> Iterator[Finding]:
    """Find variables of the job that the submitting shell expands, where they are empty."""
    for submitted in case.trace.submitted:
        line_of = dict(reversed(list(_early(case, submitted))))
        if not line_of:
            continue
        first = min(line_of, key=line_of.__getitem__)
        names = ", ".join(f"${name}" for name in sorted(line_of))
        heredoc = submitted.kind == "heredoc"
        yield case.finding(
            "variable-expanded-too-early",
            f"{names} is set in the job only, and expanded where sbatch is called",
            line=line_of[first],
            more=[submitted.line - 1] if heredoc else [],
            why=(
                "the name of the here-document is not in quotes, so this shell fills its variables"
                " in: they are empty"
                if heredoc
                else "inside double quotes this shell fills the variables in: they are empty"
            ),
            fix=(
                f"\\${first}, or sbatch <<'EOF' if the script needs nothing of this shell"
                if heredoc
                else f"\\${first}, or sbatch --wrap '...' in single quotes"
            ),
        )


def _early(case: Case, submitted: Submitted) -> Iterator[tuple[str, int]]:
    """Yield the variables that are expanded too early, with their lines."""
    if submitted.quoted:
        return
    in_a_job = case.job.directives.any  # then Slurm has set its variables here too, for another job
    inner_names = _set_inside(case, submitted)
    for at, line in enumerate(submitted.text.split("\n"), submitted.line):
        # An empty variable in a message does no harm; #SBATCH lines are read by sbatch, not shown.
        if _ONLY_SHOWS.match(line):
            continue
        for match in () if in_a_job else _SLURM.finditer(line):
            name = match[1]
            if name not in _OF_THE_LOGIN and not _known_here(case, name):
                yield name, at
        for match in _DOLLAR.finditer(line):
            name = match["braced"] or match["plain"]
            if name in inner_names:
                yield name, at


def _set_inside(case: Case, submitted: Submitted) -> set[str]:
    """Return the variables that only the submitted script sets."""
    names = {
        name
        for name, value in _ASSIGNED.findall(submitted.text)
        # PATH=$HOME/bin:$PATH extends what the login shell has, and is right when expanded early.
        if not re.search(rf"\$\{{?{name}\b", value)
    }
    names |= {name for pair in _FILLED.findall(submitted.text) for name in pair if name}
    return {
        name
        for name in names
        if not _known_here(case, name) and not name.startswith(("SLURM", "CONDA"))
    } - _LOGIN


_LOGIN = frozenset(
    {"PATH", "HOME", "USER", "PWD", "SHELL", "TMPDIR", "SCRATCH", "WORK", "LD_LIBRARY_PATH"}
)


def _known_here(case: Case, name: str) -> bool:
    text = re.escape(name)
    return case.assigned(name) is not None or any(
        re.search(
            r"\b(for|read|local|declare|getopts"
            rf" \S+)\s+(-\w+\s+)*{text}\b|--?export\S*{text}=|\b{text}=",
            line,
        )
        for line in case.outer_lines
    )


def inner_script(case: Case, submitted: Submitted) -> str:
    """Return the job script that is submitted, on its lines; empty if it is not checked.

    Variables that this shell expands are replaced by their values, or by an expansion with an
    unknown value.
    """
    # Options on sbatch's command line override directives, so what the job gets is not in the text.
    if submitted.kind != "heredoc" or submitted.options or "#SBATCH" not in submitted.text:
        return ""

    def expand(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match["escaped"]
        name = match["braced"] or match["plain"]
        setting = case.assigned(name)
        value = setting.value if setting is not None and not setting.maybe else None
        if isinstance(value, str) and constant(value) and value:
            return value
        # What is not known here must stay so: with ":-" no check takes the name for a misspelt one.
        return match[0] if name.startswith("SLURM") else f"${{{name}:-}}"

    text = submitted.text
    # ${_:-} stands for a value that is only known when this shell runs.
    if not submitted.quoted:
        text = _DOLLAR.sub(expand, _COMPUTED.sub("${_:-}", text))
    return "\n" * (submitted.line - 1) + text


CHECKS = (expanded_too_early,)
