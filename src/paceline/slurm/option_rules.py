"""Validate single values of a job request, by one rule for the command line and profiles. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.errors import UsageError, closest, option_contradicted, option_invalid
from paceline.launch.plan import option_values
from paceline.launch.plan.submit_options import INSTEAD, NEVER, NEVER_FIX, ON_NODE_LOSS, OWN
from paceline.text.quoting import CONTROL

UNLIMITED = re.compile("unlimited|infinite", re.IGNORECASE)
_GPUS = re.compile(r"(?:(?P<kind>\w[\w.+-]*):)?(?P<count>[0-9]+)")
_SBATCH = re.compile(
    r"--(?P<long>[A-Za-z][\w-]*)(?:(?:=|\s+)(?P<value>.*))?|-(?P<short>[A-Za-z])(?:=|\s*)(?P<rest>.*)"
)
# Slurm documents these for --mail-type; ARRAY_TASKS asks for a mail of each element of an array.
_MAIL_TYPES = (
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
    "ARRAY_TASKS",
)
_DEPENDENCIES = (
    "after",
    "afterany",
    "afterburstbuffer",
    "aftercorr",
    "afternotok",
    "afterok",
    "expand",
    "singleton",
)
_DEPENDENCY = re.compile(
    r"(?P<kind>[a-z]+)(?P<jobs>(:[0-9]+(_([0-9]+|\*))?(\+[0-9]+)?)*)(\(\w+\))?"
)
_LONG = {option.name: option.long for option in OWN}


def check(raw: Mapping[str, Any]) -> None:
    """Check the values of submit's own options; other options are ignored.

    Raises UsageError if a value is invalid; the first one is reported.
    """
    for name, value in raw.items():
        if name in _LONG and isinstance(value, str):
            if CONTROL.search(value):
                raise invalid(name, _escaped(value), "is one line, without control characters")
            if name in _RULES:
                _RULES[name](name, value)
            elif not value.strip():
                raise invalid(name, "''", "needs a value", f"leave out {_LONG[name]}")


def num_gpus(text: str) -> int:
    """Return the number of GPUs in ``4`` or ``a100:4``, 0 for an empty text."""
    return int(str(text).rpartition(":")[2] or 0)


def sbatch_options(words: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Parse the values of ``--sbatch``: ``--nice=100``, ``-C a100``, ``--hold``."""
    return tuple(_sbatch(word) for word in words)


def _sbatch(typed: str) -> tuple[str, str | None]:
    from paceline.diagnose.lint import sbatch_option

    if CONTROL.search(typed):
        raise _refused(typed, "is one line, without control characters")
    match = _SBATCH.fullmatch(typed)
    if not match:
        lacks_dashes = re.fullmatch(r"[a-z][a-z-]+(=.+)?", typed) is not None
        example = f"--{typed}" if lacks_dashes else "--nice=100"
        rule = "begins with a dash, as sbatch has it, and has a name"
        raise _refused(typed, rule, f"--sbatch {example}")
    word, value = match["long"] or match["short"], match["value"] or match["rest"] or ""
    name, kind = sbatch_option(word)
    require_free(name or word, value, label=f"--sbatch {_escaped(typed)}")
    _require_value(typed, name, kind, value)
    return name or word, value or None


def _require_value(typed: str, name: str, kind: str, value: str) -> None:
    if kind == "value" and not value:
        rule = f"needs a value: --{name} is an option with one"
        raise _refused(typed, rule, f"--sbatch --{name}=VALUE")
    if kind == "flag" and value:
        raise _refused(typed, f"takes no value: --{name} is a flag", f"--sbatch --{name}")


def require_free(name: str, value: str, *, label: str) -> None:
    """Refuse an option of sbatch that submit sets itself."""
    if name in NEVER:
        fix = NEVER_FIX.get(name, f"leave out {label}")
        raise option_contradicted(
            f"{label}: a job of paceline submit has no --{name}: {NEVER[name]}", fix=fix
        )
    # Licences, bandwidth and local disks are resources too, for which submit has no option.
    if name == "gres" and not re.search(r"(^|,)(gres[:/])?gpu\b", value):
        return
    instead = "--gpus-per-node" if name == "gres" else INSTEAD.get(name, "")
    if instead:
        fix = instead
        if value and instead in ("--gpus-per-node", f"--{name}"):
            fix += " " + value.rpartition(":")[2]
        raise option_contradicted(f"{label}: paceline submit sets --{name} itself", fix=fix)


