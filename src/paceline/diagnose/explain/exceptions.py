"""Turn exceptions that no signature matches into candidate faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.diagnose.explain.candidates import (
    Candidate,
    is_logged_as_warning,
    others_of,
    quoted_frame,
)
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.libraries import texts_of
from paceline.signatures.lines import shorten
from paceline.signatures.signature import fill
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Raised, TracebackFrame

LIBRARY = "library-exception"
_DIGITS = re.compile(r"\d+")
_OPTION = re.compile(r"\(?\d[.)] ")  # as messages number what can be done
_MAX_ADVICE = 300  # characters of several sentences
_MAX_LINE = 1000  # characters of a line of a message
_ORDINARY = "an ordinary exception of the program or its data, not of the distributed set-up"


def unmatched_exceptions(scanned: Scanned) -> list[Candidate]:
    """Return a candidate for each exception that no signature matches.

    Exceptions that only wrap another one count if there are no others.
    """
    everything = scanned.tracebacks.raised
    unmatched = [
        raised for raised in everything if not _is_matched(raised, _matches_near(scanned, raised))
    ]
    handled = {id(raised) for raised in _handled(everything)}
    candidates = [
        _candidate(raised, everything, scanned, handled=id(raised) in handled)
        for raised in unmatched
        if _is_fault(raised)
    ]
    if candidates:
        return candidates
    return [
        _candidate(raised, everything, scanned, handled=False)
        for raised in unmatched
        if raised.wrapper and "Caught" in raised.message
    ]


def _is_fault(raised: Raised) -> bool:
    """Return whether an exception is more than a wrapper, control flow, or Ctrl-C."""
    return not (raised.wrapper or raised.control_flow or raised.type == "KeyboardInterrupt")


def _matches_near(scanned: Scanned, raised: Raised) -> list[Match]:
    """Return the signatures that matched the line of an exception or the next one."""
    number = raised.line.number
    return [match for match in scanned.matches if match.line.number in (number, number + 1)]


def _is_matched(raised: Raised, matches: Sequence[Match]) -> bool:
    """Return whether a signature already explains this exception."""
    return any(
        _explains(match, raised)
        for match in matches
        if match.signature.name not in ("", "user-exception")
    )


def _explains(match: Match, raised: Raised) -> bool:
    """Return whether a signature matched the text of this exception.

    Its message may continue, or be repeated, on the next line.
    """
    if match.line.source != raised.line.source:
        return False
    if match.line.number == raised.line.number:
        return True
    body = match.line.body.strip()
    is_repeated = bool(raised.message) and raised.message in body
    continues = bool(raised.more) and body.startswith(raised.more)
    return is_repeated or continues


def _handled(everything: Sequence[Raised]) -> list[Raised]:
    """Return the exceptions whose handler called a function that failed: the fallback failed.

    If the handler itself failed, for example during cleanup, the first exception says more.
    """
    last: dict[str, Raised] = {}
    handled = []
    for raised in everything:
        before = last.get(raised.line.source)
        if raised.chained == "context" and before is not None and _called(raised, before):
            handled.append(before)
        last[raised.line.source] = raised
    return handled


def _called(later: Raised, before: Raised) -> bool:
    """Return whether the handler called the user's function that failed later.

    The handled traceback begins in the handler's function.
    """
    frame = later.user_frame
    return frame is not None and bool(before.frames) and frame.function != before.frames[0].function


def _candidate(
    raised: Raised, everything: Sequence[Raised], scanned: Scanned, *, handled: bool
) -> Candidate:
    twins = [other for other in everything if _without_digits(other) == _without_digits(raised)]
    fullest = max(twins, key=lambda other: len(other.frames))  # others may be cut off
    remedy = _remedy(raised, fullest, is_distributed=_is_distributed(scanned))
    frame = raised.user_frame
    error = raised.message or (fullest.frames[-1].code if fullest.frames else "")
    text = f"{raised.type}: {error}" if error else raised.type
    rank = raised.line.rank
    alone = len(scanned.ranks) > 1 and _is_of_one_rank(raised, everything)
    where = f" (on {raised.line.worker}{' alone' if alone else ''})" if rank else ""
    return Candidate(
        remedy["name"],
        _tier(raised, handled=handled),
        raised.line.number,
        shorten(text) + where,
        where=frame.place if frame is not None else "",
        evidence=_evidence(raised),
        why=remedy["why"],
        fix=remedy["fix"],
        key="alone" if alone else "",
        source=raised.line.source,
        last=raised.line.number,
        others=others_of(other.line for other in twins),
    )


def _remedy(raised: Raised, fullest: Raised, *, is_distributed: bool) -> dict[str, str]:
    """Return the name, the reason and the fix of the first row that is about an exception."""
    library = _library(fullest)
    default = LIBRARY if library else "user-exception"
    frame = fullest.frames[-1] if fullest.frames else None
    at = f"{frame.package or 'user'} {frame.file}:{frame.function} {frame.code}" if frame else ""
    lines = (f"{raised.line.body.strip()} {raised.more}".strip(), *raised.rest)
    # a message may consist of data, and the time of the rows grows with its square
    error = "\n".join(line[:_MAX_LINE] for line in lines)
    groups_of_all = _groups(raised if raised.user_frame else fullest, frame) | _advice_in(raised)
    for row in texts_of("exceptions")["row"]:
        match = re.search(row["error"], error, re.IGNORECASE | re.MULTILINE)
        if match is None or (row.get("distributed") and not is_distributed):
            continue
        in_error = {name: text.strip() for name, text in match.groupdict().items() if text}
        groups = {**groups_of_all, **in_error}
        fix = fill(tuple(row["fix"]), groups)
        if not fix or re.search(row.get("at", ""), at) is None:
            continue
        name = row.get("name", default)
        why = fill((row.get("why", ""),), groups)
        may_have_reason = name == default or "why" in row
        if may_have_reason and not why:
            why = _reason(fullest, library)
        return {"name": name, "why": why, "fix": fix}
    return {"name": default, "why": _reason(fullest, library), "fix": ""}


def _groups(raised: Raised, frame: TracebackFrame | None) -> dict[str, str]:
    """Return what the rows may name: the user's place, the library, and the rank."""
    user = raised.user_frame
    groups = {
        "place": user.place if user else "",
        "package": frame.package if frame else "",
        "rank": raised.line.rank,
    }
    return {name: text for name, text in groups.items() if text}


