"""Turn matches and exceptions of a text into candidate faults, each with its tier. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.lines import Line, shorten
from paceline.signatures.signature import fill
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Frame, Raised, Stack

_MAX_EVIDENCE = 3
_WRITING = ("mkdir", "makedirs", "_open_zipfile_writer_file", "save")
_DIGITS = re.compile(r"\d+")
_ORDINARY = "an ordinary exception of the program or its data, not of the distributed set-up"
_CRASHES = ("rank-segfault", "rank-died-signal", "illegal-memory-access")
_CRASH_REACH = 400  # lines between the report of a crash and the stack that faulthandler prints
# The level in a logger's line. NCCL uses WARN for errors, because it has no other level for them.
_MILD = re.compile(
    r"^(?!.{0,80}?\b(?:ERROR|CRITICAL|FATAL|NCCL)\b|\S+:\d+:\d+ \[)"
    r".{0,80}?(?<![\w/])(?:WARN|WARNING|INFO|DEBUG)(?![\w/])"
    r"|(?:^|[: ])(?:\[[WI]\d* ?[\d:. ]*\w+\.(?:cpp|cc|h|hpp):\d+\]|[WI]\d{4} \d\d:\d\d:\d\d)"
)
_REACH = 12  # maximum lines of an exception's message


@dataclass(frozen=True)
class Candidate:
    """A fault that may explain the text.

    Attributes:
        name: Name of the finding.
        tier: How directly the text points to the cause.
        number: Line number of the first occurrence.
        what: The fault in one sentence.
        where: The place, empty if unknown.
        evidence: Quoted lines.
        why: Why it matters.
        fix: A line to paste, or what to change.
        count: Number of lines that mention it.
        key: Key of the signature.
        source: Source of the line, such as a rank's label.
        last: Line number of the last occurrence; the default means unknown.
        severity: Severity if it ranks first.
        survived: Whether training continued after it.
        others: Number of other ranks with the same fault.
    """

    name: str
    tier: Tier
    number: int
    what: str
    where: str = ""
    evidence: tuple[str, ...] = ()
    why: str = ""
    fix: str = ""
    count: int = 1
    key: str = ""
    source: str = ""
    last: int = 1 << 62
    severity: str = "error"
    survived: bool = False
    others: int = 0


def place_of(line: Line, raised: Raised | Stack | None) -> str:
    """Return the user's own frame, the rank or the host, depending on what the text shows."""
    if raised is not None and raised.user_frame is not None:
        return raised.user_frame.place
    if line.rank:
        return f"rank {line.rank}" + (f" on {line.host}" if line.host else "")
    return line.host


def known(scanned: Scanned) -> list[Candidate]:
    """Return a candidate for each fault that a signature matched."""
    groups: dict[tuple[str, Tier, str], list[Match]] = {}
    for match in scanned.matches:
        signature = match.signature
        if signature.name and signature.tier is not Tier.REMARK:
            groups.setdefault((signature.name, _tier(match), signature.key), []).append(match)
    return [
        replace(_candidate(matches, scanned), tier=tier) for (_, tier, _), matches in groups.items()
    ]


def _tier(match: Match) -> Tier:
    """Return a signature's tier; a line logged as a warning gets a low one."""
    signature = match.signature
    mild = (
        signature.tier >= Tier.COARSE and not signature.in_warning and _MILD.search(match.line.text)
    )
    return Tier.WARNED if mild else signature.tier


def _candidate(matches: Sequence[Match], scanned: Scanned) -> Candidate:
    first = matches[0]
    rich = max(matches[:64], key=lambda match: (len(match.groups), -match.line.number))
    signature = rich.signature
    raised = _around(first.line, scanned.tracebacks.raised)
    return Candidate(
        signature.name,
        signature.tier,
        first.line.number,
        fill(signature.what, rich.groups),
        where=_where(rich, first.line, raised or _crash(first, scanned)),
        evidence=quoted([first.line, *(match.line for match in matches)]),
        why=signature.why,
        fix=fill(signature.fix, rich.groups),
        count=max(
            len({match.line.number for match in matches}),
            scanned.counts[signature.key] if signature.key else 0,
        ),
        key=signature.key,
        source=first.line.source,
        last=max(matches[-1].line.number, scanned.lasts.get(signature.key, 0)),
        others=_num_others(matches),
    )


def _where(match: Match, line: Line, shown: Raised | Stack | None) -> str:
    if match.signature.where:
        return fill((match.signature.where,), match.groups)
    return place_of(line, shown)


