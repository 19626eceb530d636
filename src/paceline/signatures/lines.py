"""Parse one line of a log: remove colours and boxes, read and remove its labels. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.signatures.languages import to_english

LIMIT_CHARACTERS = 300  # of a displayed line

_COLOURS = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b.?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]+")
_BOX = re.compile(r"^[│┃║|] ?|\s*[│┃║]\s*$|[╭╮╰╯─━═]{3,}")

# Prefixes that launchers, schedulers and log collectors add to a line. All are removed in turn,
# until no label is left.
_LABELS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s{0,2}\[(?:PG [^\]]*)?[Rr]ank[ :]*(?P<rank>\d{1,6})\]:? ?",  # torch, Lightning
        r"\s{0,2}\[[a-z_]{0,12}[ :_-]*(?P<local>\d{1,6})\]:? ?",  # torchrun --tee: [default0]:, local ranks
        r"\[\d+,(?:mpirank:)?(?P<rank>\d{1,6})(?:,[\w-]+)?\]<std(?:err|out|diag)>: ?",  # mpirun --tag-output
        (  # Ray
            r"\((?:[\w.<> -]{0,60}?)\s?pid=(?P<pid>\d+)(?:,"
            r" ip=(?P<host>[\w.:-]+))?\)\s?(?:\[repeated [^\]]*\] ?)?"
        ),
        r"(?P<rank>\d{1,5}): ",  # srun --label
        (  # times
            r"\[?\d{4}[-/]\d\d[-/]\d\d[T ,]+\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?["
            r" :|,-]{0,3}"
        ),
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DP\d+ )?(?:PP\d+ )?TP(?P<local>\d+)(?: EP\d+)?\] ?",  # SGLang
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]+:\d+\] ?)?",  # vLLM
        r"\[[\w./]+\.py:\d+\] ",
        r"\[\d\d:\d\d:\d\d\] ?",
        r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d (?P<host>[\w.-]+) (?:[\w./-]+(?:\[\d+\])?: ?)?",  # syslog
        r"\[ *\d+\.\d{6}\] ",  # dmesg
        r"\[?(?:pod|container)/[^\]\s]+\]? ",
        r"(?P<host>[\w.-]{1,60}?) +\| (?! )?",  # docker compose
        # pdsh, DeepSpeed
        (
            r"(?P<host>(?!c10d|cuda|v\d|mlx|[\w.]+\.error:)[a-z][a-z-]*[a-z0-9.-]*\d[a-z0-9.-]*):"
            r" (?!error:)"
        ),
        r"wandb: ",
        r"(?P<glog>\[[WEIF]\d* ?[\d:. ]*\w+\.(?:cpp|cc|h|hpp|cu):\d+\]) ?",
    )
)
_MAX_LABELS = 6


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes:
        number: Line number, counted from 0.
        text: The whole line without colours.
        body: The line without its labels.
        source: The writer by its labels: rank, host, process; empty if unknown.
        rank: The rank in a label.
        host: The host in a label.
        original: ``body`` before its translation into English; empty without a translation.
    """

    number: int
    text: str
    body: str
    source: str = ""
    rank: str = ""
    host: str = ""
    original: str = ""

    @property
    def shown(self) -> str:
        """The body in its original language."""
        return self.original or self.body


def parse(raw: str, number: int = 0) -> Line:
    """Parse a line into its labels and its body."""
    text = (
        _CONTROL.sub("", _COLOURS.sub("", raw)).rstrip() if not raw.isprintable() else raw.rstrip()
    )
    body = _BOX.sub("", text).rstrip() if text[:1] in "│┃║╭╰|" else text
    labels: dict[str, str] = {}
    for _ in range(_MAX_LABELS):
        found = next((match for label in _LABELS if (match := label.match(body)) is not None), None)
        if found is None or not found.end():
            break
        labels = {key: value for key, value in found.groupdict().items() if value} | labels
        body = body[found.end() :]
    rank, host, pid = (labels.get(key, "") for key in ("rank", "host", "pid"))
    rank = rank or labels.get("local", "")
    source = "/".join(filter(None, (host, pid, rank)))
    english = to_english(body)
    if english == body:
        return Line(number, text, body, source=source, rank=rank, host=host)
    text = text.removesuffix(body) + english
    return Line(number, text, english, source=source, rank=rank, host=host, original=body)


def shorten(text: str, around: int = 0) -> str:
    """Shorten a line to ``LIMIT_CHARACTERS``, keeping the position ``around``."""
    text = text.strip()
    if len(text) <= LIMIT_CHARACTERS:
        return text
    start = max(0, around - LIMIT_CHARACTERS // 3) if around > LIMIT_CHARACTERS * 2 // 3 else 0
    piece = text[start : start + LIMIT_CHARACTERS - 8]
    return f"{'... ' if start else ''}{piece}{' ...' if start + len(piece) < len(text) else ''}"