def _advice_in(raised: Raised) -> dict[str, str]:
    """Return the sentences of a message, and of the text after it, that say what to do."""
    message = re.split(r"(?<=[.!?])\s+|\s+(?=\(?\d\) )", raised.message)
    options = [text for text in (*message, *raised.rest) if _OPTION.match(text)]
    after = [text for text in raised.rest if text[:1].isupper() and text.endswith((".", "!", "`"))]
    about_the_fault = [text for text in (*message, *after) if not _speaks(text, "of_logs")]
    advice_by_kind = {}
    for kind in ("instruction", "demand"):
        sentences = [text for text in about_the_fault if _speaks(text, kind)]
        if not sentences:
            continue
        source = "message" if sentences[0] in message else "text after it"
        advice = [shorten(re.sub(_words("before"), "", text)) for text in sentences]
        while len(" ".join(advice)) > _MAX_ADVICE and len(advice) > 1:
            advice.pop()  # a whole sentence
        if len(options) > 1:
            advice = [shorten(text) for text in options]
        advice_by_kind[kind] = f"the {source} says: {' '.join(advice)}"
    return advice_by_kind


def _speaks(text: str, kind: str) -> bool:
    """Return whether a text has words of a kind that ``exceptions.toml`` lists."""
    return re.search(_words(kind), text) is not None


def _words(kind: str) -> str:
    """Return a pattern for the words of a kind."""
    return f"(?i){''.join(texts_of('exceptions')['words'][kind])}"


def _reason(raised: Raised, library: str) -> str:
    """Return what follows from where an exception was raised; empty if that is not certain."""
    if library:
        code = raised.frames[-1].code
        if code and not _speaks(code, "check"):
            return f"it happened inside {library}"
        return f"{library} raised it: the message is what it found"
    frames = [frame.file for frame in raised.frames if not frame.launcher]
    speaks_of_setup = any(_speaks(text, "set_up") for text in (raised.message, *frames))
    return "" if speaks_of_setup else _ORDINARY


def _library(raised: Raised) -> str:
    """Return the training library that raised an exception; empty if none did."""
    return raised.frames[-1].training_library if raised.frames else ""


def _is_distributed(scanned: Scanned) -> bool:
    return bool(scanned.counts["distributed"] or len(scanned.ranks) > 1)


def _is_of_one_rank(raised: Raised, everything: Sequence[Raised]) -> bool:
    """Return whether no other rank raised an exception of this type."""
    ranks = {other.line.rank for other in everything if other.type == raised.type}
    return bool(raised.line.rank) and ranks == {raised.line.rank}


def _without_digits(raised: Raised) -> tuple[str, str]:
    """Return the type and the message without digits, which ranks have in common."""
    return raised.type, _DIGITS.sub("", raised.message)


def _tier(raised: Raised, *, handled: bool) -> Tier:
    if not raised.shown and is_logged_as_warning(raised.line):
        return Tier.WARNED
    if not raised.anchored:
        return Tier.MENTIONED_EXCEPTION  # the name of one, in a message or a summary
    # Often the launcher raised such an exception.
    libraries_only = bool(raised.frames) and raised.user_frame is None
    if handled or libraries_only or not raised.shown:
        return Tier.DOUBTFUL_EXCEPTION
    return Tier.EXCEPTION


def _evidence(raised: Raised) -> tuple[str, ...]:
    line = raised.line.shown.strip()
    if raised.more:
        line = f"{line} {raised.more}"
    frame = quoted_frame(raised.user_frame) if raised.user_frame else ""
    return tuple(filter(None, (frame, shorten(line))))
