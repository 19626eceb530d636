"""Match the lines of a log against the signatures. Pure.

Logs are long and repeat lines with different numbers. The kind of a line is its text without digits
and hexadecimal letters. Lines are examined in full only while their kind is new or has matched.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import itemgetter

from paceline.diagnose.explain import readback
from paceline.errors import Finding
from paceline.signatures.languages import anchors
from paceline.signatures.libraries import signatures
from paceline.signatures.lines import Line, parse
from paceline.signatures.signature import Signature
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Tracebacks

_HEX = b"0123456789abcdefABCDEF"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = re.compile(r"\d+")
_MAX_KINDS = 100_000
_MAX_PER_KIND = 48  # lines of one kind that are examined
_MAX_MATCHING = 400  # the same for a kind that matched
_MAX_AFTER = 4  # lines of progress that are examined after each fault
_MAX_AGAIN = 400  # faults after which they are examined
_MAX_PROGRESS_KINDS = 64
_RECENT = 64  # last lines of progress of a kind that are examined at the end
_MAX_PER_SHAPE = 2000  # the same for lines with the same punctuation around the same keyword
_MAX_MATCHES = 50_000
_TAIL_LINES = 12
_LAST_LINES = 60
_MAX_SOURCES = 256
_MAX_ERRORS = 64
_MAX_PIECES = 400  # lines that one line of JSON may contain
# The keys of a message and of a rank in log records.
_MESSAGE_KEYS = ("msg", "message", "log", "event", "text")
_RANK_KEYS = ("rank", "global_rank", "process_index")
_ESCAPED = re.compile(r"\\n")


@dataclass(frozen=True)
class Match:
    """A signature that matched a line."""

    signature: Signature
    groups: Mapping[str, str]
    line: Line
    start: int = 0


@dataclass
class Scanned:
    """The scanned content of a text."""

    # matched signatures, in the order of the text
    matches: list[Match] = field(default_factory=list)
    tracebacks: Tracebacks = field(default_factory=Tracebacks)  # exceptions and stacks
    counts: Counter[str] = field(default_factory=Counter)  # number of matches by signature key
    # findings that paceline itself printed, with their line numbers
    reported: list[tuple[int, Finding]] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)  # lines that mention any error
    tails: dict[str, deque[Line]] = field(default_factory=dict)  # the last lines of each source
    # the last lines of the text
    last: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    ranks: set[str] = field(default_factory=set)  # ranks in the labels of lines
    num_lines: int = 0  # number of lines that are not blank
    report_end: int = -1  # last line number of paceline's final report, which covers all before it
    # by signature key, the last line number that was not examined
    lasts: dict[str, int] = field(default_factory=dict)

    def of(self, key: str) -> list[Match]:
        """Return the matches of a signature or note, by its key."""
        return [match for match in self.matches if match.signature.key == key]


@dataclass(slots=True)
class _Kind:
    """State of lines that differ only in numbers: what they matched, and what was skipped."""

    allowed: int
    keys: tuple[str, ...] = ()
    skipped: int = 0
    last: int = 0  # the last skipped line
    recent: deque[tuple[int, bytes]] | None = None  # the last lines, if they show progress

    def skip(self, num_lines: int, number: int) -> None:
        """Count skipped lines; ``number`` is the last one's line number."""
        self.skipped += num_lines
        self.last = number

    def remember(self, number: int, raw: bytes) -> None:
        """Keep a skipped line among the last ones, if they show progress."""
        if self.recent is not None:
            self.recent.append((number, raw))