def _crash(match: Match, scanned: Scanned) -> Stack | None:
    """Return the faulthandler stack of the process that ended by a signal or a GPU error."""
    if match.signature.name not in _CRASHES:
        return None
    stacks = [
        each
        for each in scanned.tracebacks.stacks
        if abs(each.line.number - match.line.number) <= _CRASH_REACH
    ]
    own = [each for each in stacks if each.line.source == match.line.source]
    return next(iter(own or stacks), None)


def _num_others(matches: Sequence[Match]) -> int:
    """Return the number of other ranks with the fault, by their labels, else by the GPUs named."""
    labelled = {match.line.source for match in matches if match.line.rank}
    devices = {match.groups["gpu"] for match in matches if "gpu" in match.groups}
    return max(len(labelled or devices) - 1, 0)


def quoted(lines: Iterable[Line], limit: int = _MAX_EVIDENCE) -> tuple[str, ...]:
    """Return a few lines as evidence, one of each kind."""
    shown: dict[str, str] = {}
    for line in lines:
        text = line.shown.strip() or line.text.strip()
        kind = "".join(letter for letter in text if not letter.isdigit())[:80]
        shown.setdefault(kind, shorten(text))
        if len(shown) == limit:
            break
    return tuple(shown.values())


def _around(line: Line, raised: Sequence[Raised]) -> Raised | None:
    """Return the exception whose message contains a line."""
    before = [
        each
        for each in raised
        if each.line.source == line.source and 0 <= line.number - each.line.number <= _REACH
    ]
    return before[-1] if before else None


def claimed(raised: Raised, candidates: Sequence[Match]) -> bool:
    """Return whether a signature already explains this exception."""
    for match in candidates:
        if (
            match.signature.name in ("", "user-exception")
            or match.line.source != raised.line.source
        ):
            continue
        distance = match.line.number - raised.line.number
        body = match.line.body.strip()
        if distance == 0 or (distance == 1 and raised.message and raised.message in body):
            return True
        if distance == 1 and raised.more and body.startswith(raised.more):
            return True
    return False


def exceptions(scanned: Scanned) -> list[Candidate]:
    """Return a candidate for each exception that no signature matches."""
    every = scanned.tracebacks.raised
    rest = [each for each in every if not claimed(each, _near(scanned, each))]
    handled = {id(each) for each in _handled(every)}
    real = [
        each
        for each in rest
        if not each.wrapper and not each.control_flow and each.type != "KeyboardInterrupt"
    ]
    wrapped = [each for each in rest if each.wrapper and "Caught" in each.message]
    found = [_exception(each, every, scanned, handled=id(each) in handled) for each in real]
    return found or [_exception(each, every, scanned) for each in wrapped]


def _handled(every: Sequence[Raised]) -> list[Raised]:
    """Return the exceptions whose handler called a function that failed: the fallback failed.

    If the handler itself failed, for example during cleanup, the first exception says more.
    """
    last: dict[str, Raised] = {}
    handled = []
    for each in every:
        before = last.get(each.line.source)
        if each.chained == "context" and before is not None and _called(each, before):
            handled.append(before)
        last[each.line.source] = each
    return handled


def _called(later: Raised, before: Raised) -> bool:
    """Return whether the handler called the user's function that failed later.

    The handled traceback begins in the handler's function.
    """
    frame = later.user_frame
    return frame is not None and bool(before.frames) and frame.function != before.frames[0].function


def _near(scanned: Scanned, raised: Raised) -> list[Match]:
    return [match for match in scanned.matches if 0 <= match.line.number - raised.line.number <= 1]


def _exception(
    raised: Raised, every: Sequence[Raised], scanned: Scanned, *, handled: bool = False
) -> Candidate:
    frame = raised.user_frame
    text = f"{raised.type}: {raised.message}" if raised.message else raised.type
    rank = raised.line.rank
    alone = (
        bool(rank)
        and len(scanned.ranks) > 1
        and not any(each.type == raised.type and each.line.rank != rank for each in every)
    )
    same = {
        _same(each) for each in every if each.line.rank and _same(each)[:2] == _same(raised)[:2]
    }
    name = _name_of(raised)
    on_rank = f" (on rank {rank}{' alone' * alone})" if rank else ""
    return Candidate(
        name,
        _tier_of(raised, handled=handled),
        raised.line.number,
        shorten(text) + on_rank,
        where=frame.place if frame is not None else "",
        evidence=_evidence(raised),
        why=_ORDINARY if name == "user-exception" else "",
        fix=_advice(raised, name),
        key="alone" if alone else "",
        source=raised.line.source,
        last=raised.line.number,
        others=max(len(same) - 1, 0),
    )


