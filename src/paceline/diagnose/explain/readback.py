"""Read back findings that paceline printed into a log. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from paceline.codes import CODES
from paceline.errors import TRACEBACK, Finding
from paceline.signatures.lines import Line

_HEAD = re.compile(
    r"(?:^|\s)(?P<severity>error|warning|hint) (?P<code>[A-Z]{3}\d{3}) (?P<name>[a-z0-9-]+):"
    r" (?P<what>.*)$"
)
# The first and the last line of the final report.
_FINAL_HEAD = re.compile(
    r"^(?:(?:(?:likely )?cause|hang): )?(?P<what>.*\S) {3}\[(?P<code>[A-Z]{3}\d{3})"
    r" (?P<name>[a-z0-9-]+)\]$"
)
# A shortened line: only the reference below it has the code.
_LONG = re.compile(r"^(?:(?:likely )?cause|hang): (?P<what>.*…)$")
_CLOSING = re.compile(r"^exit status \d+\b.*run folder")
_FIELD = re.compile(r"^ {2}(?P<field>where|why|fix): (?P<value>.*)$")
_OWN = re.compile(r"^(?:paceline: |── paceline )")
_DIGIT = re.compile(r"\d")
_NAMES = {code: name for name, code in CODES.items()}
_MAX_EVIDENCE = 12
_MAX_FINDINGS = 64
_MAX_FOREIGN = 20  # lines of other writers inside a report
_MAX_AFTER = 8  # lines of a final report after its reference: other ranks, how to resume


class Reader:
    """Collects the output of ``Finding.render`` and of final reports."""

    def __init__(self) -> None:
        self.report_end = -1  # last line number of the last final report; -1 without one
        self._findings: list[tuple[int, Finding]] = []
        self._head: tuple[int, re.Match[str]] | None = None
        self._label = ""
        self._is_final = False  # whether it is a final report
        self._is_complete = False  # whether the finding of a final report was read
        self._remaining = 0  # lines that may still be read
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
        is_final = head is None
        if is_final:
            head = _FINAL_HEAD.match(line.body) or _LONG.match(line.body)
        if head is not None and _has_known_code(head):
            self._begin(line, head, is_final=is_final)
            return True
        if _OWN.match(line.body):
            return True
        return self.open and self._continue(line)

    def finish(self) -> list[tuple[int, Finding]]:
        """Return the findings with the line numbers of their first lines."""
        self._close()
        return self._findings

    def _begin(self, line: Line, head: re.Match[str], *, is_final: bool) -> None:
        self._close()
        self._head = (line.number, head)
        self._label = _shape(line.text[: len(line.text) - len(line.body)])
        self._is_final, self._is_complete, self._remaining = is_final, False, _MAX_FOREIGN
        if is_final:
            self.report_end = line.number

    def _continue(self, line: Line) -> bool:
        """Process a line of the report, or a line of another writer inside it."""
        own = _shape(line.text[: len(self._label)]) == self._label
        text = line.text[len(self._label) :] if own else line.text
        self._remaining -= 1
        is_closing = _CLOSING.match(text) is not None
        if self._is_complete or (own and self._is_final and is_closing):
            self.report_end = line.number
            if is_closing or self._remaining <= 0:
                self._close()
            return True
        if own and text.startswith("  "):
            self._read_field(text)
            return True
        if self._remaining <= 0 or not self._is_final:
            self._close()
        return False

    def _read_field(self, text: str) -> None:
        """Process an indented line of the report: a field, its reference, or evidence."""
        field = _FIELD.match(text)
        if text.startswith("  more: "):
            self._finish_fields(text.rpartition(" ")[2])
        elif text.strip().startswith(TRACEBACK):
            self._fields.setdefault("fix", text.strip())
        elif field is not None:
            self._fields.setdefault(field["field"], field["value"])
        elif len(self._evidence) < _MAX_EVIDENCE:
            self._evidence.append(text.strip())

    def _finish_fields(self, code: str) -> None:
        self._code = code
        if self._is_final:
            self._is_complete, self._remaining = True, _MAX_AFTER
        else:
            self._close()

    def _close(self) -> None:
        if self._head is not None and len(self._findings) < _MAX_FINDINGS:
            number, head = self._head
            finding = self._finding(head.groupdict())
            if finding is not None:
                self._findings.append((number, finding))
        self._head, self._fields, self._evidence = None, {}, []

    def _finding(self, groups: Mapping[str, str | None]) -> Finding | None:
        """Return the finding that was read; None if its name is unknown."""
        name = groups.get("name") or _NAMES.get(self._code)
        if not name:
            return None
        return Finding(
            name,
            groups["what"] or "",
            where=self._fields.get("where", ""),
            evidence=tuple(self._evidence),
            why=self._fields.get("why", ""),
            fix=self._fields.get("fix", ""),
            severity=groups.get("severity") or "error",
        )


def _has_known_code(head: re.Match[str]) -> bool:
    """Return whether the name and the code in a first line fit, if it shows them."""
    groups = head.groupdict()
    return "name" not in groups or CODES.get(groups["name"]) == groups["code"]


def _shape(label: str) -> str:
    """Return a label without digits, because times differ from line to line."""
    return _DIGIT.sub("0", label)
