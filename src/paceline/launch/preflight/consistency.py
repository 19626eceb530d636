"""Decide whether the nodes of a run are alike, and report their differences as findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import Finding, gravest_first
from paceline.launch.preflight.facts import NodeFacts
from paceline.text.wording import few, few_lines

_CODE = ("script", "commit")
# Ranks cannot work together if these differ, or if the minor version of Python does. NCCL is
# compared on nodes with GPUs only.
_FATAL = ("torch", "NCCL", "paceline", "script")
_MAX_LINES = 9
_MAX_GROUPS = 4
_SKEW_S = 1.0


@dataclass(frozen=True)
class Difference:
    """One property that differs between nodes."""

    name: str  # name of the property
    # the nodes by value, the rarest value first
    groups: tuple[tuple[str, tuple[NodeFacts, ...]], ...]
    fatal: bool  # whether the difference stops the run

    @property
    def line(self) -> str:
        """The values and their nodes; of many nodes with one value, only the number."""
        parts = []
        for place, (value, nodes) in enumerate(self.groups[:_MAX_GROUPS]):
            is_last = place == len(self.groups) - 1
            parts.append(f"{value} on {_listed(nodes, is_last=is_last)}")
        num_further = len(self.groups) - _MAX_GROUPS
        if num_further > 0:
            parts.append(f"and {num_further} further values")
        return f"{self.name} {', '.join(parts)}"

    @property
    def usual(self) -> str:
        """The value of most nodes; if two are equally common, the head's."""
        most = len(self.groups[-1][1])
        as_common = [group for group in self.groups if len(group[1]) == most]
        return min(as_common, key=lambda group: group[1][0].node)[0]


def _listed(nodes: Sequence[NodeFacts], *, is_last: bool) -> str:
    """Return the nodes of a group in words; of many nodes a few, of the last group the number."""
    words = [node.words for node in nodes]
    if len(nodes) <= 3:
        return ", ".join(words)
    return f"the other {len(nodes)}" if is_last else few(words, 2)


def compare(nodes: Sequence[NodeFacts]) -> list[Difference]:
    """Return the differences between nodes, fatal ones first."""
    names = list(dict.fromkeys(name for node in nodes for name in node.likeness))
    results = [_compare_one(name, nodes) for name in names]
    differences = [difference for difference in results if difference is not None]
    return sorted(differences, key=lambda difference: not difference.fatal)


def _compare_one(name: str, nodes: Sequence[NodeFacts]) -> Difference | None:
    groups: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        value = node.likeness.get(name, "")
        if value and not (name == "NCCL" and not node.gpus):
            groups.setdefault(value, []).append(node)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), -group[1][0].node))
    if len(nodes) <= 4:  # a few nodes are listed in the order of their ranks
        ordered = sorted(groups.items(), key=lambda group: group[1][0].node)
    frozen = tuple((value, tuple(members)) for value, members in ordered)
    return Difference(name, frozen, _is_fatal(name, list(groups)))


def _is_fatal(name: str, values: Sequence[str]) -> bool:
    if name == "python":
        return len({tuple(version.split(".")[:2]) for version in values}) > 1
    return name in _FATAL


def judge(nodes: Sequence[NodeFacts], *, script: str) -> list[Finding]:
    """Return the findings about differences between nodes, errors first."""
    differences = compare(nodes)
    environment = [difference for difference in differences if difference.name not in _CODE]
    code = [difference for difference in differences if difference.name in _CODE]
    results = [
        _environment(environment, fatal=True),
        _code(code, script),
        _environment(environment, fatal=False),
    ]
    return gravest_first([finding for finding in results if finding is not None])


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
        why="ranks of different versions break each other, often silently" if fatal else "",
        fix=_same(mine) if fatal else "",
    )
    return finding if fatal else replace(finding, severity="warning")


def _same(differences: Sequence[Difference]) -> str:
    # The part after a plus names a build, which an index may not have under that name.
    pip = [
        f"{difference.name}=={difference.usual.split('+')[0]}"
        for difference in differences
        if difference.name in ("torch", "paceline")
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
            " prints the commit"
        ),
        severity="error" if fatal else "warning",
    )


def _where(difference: Difference) -> str:
    total = sum(len(nodes) for _, nodes in difference.groups)
    groups = difference.groups if total <= 4 else difference.groups[:-1]
    rare = [node.words for _, nodes in groups for node in nodes]
    return few(rare, 4)


def judge_clocks(nodes: Sequence[NodeFacts], offsets_s: Mapping[int, float]) -> Finding | None:
    """Return the finding that clocks differ; None if they agree.

    ``offsets_s``: by how much a node's clock is ahead of the head's, by node rank.
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
        fix="timedatectl set-ntp true, there; chronyc tracking shows how far a clock is off",
        severity="warning",
    )


def _ahead(offset_s: float) -> str:
    size_s = abs(offset_s)
    if size_s < 120:
        text = f"{size_s:.1f} s"
    elif size_s < 7200:
        text = f"{size_s / 60:.0f} min"
    else:
        text = f"{size_s / 3600:.1f} h"
    return f"{text} {'ahead of' if offset_s > 0 else 'behind'}"


def judge_folder(
    nodes: Sequence[NodeFacts],  # the head first
    sees_folder: Mapping[int, bool],  # a node sees the head's file in the folder, by node rank
    *,
    folder: str,
) -> Finding | None:
    """Return the finding that nodes do not see the head's run folder; None if all see it."""
    without_folder = [node.words for node in nodes if not sees_folder.get(node.node, True)]
    if not without_folder:
        return None
    whom = few(without_folder, 4)
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