def _name_of(raised: Raised) -> str:
    if raised.type in ("ModuleNotFoundError", "ImportError"):
        return "module-not-found"
    if _refused(raised):
        return "folder-not-writable"
    return "user-exception"


def _tier_of(raised: Raised, *, handled: bool) -> Tier:
    """Return the tier of an exception that no signature matches."""
    if not raised.shown and _MILD.search(raised.line.text):
        return Tier.WARNED
    if not raised.anchored:
        return Tier.MENTIONED_EXCEPTION
    # Often the launcher raised such an exception.
    libraries_only = bool(raised.frames) and raised.user_frame is None
    if handled or libraries_only or not raised.shown:
        return Tier.DOUBTFUL_EXCEPTION
    return Tier.EXCEPTION


def _same(raised: Raised) -> tuple[str, str, str]:
    """Return the exception without digits, which ranks have in common, and the source."""
    return raised.type, _DIGITS.sub("", raised.message), raised.line.source


def _refused(raised: Raised) -> bool:
    """Return whether a folder or file could not be created or written."""
    writing = not raised.frames or raised.frames[-1].function in _WRITING
    return raised.type == "PermissionError" and writing


def _evidence(raised: Raised) -> tuple[str, ...]:
    frame = raised.user_frame
    place = _quote(frame) if frame else ""
    line = raised.line.shown.strip()
    if raised.more:
        line = f"{line} {raised.more}"
    return tuple(filter(None, (place, shorten(line))))


def _advice(raised: Raised, name: str) -> str:
    if name == "module-not-found":
        module = raised.message.partition("'")[2].partition("'")[0].partition(".")[0]
        command = (
            f"pip install {module}"
            if module and "No module named" in raised.message
            else "pip list"
        )
        return (
            f"{command} in the environment that runs on every node; which python tells which one"
            " that is"
        )
    if raised.message.startswith("CUDA error"):
        return (
            "CUDA_LAUNCH_BLOCKING=1 shows the call; compute-sanitizer python script.py shows the"
            " kernel"
        )
    if name == "folder-not-writable":
        return "write to a folder that the job may write: touch FOLDER/x on the node tells"
    frame = raised.user_frame
    return (
        f"look at {frame.place}"
        if frame is not None
        else "look at the traceback above this line in the full output"
    )


def unclear(scanned: Scanned, before: int) -> Candidate | None:
    """Return a candidate for error lines that nothing else explains; None without such lines.

    Args:
        scanned: The scanned text.
        before: Line number from which all errors are consequences.
    """
    well = [*scanned.of("progress"), *scanned.of("success")]
    # Training continued after errors before this line.
    going = max((match.line.number for match in well), default=-1)
    errors = [line for line in scanned.errors if going < line.number < before]
    if errors:
        return _unknown_error(errors, scanned.tracebacks.cut)
    return _broken_off(scanned) if scanned.tracebacks.cut else None


def _unknown_error(errors: Sequence[Line], cut: Sequence[Frame]) -> Candidate:
    own = [frame for frame in cut if frame.user]
    return Candidate(
        "cause-unknown",
        Tier.UNEXPLAINED,
        errors[0].number,
        "the text speaks of an error whose cause is not known here",
        where=own[-1].place if own else place_of(errors[0], None),
        evidence=quoted(errors),
        fix="look at the lines before the first of these in the full output of that rank",
        source=errors[0].source,
    )


def _broken_off(scanned: Scanned) -> Candidate:
    """Return the candidate for a text that ends inside a traceback."""
    cut = scanned.tracebacks.cut
    own = [frame for frame in cut if frame.user]
    if not own and all(frame.launcher for frame in cut):
        return Candidate(
            "launcher-summary-only",
            Tier.SUMMARY,
            scanned.num_lines,
            "the text breaks off in a traceback of the launcher; the error itself is not in it",
            evidence=(_quote(cut[-1]),),
            fix="look at the lines after it, and at the output of the ranks themselves",
        )
    last = next(iter(scanned.tails.values()))[-1]
    return Candidate(
        "cause-unknown",
        Tier.UNEXPLAINED,
        last.number,
        "the text breaks off inside a traceback",
        where=own[-1].place if own else place_of(last, None),
        evidence=(_quote(cut[-1]),),
        fix="look at the end of this traceback in the full output: its last line names the error",
        source=last.source,
    )


def _quote(frame: Frame) -> str:
    return f'File "{frame.file}", line {frame.line}' + (
        f", in {frame.function}" if frame.function else ""
    )
