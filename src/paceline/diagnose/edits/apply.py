"""Make the edits of files, keep those after which lint finds less, and show or write them."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.diagnose import lint
from paceline.diagnose.edits.lines import edited, lines_of
from paceline.diagnose.lint.files import SourceFile
from paceline.diagnose.lint.report import CheckedFile
from paceline.errors import Finding, SetupError

_NO_NEWLINE = "\n\\ No newline at end of file\n"


@dataclass(frozen=True)
class EditedFile:
    """A file with edits."""

    name: str  # its path as typed
    before: str  # its content
    after: str  # its content with the edits
    removed: tuple[Finding, ...]  # findings that the edits remove, in their order

    @property
    def diff(self) -> str:
        """The edits as a unified diff, for ``git apply`` and ``patch -p1``."""
        path = os.path.relpath(self.name)
        before, after = lines_of(self.before), lines_of(self.after)
        diff = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
        return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in diff)

    def write(self) -> None:
        """Write the file in its place, so that its owner, mode and links stay.

        Raises SetupError if it cannot be written.
        """
        try:
            with open(self.name, "r+b") as file:
                file.write(self.after.encode("utf-8"))
                file.truncate()
        except OSError as error:
            what = f"{self.name} cannot be written: {error.strerror}"
            raise SetupError.of("input-unreadable", what, where=self.name) from None


def edits(names: Sequence[str]) -> Iterator[EditedFile]:
    """Yield the files for which there are edits."""
    for name in names:
        source = lint.read(name)
        # What is not plain UTF-8 would not be the same file after it is written.
        if source.finding is None and source.text.encode("utf-8") == Path(name).read_bytes():
            edited_file = _edit(source)
            if edited_file.removed:
                yield edited_file


def _edit(source: SourceFile) -> EditedFile:
    """Make one edit after the other, as long as each removes a finding and adds none."""
    text, removed = source.text, []
    checked = lint.check_text(source.name, text)
    while (step := next(_steps(checked, text), None)) is not None:
        checked, text, finding = step
        removed.append(finding)
    return EditedFile(source.name, source.text, text, tuple(removed))


def _steps(checked: CheckedFile, text: str) -> Iterator[tuple[CheckedFile, str, Finding]]:
    """Yield the edits that help: the file as it is checked then, its text, the finding removed."""
    names = Counter(finding.name for finding in checked.findings)
    for finding in checked.sorted_findings:
        after = edited(text, finding, checked.script)
        if after is None or after == text:
            continue
        remaining = lint.check_text(checked.name, after)
        if Counter(other.name for other in remaining.findings) < names:
            yield remaining, after, finding