def _nodes(name: str, text: str) -> None:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
    if not match:
        # torchrun's --nnodes has MIN:MAX
        is_torchruns = re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", text) is not None
        example = text.replace(":", "-") if is_torchruns else "2"
        raise invalid(name, text, "is a number or a range MIN-MAX", f"--nodes {example}")
    low, high = int(match[1]), int(match[2] or match[1])
    if low < 1 or high < low:
        raise invalid(name, text, "needs at least one node and MIN not above MAX", "--nodes 1")


def _gpus(name: str, text: str) -> None:
    if not _GPUS.fullmatch(text):
        raise invalid(
            name, text, "is a number, or a kind and a number", "--gpus-per-node 4, or a100:4"
        )


def _count(name: str, text: str) -> None:
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise invalid(name, text, "is a whole number from 1", f"{_LONG[name]} 8")


def _mem(name: str, text: str) -> None:
    if not re.fullmatch("[0-9]+[KMGT]?", text, re.IGNORECASE):
        # sbatch takes 64G and refuses 64GB and 64GiB
        near = re.fullmatch(r"([0-9]+) ?([KMGT])i?B", text, re.IGNORECASE)
        fix = f"--mem {near[1]}{near[2].upper()}" if near else "--mem 64G"
        raise invalid(
            name, text, "is a whole number with K, M, G or T; without one it counts MB", fix
        )


def _time(name: str, text: str) -> None:
    if UNLIMITED.fullmatch(text):
        return
    if not option_values.seconds_of(text, bare_s=60) > 0:
        rule = "is a time above 0: 90m, 2h, minutes, or as sbatch has it, 1-12:00:00"
        parts = re.fullmatch(r"([0-9]+) ?h(?:ours?)? ?([0-9]+)(?: ?m\w*)?", text)
        example = f"{parts[1]}:{int(parts[2]):02d}:00" if parts else "2h"
        raise invalid(name, text, rule, f"--time {example}")


def _on_node_loss(name: str, text: str) -> None:
    if text not in ON_NODE_LOSS:
        near = closest(text, ON_NODE_LOSS) or ON_NODE_LOSS[0]
        raise invalid(name, text, f"is one of {', '.join(ON_NODE_LOSS)}", f"--on-node-loss {near}")


def _mail_type(name: str, text: str) -> None:
    for word in text.split(","):
        if word.upper() not in _MAIL_TYPES:
            near = closest(word.upper(), _MAIL_TYPES) or "END,FAIL"
            raise invalid(name, text, f"has no {word!r}", f"--mail-type {near}")


def _dependency(name: str, text: str) -> None:
    # A comma asks for all of the dependencies, a question mark for any.
    for part in re.split("[,?]", text):
        match = _DEPENDENCY.fullmatch(part)
        kind = match["kind"] if match else part.partition(":")[0]
        if kind not in _DEPENDENCIES:
            near = closest(kind, _DEPENDENCIES) or "afterok"
            fix = f"--dependency {near}" + ("" if near == "singleton" else ":4711")
            raise invalid(name, text, f"has no kind {kind!r}", fix)
        if match is None or bool(match["jobs"]) == (kind == "singleton"):
            rule = "is a kind and job ids, or singleton"
            raise invalid(name, text, rule, "--dependency afterok:4711")


_RULES: Mapping[str, Callable[[str, str], None]] = {
    "nodes": _nodes,
    "gpus_per_node": _gpus,
    "cpus_per_gpu": _count,
    "cpus_per_node": _count,
    "mem": _mem,
    "time": _time,
    "on_node_loss": _on_node_loss,
    "mail_type": _mail_type,
    "dependency": _dependency,
}


def invalid(name: str, value: str, rule: str, fix: str = "") -> UsageError:
    """Return the error for a value that breaks its rule."""
    label = f"{_LONG[name]} {value}"
    return option_invalid(f"{label}: {_LONG[name]} {rule}", fix=fix)


def _refused(typed: str, rule: str, fix: str = "") -> UsageError:
    what = f"--sbatch {_escaped(typed)}: it {rule}"
    return option_invalid(what, fix=fix)


def _escaped(text: str) -> str:
    return repr(text)[1:-1] if CONTROL.search(text) else text
