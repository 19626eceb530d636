"""Decide whether the nodes of a run are alike, and report their differences as findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import Finding, gravest_first
from paceline.launch.preflight.facts import Facts
from paceline.text.wording import few, few_lines

_CODE = ("script", "commit")
# Ranks cannot work together if these differ. Python is compared by its minor version, NCCL only on
# nodes with GPUs.
_FATAL = ("python", "torch", "NCCL", "paceline", "script")
_MAX_LINES = 9
_MAX_GROUPS = 4
_SKEW_S = 1.0


@dataclass(frozen=True)
class Difference:
    """One property that differs between nodes.

    Attributes:
        name: Name of the property.
        groups: The nodes by value, the rarest value first.
        fatal: Whether the difference stops the run.
    """

    name: str
    groups: tuple[tuple[str, tuple[Facts, ...]], ...]
    fatal: bool

    @property
    def line(self) -> str:
        """The values and their nodes; of many nodes with one value, only the number."""
        shown = []
        for place, (value, nodes) in enumerate(self.groups[:_MAX_GROUPS]):
            last = place == len(self.groups) - 1
            words = [node.words for node in nodes]
            whom = (
                (f"the other {len(nodes)}" if last else few(words, 2))
                if len(nodes) > 3
                else ", ".join(words)
            )
            shown.append(f"{value} on {whom}")
        more = len(self.groups) - _MAX_GROUPS
        return (
            f"{self.name} "
            + ", ".join(shown)
            + (f", and {more} further values" if more > 0 else "")
        )

    @property
    def usual(self) -> str:
        """The value of most nodes; if two are equally common, the head's."""
        most = len(self.groups[-1][1])
        as_common = [group for group in self.groups if len(group[1]) == most]
        return min(as_common, key=lambda group: group[1][0].node)[0]


def compare(nodes: Sequence[Facts]) -> list[Difference]:
    """Return the differences between nodes, fatal ones first."""
    names = list(dict.fromkeys(name for node in nodes for name in node.likeness))
    found = [difference for name in names if (difference := _compare_one(name, nodes)) is not None]
    return sorted(found, key=lambda difference: not difference.fatal)


def _compare_one(name: str, nodes: Sequence[Facts]) -> Difference | None:
    groups: dict[str, list[Facts]] = {}
    for node in nodes:
        value = node.likeness.get(name, "")
        if value and not (name == "NCCL" and not node.gpus):
            groups.setdefault(value, []).append(node)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), -group[1][0].node))
    if len(nodes) <= 4:  # a few nodes are listed in the order of their ranks
        ordered = sorted(groups.items(), key=lambda group: group[1][0].node)
    fatal = name in _FATAL and (name != "python" or len({_minor(value) for value in groups}) > 1)
    return Difference(name, tuple((value, tuple(members)) for value, members in ordered), fatal)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def judge(nodes: Sequence[Facts], *, script: str) -> list[Finding]:
    """Return the findings about differences between nodes, errors first.

    Args:
        nodes: The facts of all nodes.
        script: Name of the script.
    """
    found = compare(nodes)
    environment = [difference for difference in found if difference.name not in _CODE]
    code = [difference for difference in found if difference.name in _CODE]
    findings = [
        finding
        for finding in (
            _environment(environment, fatal=True),
            _code(code, script),
            _environment(environment, fatal=False),
        )
        if finding is not None
    ]
    return gravest_first(findings)


def _environment(differences: Sequence[Difference], *, fatal: bool) -> Finding | None:
    mine = [difference for difference in differences if difference.fatal == fatal]
    if not mine:
        return None
    names = ", ".join(difference.name for difference in mine)
    finding = Finding(
        "environment-differs",
        f"nodes differ in {names}",
        where=_where(mine[0]),
        evidence=few_lines([difference.line for difference in mine], _MAX_LINES),
        why="ranks of different versions break each other, often without a word" if fatal else "",
        fix=_same(mine) if fatal else "",
    )
    return finding if fatal else replace(finding, severity="warning")


