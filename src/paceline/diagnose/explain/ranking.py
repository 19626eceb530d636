"""Order candidates, likeliest first, and turn them into findings. Pure.

The candidate in the higher tier precedes (see ``signatures.tier``); within a tier, the earlier line
precedes. ``pairs`` has the exceptions. Findings after the first are consequences or alternatives,
and their severity says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from paceline.diagnose.explain.answer import ALSO, Answer, noticed_before
from paceline.diagnose.explain.candidates import (
    Candidate,
    matched_faults,
    place_of,
    quoted,
    quoted_frame,
)
from paceline.diagnose.explain.exceptions import unmatched_exceptions
from paceline.diagnose.explain.inference import infer
from paceline.diagnose.explain.pairs import explaining_first
from paceline.diagnose.explain.scan import Scanned
from paceline.diagnose.explain.survived import new_steps
from paceline.errors import Finding
from paceline.signatures.lines import Line, shorten
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import TracebackFrame


def unexplained_error(
    scanned: Scanned,  # the scanned text
    before: int,  # line number from which all errors are consequences
) -> Candidate | None:
    """Return a candidate for error lines that nothing else explains; None without such lines."""
    healthy = [step.line for step in new_steps(scanned)]
    healthy += [match.line for match in scanned.of("success")]
    # Training continued after errors before this line.
    last_healthy = max((line.number for line in healthy), default=-1)
    errors = [line for line in scanned.errors if last_healthy < line.number < before]
    if errors:
        return _unknown_error(errors, scanned.tracebacks.cut)
    return _truncated(scanned) if scanned.tracebacks.cut else None


def _unknown_error(errors: Sequence[Line], cut: Sequence[TracebackFrame]) -> Candidate:
    return Candidate(
        "cause-unknown",
        Tier.UNEXPLAINED,
        errors[0].number,
        "the text speaks of an error whose cause is not known here",
        where=_place(errors[0], cut),
        evidence=quoted(errors),
        fix="look at the lines before the first of these in the full output of that rank",
        source=errors[0].source,
    )


def _truncated(scanned: Scanned) -> Candidate:
    """Return the candidate for a text that ends inside a traceback."""
    cut = scanned.tracebacks.cut
    if all(frame.launcher and not frame.user for frame in cut):
        return Candidate(
            "launcher-summary-only",
            Tier.SUMMARY,
            scanned.num_lines,
            "the text breaks off in a traceback of the launcher; the error itself is not in it",
            evidence=(quoted_frame(cut[-1]),),
            fix="look at the lines after it, and at the output of the ranks themselves",
        )
    last = next(iter(scanned.tails.values()))[-1]
    return Candidate(
        "cause-unknown",
        Tier.UNEXPLAINED,
        last.number,
        "the text breaks off inside a traceback",
        where=_place(last, cut),
        evidence=(quoted_frame(cut[-1]),),
        fix="look at the end of this traceback in the full output: its last line names the error",
        source=last.source,
    )


def _place(line: Line, cut: Sequence[TracebackFrame]) -> str:
    """Return the user's last frame in a cut traceback; else the rank or the host of a line."""
    frames = [frame for frame in cut if frame.user]
    return frames[-1].place if frames else place_of(line, None)


_UNCERTAIN = ("cause-unknown", "launcher-summary-only", "peer-rank-died")
# True only if no other finding precedes it.
_ELSEWHERE = re.compile(
    r"; (?:the error itself|its own (?:error|words)|the line that names it) (?:is|are) not in"
    r" (?:this text|it)$"
)
_SURVIVED = "Earlier, and training continued after it:"
_WITHOUT_SIGNATURE = ("", "alone")  # keys of exceptions, and of what several lines show
_MAX_FINDINGS = 12
_TAIL = 8


def judge_scanned(scanned: Scanned) -> Answer:
    """Return the findings of a scanned text."""
    ordered = _ordered(_candidates(scanned))
    findings = _findings(ordered)
    note = _other_framework(scanned)
    if findings and note:
        why = "; ".join(filter(None, (findings[0].why, note)))
        findings[0] = replace(findings[0], why=why)
    reported = _reported(scanned)
    findings = _merged(reported, findings)
    names = {finding.name for finding in findings}
    of_links = [finding for finding in _of_topology(scanned) if finding.name not in names]
    if not findings:
        return Answer(tuple(of_links) or (_nothing(scanned),))
    return Answer(
        (*findings[:_MAX_FINDINGS], *of_links),
        counts={candidate.name: candidate.count for candidate in ordered},
        tail=_tail(scanned, ordered) if findings[0].name in _UNCERTAIN else (),
        headings=noticed_before([*reported, *of_links]) | _headings(ordered),
    )


