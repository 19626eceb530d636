"""Turn exceptions that no signature matches into candidate faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.diagnose.explain.candidates import Candidate, is_logged_as_warning, quoted_frame
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.lines import shorten
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Raised

LIBRARY = "library-exception"
_WRITING = ("mkdir", "makedirs", "_open_zipfile_writer_file", "save")
_DIGITS = re.compile(r"\d+")
# Errors of files that another process makes, deletes or holds at that moment.
_AT_ONCE = re.compile(
    r"^(?:FileExists|FileNotFound|OS)Error: .*(?:File exists|Directory not empty|Text file busy"
    r"|Stale file handle|\.incomplete\b|\.lock\b)"
)
_TOGETHER = "ranks that do this at the same time disturb each other"
_FIRST = (
    "let one rank do it first: if rank == 0: ..., then dist.barrier(); os.makedirs(...,"
    " exist_ok=True) for a folder"
)
_ORDINARY = "an ordinary exception of the program or its data, not of the distributed set-up"
# Words in the message or the frames of an exception that may be of the set-up after all.
_SETUP = re.compile(
    r"rank|world.?size|parallel|distributed|shard|process|gpu|cuda|device|deepspeed|zero|fsdp|\bddp"
    r"|accelerat|lightning|nccl|gloo|worker|pickl|port\b|host|memory|lock|cache|timed? ?out|429",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# A sentence that says what to do.
_ADVICE = re.compile(
    r"\b(?:please|must|should|try|make sure|ensure|consider|install|need(?:s)? to|ha(?:s|ve) to"
    r"|instead|upgrade|remove|choose|disable|enable|increase|reduce"
    r"|set (?:the|it|`|\w+=)|use (?:the|`|\w+=|\w+\()|pass (?:the|`|\w+=))",
    re.IGNORECASE,
)


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
    name = _name(raised)
    frame = raised.user_frame
    text = f"{raised.type}: {raised.message}" if raised.message else raised.type
    rank = raised.line.rank
    together = _AT_ONCE.search(text) is not None and _is_distributed(scanned)
    alone = len(scanned.ranks) > 1 and _is_of_one_rank(raised, everything)
    why = _TOGETHER if together else _reason(raised)
    where = f" (on rank {rank}{' alone' if alone else ''})" if rank else ""
    return Candidate(
        name,
        _tier(raised, handled=handled),
        raised.line.number,
        shorten(text) + where,
        where=frame.place if frame is not None else "",
        evidence=_evidence(raised),
        why=why if name in ("user-exception", LIBRARY) else "",
        fix=_FIRST if together else _advice(raised, name),
        key="alone" if alone else "",
        source=raised.line.source,
        last=raised.line.number,
        others=_num_others(raised, everything),
    )


def _reason(raised: Raised) -> str:
    """Return what follows from where an exception was raised; empty if that is not certain."""
    if library := _library(raised):
        return f"{library} raised it: the message is what it found"
    frames = [frame.file for frame in raised.frames if not frame.launcher]
    speaks_of_setup = any(_SETUP.search(text) for text in (raised.message, *frames))
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


def _num_others(raised: Raised, everything: Sequence[Raised]) -> int:
    """Return the number of other ranks that raised the same exception."""
    sources = {
        other.line.source
        for other in everything
        if other.line.rank and _without_digits(other) == _without_digits(raised)
    }
    return max(len(sources) - 1, 0)


def _without_digits(raised: Raised) -> tuple[str, str]:
    """Return the type and the message without digits, which ranks have in common."""
    return raised.type, _DIGITS.sub("", raised.message)


def _name(raised: Raised) -> str:
    if raised.type in ("ModuleNotFoundError", "ImportError"):
        return "module-not-found"
    if _is_refused_write(raised):
        return "folder-not-writable"
    if raised.type == "OSError" and "[Errno 22]" in raised.message and _is_loading(raised):
        return "checkpoint-damaged"
    return LIBRARY if _library(raised) else "user-exception"


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


def _is_refused_write(raised: Raised) -> bool:
    """Return whether a folder or file could not be created or written."""
    writing = not raised.frames or raised.frames[-1].function in _WRITING
    return raised.type == "PermissionError" and writing


def _is_loading(raised: Raised) -> bool:
    """Return whether torch.load raised an exception."""
    return any(
        frame.function == "load" and frame.file.endswith("serialization.py")
        for frame in raised.frames
    )


def _evidence(raised: Raised) -> tuple[str, ...]:
    line = raised.line.shown.strip()
    if raised.more:
        line = f"{line} {raised.more}"
    frame = quoted_frame(raised.user_frame) if raised.user_frame else ""
    return tuple(filter(None, (frame, shorten(line))))


def _advice(raised: Raised, name: str) -> str:
    if name == "module-not-found":
        return (
            f"{_installation(raised)} in the environment that runs on every node; which python"
            " shows which one that is"
        )
    if raised.message.startswith("CUDA error"):
        return (
            "CUDA_LAUNCH_BLOCKING=1 shows the call; compute-sanitizer python script.py shows the"
            " kernel"
        )
    if name == "folder-not-writable":
        return "write to a folder that the job may write to; as a test: touch FOLDER/x on the node"
    if name == "checkpoint-damaged":
        return "ls -l FILE: a file that is cut has fewer bytes than the others; take one before it"
    said = {"message": _SENTENCE.split(raised.message), "text after it": _prose(raised)}
    for whose, texts in said.items():
        sentences = [text for text in texts if _ADVICE.search(text)]
        if sentences:
            return f"as the {whose} says: {shorten(' '.join(sentences))}"
    if raised.user_frame is not None:
        return f"look at {raised.user_frame.place}"
    return "look at the traceback above this line in the full output"


def _prose(raised: Raised) -> list[str]:
    """Return the lines after a message that are sentences."""
    return [text for text in raised.rest if text[:1].isupper() and text.endswith((".", "!", "`"))]


def _installation(raised: Raised) -> str:
    """Return the command that installs the module which an exception names."""
    module = raised.message.partition("'")[2].partition("'")[0].partition(".")[0]
    if module and "No module named" in raised.message:
        return f"pip install {module}"
    return "pip list"
