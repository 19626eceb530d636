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
        # torch, Lightning
        r"\s{0,2}\[(?:PG [^\]]*)?[Rr]ank[ :]*(?P<rank>\d{1,6})\]:? ?",
        # torchrun --tee: [default0]:, local ranks
        r"\s{0,2}\[[a-z_]{0,12}[ :_-]*(?P<local>\d{1,6})\]:? ?",
        # mpirun --tag-output
        r"\[\d+,(?:mpirank:)?(?P<rank>\d{1,6})(?:,[\w-]+)?\]<std(?:err|out|diag)>: ?",
        # Ray
        r"\((?:[\w.<> -]{0,60}?)\s?pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\)\s?"
        r"(?:\[repeated [^\]]*\] ?)?",
        # srun --label
        r"(?P<task>\d{1,5}): ",
        # times
        r"\[?\d{4}[-/]\d\d[-/]\d\d[T ,]+\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
        r"[ :|,-]{0,3}",
        # SGLang
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DP\d+ )?(?:PP\d+ )?TP(?P<local>\d+)(?: EP\d+)?\] ?",
        # vLLM
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]+:\d+\] ?)?",
        r"\[[\w./]+\.py:\d+\] ",
        r"\[\d\d:\d\d:\d\d\] ?",
        # syslog
        r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d (?P<host>[\w.-]+) (?:[\w./-]+(?:\[\d+\])?: ?)?",
        # dmesg
        r"\[ *\d+\.\d{6}\] ",
        r"\[?(?:pod|container)/[^\]\s]+\]? ",
        # docker compose
        r"(?P<host>[\w.-]{1,60}?) +\| (?! )?",
        # pdsh, DeepSpeed
        r"(?=[\w.-]{1,80}: )"
        r"(?P<host>(?!c10d|cuda|v\d|mlx|[\w.]+\.error:)[a-z][a-z-]*[a-z0-9.-]*\d[a-z0-9.-]*):"
        r" (?!error:)",
        r"wandb: ",
        # tqdm, whose bar ends no line
        r"[^|\[\]]{0,80}\d{1,3}%\|[^|]*\| ?[^|\[\]]{1,40}\[[^\]]*\](?=[\[(\w/])",
        r"(?P<glog>\[[WEIF]\d* ?[\d:. ]*\w+\.(?:cpp|cc|h|hpp|cu):\d+\]) ?",
    )
)
_MAX_LABELS = 6


@dataclass(frozen=True)
class Line:
    """A line of a log."""

    number: int  # line number, counted from 0
    text: str  # the whole line without colours
    body: str  # the line without its labels
    source: str = ""  # the writer by its labels: rank, host, process; empty if unknown
    rank: str = ""  # the rank in a label
    host: str = ""  # the host in a label
    original: str = ""  # ``body`` before its translation into English; empty without a translation
    worker: str = ""  # what the label names: a rank, or a task of Slurm, which may hold several

    @property
    def shown(self) -> str:
        """The body in its original language."""
        return self.original or self.body


def parse(raw: str, number: int = 0) -> Line:
    """Parse a line into its labels and its body."""
    if not raw.isprintable():
        raw = _CONTROL.sub("", _COLOURS.sub("", raw))
    text = raw.rstrip()
    body, labels = _without_labels(_BOX.sub("", text).rstrip() if text[:1] in "│┃║╭╰|" else text)
    rank, local, task, host, pid = map(labels.get, ("rank", "local", "task", "host", "pid"))
    rank = rank or local or task or ""
    source = "/".join(filter(None, (host, pid, task if task != rank else "", rank)))
    worker = f"{'task' if rank and rank is task else 'rank'} {rank}" if rank else ""
    english = to_english(body)
    original = "" if english == body else body
    text = text.removesuffix(body) + english if original else text
    return Line(number, text, english, source, rank, host or "", original, worker)


def _without_labels(text: str) -> tuple[str, dict[str, str]]:
    """Return a line without its labels, and the values of the labels; the outermost one counts."""
    labels: dict[str, str] = {}
    for _ in range(_MAX_LABELS):
        matches = (label.match(text) for label in _LABELS)
        first = next((match for match in matches if match is not None), None)
        if first is None or not first.end():
            break
        labels = {name: value for name, value in first.groupdict().items() if value} | labels
        text = text[first.end() :]
    return text, labels


def shorten(text: str, around: int = 0) -> str:
    """Shorten a line to ``LIMIT_CHARACTERS``, keeping the position ``around``."""
    text = text.strip()
    if len(text) <= LIMIT_CHARACTERS:
        return text
    is_near_start = around <= LIMIT_CHARACTERS * 2 // 3
    start = 0 if is_near_start else max(0, around - LIMIT_CHARACTERS // 3)
    end = start + LIMIT_CHARACTERS - 8
    before, after = "... " if start else "", " ..." if end < len(text) else ""
    return f"{before}{text[start:end]}{after}"