def _same(differences: Sequence[Difference]) -> str:
    # The part after a plus names a build, which an index may not have under that name.
    pip = [
        f"{each.name}=={each.usual.split('+')[0]}"
        for each in differences
        if each.name in ("torch", "paceline")
    ]
    if pip:
        return f"on every node: pip install {' '.join(pip)}"
    return (
        f"activate the same environment on every node, one with {differences[0].name}"
        f" {differences[0].usual}"
    )


def _code(differences: Sequence[Difference], script: str) -> Finding | None:
    if not differences:
        return None
    fatal = differences[0].fatal
    lines = [difference.line.replace("script ", "sha256 ", 1) for difference in differences]
    return Finding(
        "code-differs",
        (
            f"{script} is not the same file on all nodes"
            if fatal
            else "nodes are at different git commits"
        ),
        where=_where(differences[0]),
        evidence=few_lines(lines, _MAX_LINES),
        why="ranks that run different code wait for each other, or train different models",
        fix=(
            "start from one shared folder, or copy the same files to every node; git rev-parse HEAD"
            " tells the commit"
        ),
        severity="error" if fatal else "warning",
    )


def _where(difference: Difference) -> str:
    total = sum(len(nodes) for _, nodes in difference.groups)
    groups = difference.groups if total <= 4 else difference.groups[:-1]
    rare = [node.words for _, nodes in groups for node in nodes]
    return few(rare, 4)


def judge_clocks(nodes: Sequence[Facts], offsets_s: Mapping[int, float]) -> Finding | None:
    """Return the finding that clocks differ; None if they agree.

    Args:
        nodes: The facts of all nodes, the head first.
        offsets_s: Seconds by which a node's clock is ahead of the head's, by node rank.
    """
    off = [node for node in nodes if abs(offsets_s.get(node.node, 0.0)) > _SKEW_S]
    if not off:
        return None
    off.sort(key=lambda node: -abs(offsets_s[node.node]))
    lines = [f"{node.words}: {_ahead(offsets_s[node.node])} the head's" for node in off[:4]]
    worst = off[0]
    return Finding(
        "clock-skew",
        f"the clock of {worst.words} is {_ahead(offsets_s[worst.node])} that of the head,"
        f" {nodes[0].host}",
        where=few([node.words for node in off], 4),
        evidence=tuple(lines) if len(off) > 1 else (),
        why="logs of the nodes cannot be put in order, and files seem to come from the future",
        fix="timedatectl set-ntp true, there; chronyc tracking tells how far a clock is off",
        severity="warning",
    )


def _ahead(offset_s: float) -> str:
    size = abs(offset_s)
    text = (
        f"{size:.1f} s"
        if size < 120
        else f"{size / 60:.0f} min"
        if size < 7200
        else f"{size / 3600:.1f} h"
    )
    return f"{text} {'ahead of' if offset_s > 0 else 'behind'}"


def judge_folder(
    nodes: Sequence[Facts], seen: Mapping[int, bool], *, folder: str
) -> Finding | None:
    """Return the finding that nodes do not see the head's run folder; None if all see it.

    Args:
        nodes: The facts of all nodes, the head first.
        seen: Whether a node has seen the head's file in the folder, by node rank.
        folder: The run folder.
    """
    blind = [node.words for node in nodes if not seen.get(node.node, True)]
    if not blind:
        return None
    whom = few(blind, 4)
    return Finding(
        "run-folder-not-shared",
        f"the run folder {folder} of the head, {nodes[0].host}, is not seen by {whom}",
        where=whom,
        why=(
            "each node keeps the logs of its own ranks; checkpoints of several nodes need one"
            " folder"
        ),
        fix="start from a folder that all nodes share, or name one: --run-dir /shared/runs/NAME",
        severity="warning",
    )
