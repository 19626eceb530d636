"""Read back findings that paceline printed into a log. Pure."""

from __future__ import annotations

import re

from paceline.codes import CODES
from paceline.errors import TRACEBACK, Finding
from paceline.signatures.lines import Line

_HEAD = re.compile(
    r"(?:^|\s)(?P<severity>error|warning|hint) (?P<code>[A-Z]{3}\d{3}) (?P<name>[a-z0-9-]+):"
    r" (?P<what>.*)$"
)
# The first and the last line of the final report.
_ACCOUNT = re.compile(
    r"^(?:(?:(?:likely )?cause|hang): )?(?P<what>.*\S) {3}\[(?P<code>[A-Z]{3}\d{3})"
    r" (?P<name>[a-z0-9-]+)\]$"
)
# A shortened line: only the reference below it has the code.
_LONG = re.compile(r"^(?:(?:likely )?cause|hang): (?P<what>.*…)$")
_CLOSING = re.compile(r"^exit status \d+\b.*run folder")
_FIELD = re.compile(r"^ {2}(?P<field>where|why|fix): (?P<value>.*)$")
_OWN = re.compile(r"^(?:paceline: |── paceline )")
_DIGIT = re.compile(r"\d")
_MAX_EVIDENCE = 12
_MAX_FOREIGN = 20  # lines of other writers inside a report
_MAX_AFTER = 8  # lines of a final report after its reference: other ranks, how to resume


class Reader:
    """Collects the output of ``Finding.render`` and of final reports.

    Attributes:
        told_until: Last line number of the last final report; -1 without one.
    """

    def __init__(self) -> None:
        self.told_until = -1
        self._found: list[tuple[int, Finding]] = []
        self._head: tuple[int, re.Match[str]] | None = None
        self._label = ""
        self._account = False
        self._left = 0
        self._complete = False
        self._code = ""
        self._fields: dict[str, str] = {}
        self._evidence: list[str] = []

    @property
    def open(self) -> bool:
        """Whether a report is being read."""
        return self._head is not None

    def feed(self, line: Line) -> bool:
        """Process a line; return whether it belongs to a report."""
        head = _HEAD.search(line.body)
        account = (
            head is None
            and (head := _ACCOUNT.match(line.body) or _LONG.match(line.body)) is not None
        )
        if head is not None and (
            "name" not in head.groupdict() or CODES.get(head["name"]) == head["code"]
        ):
            self._begin(line, head, account=account)
            return True
        if _OWN.match(line.body):
            return True
        return self._head is not None and self._take(line)

    def finish(self) -> list[tuple[int, Finding]]:
        """Return the findings with the line numbers of their first lines."""
        self._close()
        return self._found

    def _begin(self, line: Line, head: re.Match[str], *, account: bool) -> None:
        self._close()
        self._head = (line.number, head)
        self._label = _shape(line.text[: len(line.text) - len(line.body)])
        self._account, self._complete, self._left = account, False, _MAX_FOREIGN
        if account:
            self.told_until = line.number

    def _take(self, line: Line) -> bool:
        """Process a line of the report, or a line of another writer inside it."""
        own = _shape(line.text[: len(self._label)]) == self._label
        text = line.text[len(self._label) :] if own else line.text
        self._left -= 1
        if self._complete or (own and self._account and _CLOSING.match(text)):
            self.told_until = line.number
            if _CLOSING.match(text) or self._left <= 0:
                self._close()
        elif not own or not text.startswith("  "):
            if self._left <= 0 or not self._account:
                self._close()
            return False
        elif text.startswith("  more: "):
            self._finish_fields(text.rpartition(" ")[2])
        elif text.strip().startswith(TRACEBACK):
            self._fields.setdefault("fix", text.strip())
        elif field := _FIELD.match(text):
            self._fields.setdefault(field["field"], field["value"])
        elif len(self._evidence) < _MAX_EVIDENCE:
            self._evidence.append(text.strip())
        return True

    def _finish_fields(self, code: str) -> None:
        self._code = code
        if self._account:
            self._complete, self._left = True, _MAX_AFTER
        else:
            self._close()

    def _close(self) -> None:
        if self._head is not None and len(self._found) < 64:
            number, head = self._head
            groups = head.groupdict()
            name = groups.get("name") or next(
                (name for name, code in CODES.items() if code == self._code), ""
            )
            if name:
                severity = groups.get("severity") or "error"
                finding = Finding(
                    name, groups["what"], evidence=tuple(self._evidence), severity=severity
                )
                self._found.append((number, Finding(**{**finding.__dict__, **self._fields})))
        self._head, self._fields, self._evidence = None, {}, []


def _shape(label: str) -> str:
    """Return a label without digits, because times differ from line to line."""
    return _DIGIT.sub("0", label)
