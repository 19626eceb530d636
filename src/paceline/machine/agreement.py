"""Decide whether ranks hold the same parameters, optimizer state and settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import Finding
from paceline.machine.fingerprints import Value, are_alike
from paceline.text.wording import has_or_have, named

_FIRST = "first: "
_FEW = 4  # ranks whose settings are quoted


@dataclass(frozen=True)
class Parameters:
    """The parameters of ranks that agree in all of them."""

    ranks: tuple[int, ...]  # the ranks
    names: tuple[str, ...]  # names, ``"0.weight"``, in order
    sums: tuple[int, ...]  # of each, a number that is another one where it differs


def compare(values_by_rank: Mapping[int, Sequence[Value]], *, step: int) -> Finding | None:
    """Return a finding if fingerprints of ranks differ by more than rounding after a step."""
    finding = replicas(groups_of(values_by_rank), step=step)
    if finding is None:
        return None
    name = finding.evidence[0].removeprefix(_FIRST) if finding.evidence else ""
    evidence = [line.replace(" parameters ", " values ") for line in finding.evidence]
    numbers = {
        rank: value.first
        for rank, values in values_by_rank.items()
        for value in values
        if value.name == name and value.is_setting
    }
    if not numbers:
        return replace(finding, evidence=tuple(evidence))
    what = finding.what.partition(", first in")[0].replace("other parameters", f"another {name}")
    pairs = [f"{number:.6g} on rank {rank}" for rank, number in sorted(numbers.items())]
    return replace(
        finding,
        what=what,
        evidence=(f"{name}: {', '.join(pairs[:_FEW])}", *evidence[1:]),
        fix="set it on all ranks alike: from the step, or from a value that is reduced over ranks",
    )


def last_line(
    *,
    checks: int,  # comparisons of ranks
    step: int,  # of the last one
    differs: bool,  # ranks were seen to differ
    loss: str,  # what is known of it
    # to be a mean over rows; False if shown not to be one, None if neither is known
    is_proven: bool | None,
    others: Sequence[str],  # the other parts of the line
    is_other_data: bool = False,  # ranks were seen not to share out one dataset
) -> str:
    """Return what a run has shown about its result, as one line."""
    is_other = differs or is_other_data or is_proven is False
    begin = "not the same result" if is_other else "result"
    if checks and is_proven and not is_other:
        begin = "same result"
    data = ["ranks do not share out one dataset"] if is_other_data else []
    number = "1 check" if checks == 1 else f"{checks} checks"
    agree = f"ranks {'differ' if differs else 'agree'} ({number} to step {step})"
    return f"{begin}: {' · '.join([*([agree] if checks else []), *data, loss, *others])}"


def groups_of(values_by_rank: Mapping[int, Sequence[Value]]) -> list[Parameters]:
    """Return the groups of ranks that are alike up to rounding, that of the first rank first."""
    distinct: dict[str, list[Value]] = {}  # by name, values that are not alike
    members: dict[tuple[tuple[str, ...], tuple[int, ...]], list[int]] = {}
    for rank, values in values_by_rank.items():
        names = tuple(value.name for value in values)
        members.setdefault((names, tuple(_kind(value, distinct) for value in values)), []).append(
            rank
        )
    return [Parameters(tuple(ranks), names, kinds) for (names, kinds), ranks in members.items()]


def _kind(value: Value, distinct: dict[str, list[Value]]) -> int:
    """Return the number of the first value of this name that is like it, which is added if new."""
    known = distinct.setdefault(value.name, [])
    for number, other in enumerate(known):
        if are_alike(value, other):
            return number
    known.append(value)
    return len(known) - 1


def replicas(groups: Sequence[Parameters], *, step: int) -> Finding | None:
    """Return a finding if groups of ranks have different parameters after an optimizer step."""
    if len(groups) < 2:
        return None
    most = max(groups, key=lambda group: (len(group.ranks), -min(group.ranks)))
    apart = sorted(
        (group for group in groups if group is not most), key=lambda group: _first(group, most)
    )
    ranks = sorted(rank for group in apart for rank in group.ranks)
    place = _first(apart[0], most)
    names = most.names or apart[0].names
    evidence = [f"{_FIRST}{names[place]}"] if place < len(names) else []
    differing = sum(a != b for a, b in zip(apart[0].sums, most.sums, strict=False))
    if differing:
        evidence.append(f"{differing} of {len(most.sums)} parameters differ")
    first_name = f", first in {names[place].partition(' [')[0]}" if place < len(names) else ""
    return Finding(
        "replicas-differ",
        f"after step {step} {named(ranks)} {has_or_have(ranks)} other parameters"
        f" than {named(most.ranks)}{first_name}",
        where=named(ranks),
        evidence=tuple(evidence),
        why=(
            "gradients are averaged as if all had the same parameters; from here on they train"
            " different models"
        ),
        fix=(
            "change parameters on all ranks alike: look for code for one rank, a step outside DDP,"
            " or other seeds"
        ),
        severity="warning",
    )


def _first(parameters: Parameters, other: Parameters) -> int:
    """Return the index of the first parameter that differs."""
    entries = zip(parameters.names, parameters.sums, strict=True)
    other_entries = zip(other.names, other.sums, strict=True)
    pairs = enumerate(zip(entries, other_entries, strict=False))
    differing = (place for place, (entry, other_entry) in pairs if entry != other_entry)
    return next(differing, min(len(parameters.sums), len(other.sums)))