class Scanner:
    """Examines lines of bytes and collects matches, tracebacks and tails."""

    def __init__(self) -> None:
        self.scanned = Scanned()
        self._kinds: dict[int, _Kind] = {}
        self._report = readback.Reader()
        self._telling = _telling()
        self._shapes: Counter[int] = Counter()
        self._silent: deque[tuple[int, bytes]] = deque(maxlen=_TAIL_LINES)
        self._progress: list[_Kind] = []
        self._again = 0
        self._named = 0

    def feed(self, lines: Sequence[bytes]) -> None:
        """Examine lines."""
        if not lines:
            return
        text = b"\n".join(lines)
        keys = text.translate(None, _HEX).split(b"\n")
        attentive = self._attentive
        self.scanned.last.extend(raw for raw in lines[-_LAST_LINES:] if raw)
        if not attentive and self._skip(Counter(keys)):
            self._keep_recent(lines[-_RECENT:], keys[-_RECENT:])
            return
        kinds, scanned = self._kinds, self.scanned
        for raw, key, lower in zip(lines, keys, text.lower().split(b"\n"), strict=True):
            if not raw:
                continue
            scanned.num_lines += 1
            # By its hash, which takes less memory than the text: a collision loses a kind of line.
            kind = kinds.get(hash(key))
            if not attentive and kind is not None and kind.allowed <= 0:
                kind.skip(1, scanned.num_lines)
                kind.remember(scanned.num_lines, raw)
            elif attentive or self._worthwhile(lower, key, kind):
                self._look(raw, hash(key), kind)
                attentive = self._attentive
            else:
                self._silent.append((scanned.num_lines, raw))
                if kind is None:
                    self._learn(hash(key), _Kind(0))

    def _worthwhile(self, lower: bytes, key: bytes, kind: _Kind | None) -> bool:
        """Decide whether to examine a line; lines of one shape are limited to some thousand.

        Such lines differ in a name.
        """
        word = self._telling.search(lower)
        if word is None:
            return False
        if kind is not None and "progress" in kind.keys:
            return True
        shape = hash((word[0], key.translate(None, _LETTERS)))
        self._shapes[shape] += 1
        return self._shapes[shape] <= _MAX_PER_SHAPE

    def _learn(self, key: int, kind: _Kind) -> None:
        if len(self._kinds) >= _MAX_KINDS:
            self._count()
            self._shapes.clear()
        self._kinds[key] = kind

    def _skip(self, keys: Counter[bytes]) -> bool:
        """Count a piece of text without anything new at once; return whether that was possible."""
        kinds = [(self._kinds.get(hash(key)), number) for key, number in keys.items() if key]
        if any(kind is None or kind.allowed > 0 for kind, _ in kinds) or b"" in keys:
            return False
        self.scanned.num_lines += sum(keys.values())
        for kind, number in kinds:
            if kind is not None:
                kind.skip(number, self.scanned.num_lines)
        return True

    def _keep_recent(self, lines: Sequence[bytes], keys: Sequence[bytes]) -> None:
        first = self.scanned.num_lines - len(lines) + 1
        for number, (raw, key) in enumerate(zip(lines, keys, strict=True), first):
            self._kinds[hash(key)].remember(number, raw)

    @property
    def _attentive(self) -> bool:
        """Whether every line may belong to a report or traceback that is being read."""
        return self.scanned.tracebacks.attentive or self._report.open

    def finish(self) -> Scanned:
        """Return the scanned content."""
        self._remember()
        self._count()
        self.scanned.matches.sort(key=lambda match: match.line.number)
        self.scanned.reported = self._report.finish()
        self.scanned.report_end = self._report.report_end
        return self.scanned

    def _count(self) -> None:
        for kind in self._kinds.values():
            for key in kind.keys:
                self.scanned.counts[key] += kind.skipped
                self.scanned.lasts[key] = max(kind.last, self.scanned.lasts.get(key, 0))
        for kind in self._progress:
            for number, raw in kind.recent or ():
                line = parse(raw.decode("utf-8", "replace"), number)
                self._match(line, line.text.lower())
        self._kinds.clear()
        self._progress.clear()

    def _look(self, raw: bytes, key: int, kind: _Kind | None) -> None:
        if not raw.strip():
            return
        self._remember()
        keys: list[str] = []
        telling = False
        faults = self._num_faults
        for piece in _pieces(raw.decode("utf-8", "replace")):
            line = parse(piece, self.scanned.num_lines)
            if self._gather(line):
                telling = True
                continue
            lower = line.text.lower()
            if self._telling.search(lower.encode()):
                telling = True
                keys += self._match(line, lower)
        if kind is None:
            kind = _Kind(_MAX_PER_KIND if telling else 0)
            self._learn(key, kind)
        kind.allowed -= 1
        if keys and not kind.keys:
            kind.allowed, kind.keys = _MAX_MATCHING, tuple(keys)
            if "progress" in keys and len(self._progress) < _MAX_PROGRESS_KINDS:
                kind.recent = deque(maxlen=_RECENT)
                self._progress.append(kind)
        if self._num_faults > faults and self._again < _MAX_AGAIN:
            self._look_for_progress()

    @property
    def _num_faults(self) -> int:
        return self._named + len(self.scanned.tracebacks.raised)

    def _look_for_progress(self) -> None:
        """Examine progress after each fault, which shows whether the run ended there."""
        self._again += 1
        for kind in self._progress:
            kind.allowed = max(kind.allowed, _MAX_AFTER)

    def _remember(self) -> None:
        """Keep the unremarkable lines directly before an examined one as tails."""
        for number, raw in self._silent:
            self._keep(parse(raw.decode("utf-8", "replace"), number))
        self._silent.clear()

    def _keep(self, line: Line) -> None:
        tails = self.scanned.tails
        if line.source in tails or len(tails) < _MAX_SOURCES:
            tails.setdefault(line.source, deque(maxlen=_TAIL_LINES)).append(line)

    def _gather(self, line: Line) -> bool:
        """Keep lines of tracebacks and tails; return whether paceline itself printed the line."""
        scanned = self.scanned
        if self._report.feed(line):
            return True
        if line.rank:
            scanned.ranks.add(line.rank)
            scanned.counts["labelled-rank"] += 1
        scanned.tracebacks.feed(line)
        self._keep(line)
        return False

    def _match(self, line: Line, lower: str) -> list[str]:
        """Collect the signatures that match a line; return their keys."""
        scanned = self.scanned
        in_warning = "warning: " in lower and _PYTHON_WARNING.search(line.text) is not None
        matched: list[Signature] = []
        for signature in signatures():
            groups = signature.match(line.text, lower)
            if groups is None or (in_warning and not _counts_in_warning(signature)):
                continue
            matched.append(signature)
            if len(scanned.matches) < _MAX_MATCHES:
                scanned.matches.append(Match(signature, groups, line))
        keys = [signature.key for signature in matched]
        scanned.counts.update(keys)
        if any(signature.name for signature in matched):
            self._named += 1
        elif len(scanned.errors) < _MAX_ERRORS and _shows_error(line):
            scanned.errors.append(line)
        return keys


