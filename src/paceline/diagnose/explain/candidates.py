"""Turn the matches of a text into candidate faults, each with its tier. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.lines import Line, shorten
from paceline.signatures.signature import fill
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Raised, Stack, TracebackFrame

_MAX_EVIDENCE = 3
_CRASHES = ("rank-segfault", "rank-died-signal", "illegal-memory-access")
_CRASH_REACH = 400  # lines between the report of a crash and the stack that faulthandler prints
# A level below ERROR in a logger's line. NCCL uses WARN for errors, because it has no other level
# for them.
_WARNING = re.compile(
    r"^(?!.{0,80}?\b(?:ERROR|CRITICAL|FATAL|NCCL)\b|\S+:\d+:\d+ \[)"
    r".{0,80}?(?<![\w/])(?:WARN|WARNING|INFO|DEBUG)(?![\w/])"
    r"|(?:^|[: ])(?:\[[WI]\d* ?[\d:. ]*\w+\.(?:cpp|cc|h|hpp):\d+\]|[WI]\d{4} \d\d:\d\d:\d\d)"
)
_MAX_COMPARED = 64  # matches of a fault among which the richest is chosen
_REACH = 12  # maximum lines of an exception's message


@dataclass(frozen=True)
class Candidate:
    """A fault that may explain the text."""

    name: str  # name of the finding
    tier: Tier  # how directly the text points to the cause
    number: int  # line number of the first occurrence
    what: str  # the fault in one sentence
    where: str = ""  # the place, empty if unknown
    evidence: tuple[str, ...] = ()  # quoted lines
    why: str = ""  # why it matters
    fix: str = ""  # a line to paste, or what to change
    advice: str = ""  # where inferred.toml has ``why`` and ``fix``
    count: int = 1  # number of lines that mention it
    key: str = ""  # key of the signature
    source: str = ""  # source of the line, such as a rank's label
    last: int = 1 << 62  # line number of the last occurrence; the default means unknown
    severity: str = "error"  # severity if it ranks first
    survived: bool = False  # whether training continued after it
    others: str = ""  # how many other ranks have the same fault, as text


def changed(
    candidates: Iterable[Candidate],
    change: Callable[[Candidate], Candidate],
    *,
    name: str | None = None,
    key: str | None = None,
) -> list[Candidate]:
    """Apply a change to the candidates with this name and this key; None stands for any."""
    return [
        change(candidate)
        if name in (None, candidate.name) and key in (None, candidate.key)
        else candidate
        for candidate in candidates
    ]


def place_of(line: Line, raised: Raised | Stack | None) -> str:
    """Return the user's own frame, the rank or the host, depending on what the text shows."""
    if raised is not None and raised.user_frame is not None:
        return raised.user_frame.place
    if line.rank:
        return line.worker + (f" on {line.host}" if line.host else "")
    return line.host


def matched_faults(scanned: Scanned) -> list[Candidate]:
    """Return a candidate for each fault that a signature matched."""
    groups: dict[tuple[str, Tier, str], list[Match]] = {}
    for match in scanned.matches:
        signature = match.signature
        if signature.name and signature.tier is not Tier.REMARK:
            groups.setdefault((signature.name, _tier(match), signature.key), []).append(match)
    return [_candidate(matches, tier, scanned) for (_, tier, _), matches in groups.items()]


def _tier(match: Match) -> Tier:
    """Return a signature's tier; a line logged as a warning gets a low one."""
    signature = match.signature
    if signature.tier < Tier.COARSE or signature.in_warning:
        return signature.tier
    return Tier.WARNED if is_logged_as_warning(match.line) else signature.tier


def is_logged_as_warning(line: Line) -> bool:
    """Return whether a logger wrote a line as a warning or with a lower level."""
    return _WARNING.search(line.text) is not None


def _candidate(matches: Sequence[Match], tier: Tier, scanned: Scanned) -> Candidate:
    """Return the candidate for the matches of one fault, with the words of the richest one."""
    first = matches[0]
    richest = max(
        matches[:_MAX_COMPARED], key=lambda match: (len(match.groups), -match.line.number)
    )
    signature = richest.signature
    num_examined = len({match.line.number for match in matches})
    num_lines = scanned.counts[signature.key] if signature.key else 0
    return Candidate(
        signature.name,
        tier,
        first.line.number,
        fill(signature.what, richest.groups),
        where=_where(richest, first, scanned),
        evidence=quoted([first.line, *(match.line for match in matches)]),
        why=signature.why,
        fix=fill(signature.fix, richest.groups),
        count=max(num_examined, num_lines),
        key=signature.key,
        source=first.line.source,
        last=max(matches[-1].line.number, scanned.lasts.get(signature.key, 0)),
        others=_others(matches),
    )


def _where(richest: Match, first: Match, scanned: Scanned) -> str:
    """Return the place that the signature names; else that of the first match."""
    template = richest.signature.where
    if template:
        return fill((template,), richest.groups)
    raised = _around(first.line, scanned.tracebacks.raised)
    return place_of(first.line, raised or _crash(first, scanned))


def _crash(match: Match, scanned: Scanned) -> Stack | None:
    """Return the faulthandler stack of the process that ended by a signal or a GPU error."""
    if match.signature.name not in _CRASHES:
        return None
    stacks = [
        stack
        for stack in scanned.tracebacks.stacks
        if abs(stack.line.number - match.line.number) <= _CRASH_REACH
    ]
    same_process = [stack for stack in stacks if stack.line.source == match.line.source]
    return next(iter(same_process or stacks), None)


def _others(matches: Sequence[Match]) -> str:
    """Return the number of other ranks with the fault, by their labels, else by the GPUs named."""
    devices = {match.groups["gpu"] for match in matches if "gpu" in match.groups}
    return others_of([match.line for match in matches]) or num_others(len(devices), "rank")


def others_of(lines: Iterable[Line]) -> str:
    """Return how many ranks, or tasks, lines name besides the first, as text."""
    workers = {line.source: line.worker for line in lines if line.worker}
    return num_others(len(workers), min(workers.values(), default="").partition(" ")[0])


def num_others(number: int, kind: str) -> str:
    """Return the number of others of a kind as text; empty if there are none."""
    return f"{number - 1} other {kind}{'s' if number > 2 else ''}" if number > 1 else ""


def quoted(lines: Iterable[Line], limit: int = _MAX_EVIDENCE) -> tuple[str, ...]:
    """Return a few lines as evidence, one of each kind."""
    quotes: dict[str, str] = {}
    for line in lines:
        text = line.shown.strip() or line.text.strip()
        kind = "".join(letter for letter in text if not letter.isdigit())[:80]
        quotes.setdefault(kind, shorten(text))
        if len(quotes) == limit:
            break
    return tuple(quotes.values())


def _around(line: Line, exceptions: Sequence[Raised]) -> Raised | None:
    """Return the exception whose message contains a line."""
    numbers = range(line.number - _REACH, line.number + 1)
    before = [
        raised
        for raised in exceptions
        if raised.line.source == line.source and raised.line.number in numbers
    ]
    return before[-1] if before else None


def quoted_frame(frame: TracebackFrame) -> str:
    """Return a frame as Python prints it."""
    function = f", in {frame.function}" if frame.function else ""
    return f'File "{frame.file}", line {frame.line}{function}'