def _of_topology(scanned: Scanned) -> list[Finding]:
    """Return the findings of doctor about a matrix of ``nvidia-smi topo -m`` in the text."""
    lines = [match.line.text for match in scanned.of("topology")]
    if not lines:
        return []
    from paceline.diagnose import doctor  # only now: few logs have one

    return doctor.examine_topology("\n".join(lines), is_log=True).findings


def known_fault(scanned: Scanned) -> Finding | None:
    """Return the likeliest fault if a signature names it; None for any other text."""
    for first in _ordered(_candidates(scanned))[:1]:
        if first.key not in _WITHOUT_SIGNATURE and first.tier >= Tier.BROAD:
            return _finding(first, first.what, first.severity)
    return None


def _candidates(scanned: Scanned) -> list[Candidate]:
    """Return the faults that the text shows, except those that paceline's final report covers."""
    candidates = infer(scanned, [*matched_faults(scanned), *unmatched_exceptions(scanned)])
    if scanned.report_end >= 0:
        return [candidate for candidate in candidates if candidate.number > scanned.report_end]
    if any(candidate.tier >= Tier.VICTIM for candidate in candidates):
        return candidates
    ends = [candidate.number for candidate in candidates if not candidate.survived]
    unexplained = unexplained_error(scanned, min(ends, default=scanned.num_lines + 1))
    return candidates if unexplained is None else [*candidates, unexplained]


def _other_framework(scanned: Scanned) -> str:
    """Return a note about the framework of the text if it is not torch; else an empty string."""
    notes = scanned.of("other-framework")
    if not notes:
        return ""
    texts = [frame.file for raised in scanned.tracebacks.raised for frame in raised.frames]
    texts += [match.line.text for match in scanned.matches]
    if any("torch" in text.lower() for text in texts):
        return ""
    name = "JAX" if "jax" in notes[0].groups else "TensorFlow"
    return f"this is a log of {name}: the cause is named, but the advice is for PyTorch"


def _headings(ordered: Sequence[Candidate]) -> dict[str, str]:
    """Return the headings for candidates that do not follow from the first one."""
    headings = {}
    for candidate in ordered[1:]:
        if candidate.survived:
            headings[candidate.name] = _SURVIVED
        elif candidate.number < ordered[0].number and candidate.tier >= Tier.WARNED:
            headings[candidate.name] = ALSO
    return headings


def _reported(scanned: Scanned) -> list[Finding]:
    """Return the findings that paceline printed, without repeats: the final report, then errors."""
    numbers = [number for number, _ in scanned.reported if number <= scanned.report_end]
    final_report = max(numbers, default=-1)

    def order(numbered: tuple[int, Finding]) -> tuple[bool, bool, int]:
        number, finding = numbered
        return number != final_report, finding.severity != "error", number

    first: dict[str, Finding] = {}
    for _, finding in sorted(scanned.reported, key=order):
        first.setdefault(finding.name, finding)
    return list(first.values())


def _merged(reported: Sequence[Finding], inferred: Sequence[Finding]) -> list[Finding]:
    """Return the findings that paceline printed and the inferred ones, the likeliest first."""
    names = {finding.name for finding in reported}
    others = [finding for finding in inferred if finding.name not in names]
    uncertain = all(finding.name in _UNCERTAIN for finding in others)
    severity = reported[0].severity if reported else ""  # a hint explains no failure
    if severity == "error" or (severity == "warning" and uncertain):
        return [*reported, *map(_consequence, others)]
    return [*others, *reported]


def _ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return one candidate for each name, likeliest first."""
    likeliest: dict[str, Candidate] = {}
    by_tier = sorted(candidates, key=lambda candidate: (candidate.tier.value, candidate.number))
    for candidate in by_tier:
        first = likeliest.setdefault(candidate.name, candidate)
        # The counts of one signature include the same lines.
        if candidate.key != first.key:
            likeliest[candidate.name] = replace(first, count=first.count + candidate.count)
    return explaining_first(list(likeliest.values()))


def _findings(ordered: Sequence[Candidate]) -> list[Finding]:
    if not ordered:
        return []
    first, *others = ordered
    return [_finding(first, first.what + _others(first), first.severity), *map(_following, others)]


def _following(candidate: Candidate) -> Finding:
    """Return the finding of a candidate that is not the first."""
    severity = "warning" if candidate.tier >= Tier.EXCEPTION else "hint"
    return _finding(candidate, _ELSEWHERE.sub("", candidate.what), severity)


def _finding(candidate: Candidate, what: str, severity: str) -> Finding:
    return Finding(
        candidate.name,
        what,
        where=candidate.where,
        evidence=candidate.evidence,
        why=candidate.why,
        fix=candidate.fix,
        severity=severity,
    )


def _others(candidate: Candidate) -> str:
    """Return how many other ranks have the same fault, as text."""
    return f"; the same on {candidate.others}" if candidate.others else ""


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