def _counts_in_warning(signature: Signature) -> bool:
    """Return whether a signature also counts in a Python warning; notes and remarks do."""
    is_fault = signature.name and signature.tier is not Tier.REMARK
    return signature.in_warning or not is_fault


def _shows_error(line: Line) -> bool:
    """Return whether a line mentions any error."""
    return _ERROR.search(line.text) is not None and _NO_ERROR.search(line.text) is None


_PYTHON_WARNING = re.compile(
    r"\b(?:User|Future|Deprecation|Runtime|Resource|Import|Syntax|\w*Dependency)Warning: "
)
_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|Fatal|panic)\b|\b[Ee]rror:|(?:[A-Za-z]Error|Exception)\b|[Ff]ailed\b|\bfailure\b"
    r"|core dumped"
    r"|\[E\d* ?[\d:. ]*\w+\.cpp|NCCL WARN|[Aa]n error occurred|now abort\b|[Aa]borted\b"
    r"|\bcannot\b|terminate called|\bfatal\b"
)
_NO_ERROR = re.compile(
    r"NCCL INFO|not a git repository|\(autoscaler |^\[W|gai error|\bWARN(?:ING)?\b|\b0"
    r" (?:errors|failed)|[Ww]arning|ERROR_HANDLING|error[_ ]rate"
    r"|(?:absolute|squared|relative|mean|test|val\w*|train\w*)[_ ]error"
    r"|\braise [A-Z]|No error|without error|errors?[=:] ?0\b|failed[=:] ?0\b"
)


