"""Order candidates, likeliest first, and turn them into findings. Pure.

The candidate in the higher tier precedes (see ``signatures.tier``); within a tier, the earlier line
precedes. ``pairs`` has the exceptions. Findings after the first are consequences or alternatives,
and their severity says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from paceline.diagnose.explain.answer import Answer
from paceline.diagnose.explain.candidates import Candidate, exceptions, known, unclear
from paceline.diagnose.explain.inference import infer
from paceline.diagnose.explain.pairs import explaining_first
from paceline.diagnose.explain.scan import Scanned
from paceline.errors import Finding
from paceline.signatures.lines import shorten
from paceline.signatures.tier import Tier

_UNCERTAIN = ("cause-unknown", "launcher-summary-only", "peer-rank-died")
# True only if no other finding precedes it.
_ELSEWHERE = re.compile(
    r"; (?:the error itself|its own (?:error|words)|the line that names it) (?:is|are) not in"
    r" (?:this text|it)$"
)
_ALSO = "Also in the text:"
_SURVIVED = "Earlier, and training continued after it:"
_MAX_FINDINGS = 12
_TAIL = 8


def judge_scanned(scanned: Scanned) -> Answer:
    """Return the findings of a scanned text."""
    reported = _reported(scanned)
    candidates = infer(scanned, [*known(scanned), *exceptions(scanned)])
    # The final report already covers earlier lines.
    candidates = [each for each in candidates if each.number > scanned.told_until]
    if not any(each.tier >= Tier.VICTIM for each in candidates) and scanned.told_until < 0:
        ends = [each.number for each in candidates if not each.survived]
        before = min(ends, default=scanned.num_lines + 1)
        candidates += [each for each in (unclear(scanned, before),) if each is not None]
    ordered = _ordered(candidates)
    found = _findings(ordered)
    if found:
        found[0] = replace(
            found[0], why="; ".join(filter(None, (found[0].why, _other_framework(scanned))))
        )
    found = _merged(reported, found)
    if not found:
        return Answer((_nothing(scanned),))
    counts = {each.name: each.count for each in ordered}
    tail = _tail(scanned, ordered) if found[0].name in _UNCERTAIN else ()
    return Answer(
        tuple(found[:_MAX_FINDINGS]), counts=counts, tail=tail, headings=_headings(ordered)
    )


def _other_framework(scanned: Scanned) -> str:
    """Return a note about the framework of the text if it is not torch; else an empty string."""
    notes = scanned.of("other-framework")
    texts = [frame.file for raised in scanned.tracebacks.raised for frame in raised.frames]
    texts += [match.line.text for match in scanned.matches]
    if not notes or any("torch" in text.lower() for text in texts):
        return ""
    name = "JAX" if "jax" in notes[0].groups else "TensorFlow"
    return f"this is a log of {name}: the cause is named, but the advice is for PyTorch"


def _headings(ordered: Sequence[Candidate]) -> dict[str, str]:
    """Return the headings for candidates that do not follow from the first one."""
    headings = {}
    for each in ordered[1:]:
        if each.survived:
            headings[each.name] = _SURVIVED
        elif each.number < ordered[0].number and each.tier >= Tier.TIMEOUT:
            headings[each.name] = _ALSO
    return headings


def _reported(scanned: Scanned) -> list[Finding]:
    """Return the findings that paceline printed, without repeats: the final report, then errors."""
    first: dict[str, Finding] = {}
    account = max(
        (number for number, _ in scanned.reported if number <= scanned.told_until), default=-1
    )
    for _, finding in sorted(
        scanned.reported,
        key=lambda each: (each[0] != account, each[1].severity != "error", each[0]),
    ):
        first.setdefault(finding.name, finding)
    return list(first.values())


def _merged(reported: Sequence[Finding], found: Sequence[Finding]) -> list[Finding]:
    names = {finding.name for finding in reported}
    rest = [finding for finding in found if finding.name not in names]
    if reported and (
        reported[0].severity == "error" or not any(each.name not in _UNCERTAIN for each in rest)
    ):
        return [*reported, *(_consequence(each) for each in rest)]
    return [*rest, *reported]


def _ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return one candidate for each name, likeliest first."""
    best: dict[str, Candidate] = {}
    for each in sorted(candidates, key=lambda each: (each.tier.value, each.number)):
        kept = best.setdefault(each.name, each)
        if kept is not each:
            best[each.name] = replace(
                kept, count=kept.count + (each.count if each.key != kept.key else 0)
            )
    return explaining_first(list(best.values()))


def _findings(ordered: Sequence[Candidate]) -> list[Finding]:
    found = []
    for place, each in enumerate(ordered):
        found.append(
            Finding(
                each.name,
                each.what + _others(each) if place == 0 else _ELSEWHERE.sub("", each.what),
                where=each.where,
                evidence=each.evidence,
                why=each.why,
                fix=each.fix,
                severity=each.severity if place == 0 else _severity_behind(each),
            )
        )
    return found


def _severity_behind(candidate: Candidate) -> str:
    """Return the severity of a candidate that is not the first."""
    return "warning" if candidate.tier >= Tier.EXCEPTION else "hint"


def _others(candidate: Candidate) -> str:
    """Return how many other ranks have the same fault, as text."""
    if candidate.others == 0:
        return ""
    return f"; the same on {candidate.others} other rank{'s' if candidate.others > 1 else ''}"


def _consequence(finding: Finding) -> Finding:
    return replace(finding, what=_ELSEWHERE.sub("", finding.what), severity="hint")


def _nothing(scanned: Scanned) -> Finding:
    remarks = scanned.of("remark")
    if not scanned.num_lines:
        return Finding(
            "no-error-in-log",
            "the text is empty",
            fix="give the whole output: ... 2>&1 | tee run.log",
            severity="hint",
        )
    evidence = tuple(shorten(match.line.body) for match in remarks[:2])
    return Finding(
        "no-error-in-log",
        "the text has no error" + (", only harmless warnings" if remarks else ""),
        evidence=evidence,
        fix="if the run hangs: paceline run says where; or py-spy dump --pid PID on every rank",
        severity="hint",
    )


def _tail(scanned: Scanned, ordered: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the last lines of the first rank that failed."""
    source = ordered[0].source if ordered else ""
    lines = [line.shown for line in scanned.tails.get(source, ())]
    return tuple(shorten(line) for line in lines[-_TAIL:] if line.strip())
