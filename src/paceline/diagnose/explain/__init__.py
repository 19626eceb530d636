"""From the text of a log to the likely cause.

Doors: ``explain`` reads a file or standard input, ``judge`` takes lines. Signatures are data (``signatures``), a line
is looked at once (``scan``), what several lines say together is inferred (``inference``), and tiers decide what goes
first (``ranking``).
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.diagnose.explain.answer import Answer

__all__ = ["explain"]


def explain(subject: str) -> Answer:
    """Return what a log says.

    Args:
        subject: Path of a file or of a run folder, or ``-`` for standard input.

    Raises:
        UsageError: There is no such file, or it is not text.
    """
    from paceline.diagnose.explain import compressed, folder, reading

    told = folder.outcome(subject)
    if told is not None:
        return told
    with reading.open_subject(subject) as file, compressed.unpacked(file, subject) as stream:
        from paceline.diagnose.explain import (  # not before the file is known to be there: they take a while
            ranking,
            scan,
        )

        scanner = scan.Scanner()
        for lines in reading.split(reading.chunks(stream, subject)):
            scanner.feed(lines)
    return ranking.judge_scanned(scanner.finish())


def judge(lines: Iterable[str]) -> Answer:
    """Return what lines of a log say."""
    from paceline.diagnose.explain import ranking, reading, scan

    scanner = scan.Scanner()
    text = "\n".join(lines).encode("utf-8", "replace")
    for some in reading.split([text]):
        scanner.feed(some)
    return ranking.judge_scanned(scanner.finish())