# In addition to the signatures' anchors: words in exceptions, tracebacks, errors of any kind and
# paceline's own reports.
_WORDS = (
    'error|exception|fatal|failed|failure|abort|traceback|file "|panic|critical|cannot|core'
    " dumped|interrupt|exit|.exc.|timeout|refused|conflict|killed|terminate called|most recent"
    " call|paceline|cause: |warning |hint |   ["
)


@cache
def _telling() -> re.Pattern[bytes]:
    """Return a pattern for bytes in lower case; a line without a match cannot match a signature.

    Of each anchor the longest piece without digits is used, so that lines of one kind either all
    match or none does.
    """
    of_signatures = {
        max(_DIGITS.split(anchor), key=len)
        for signature in signatures()
        for anchor in signature.anchor
    }
    needed: list[str] = []
    for word in sorted(of_signatures.union(_WORDS.split("|"), anchors()), key=len):
        if not any(shorter in word for shorter in needed):
            needed.append(word)
    return re.compile(_alternatives(sorted(needed)).encode())


def _alternatives(words: Sequence[str]) -> str:
    """Return a pattern for sorted words that shares their prefixes, which is many times faster."""
    if not words[0]:
        return ""
    grouped = groupby(words, itemgetter(0))
    branches = [
        re.escape(first) + _alternatives([word[1:] for word in rest]) for first, rest in grouped
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _field(text: str) -> str:
    """Return the last field of a line of CSV, if it is quoted and the others name no error."""
    before, quote, field = text.partition(',"')
    is_quoted = bool(quote) and field.endswith('"') and " " not in before.partition(",")[0]
    return field[:-1].replace('""', '"') if is_quoted and not _ERROR.search(before) else text


def _record(text: str) -> list[str]:
    """Return the text of a structured log record with its rank as label; empty for other JSON."""
    try:
        record = json.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    texts = [value for value in record.values() if isinstance(value, str)]
    message = next((record[key] for key in _MESSAGE_KEYS if key in record), None)
    if not isinstance(message, str):
        message = max(texts, key=len, default="")
    rank = next((record[key] for key in _RANK_KEYS if key in record), None)
    is_labelled = message.startswith("[rank")
    label = f"[rank{rank}]: " if isinstance(rank, int) and not is_labelled else ""
    message = message.encode("utf-8", "replace").decode()  # JSON may hold halves of characters
    return [label + line for line in message.splitlines() if line.strip()][:_MAX_PIECES]


def _pieces(text: str) -> list[str]:
    """Return the lines escaped in a line of JSON, as in torch's error files, or the line itself."""
    if text.startswith('{"') and (record := _record(text)):
        return record
    text = _field(text)
    has_traceback = any(sign in text for sign in ("Traceback", 'File \\"', '"message"'))
    if "\\n" not in text or not has_traceback:
        message = re.match(r'^\s*"message": *"(.*?)"?,?\s*$', text)
        return [message[1]] if message else [text]
    for broken in ('"py_callstack": "', '"message": "', '"message": {', '"extraInfo": {'):
        text = text.replace(broken, "\n")
    pieces = [piece for piece in _ESCAPED.sub("\n", text).split("\n") if piece.strip()]
    return [piece.replace('\\"', '"') for piece in pieces[:_MAX_PIECES]]
