"""Find the likely cause of a failure in the text of a log.

``explain`` reads a file or standard input, ``judge`` takes lines. ``signatures`` (beside this
package) holds the known texts as data, ``scan`` matches each line once, ``candidates`` turns
matches into possible causes, ``inference`` lists the rules that combine several lines, ``survived``
and ``pairs`` say which of them explains another, and ``ranking`` orders the rest by their tiers.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.diagnose.explain.answer import Answer

__all__ = ["explain"]


def explain(subject: str) -> Answer:
    """Explain a log file or a run folder.

    Args:
        subject: Path of a file or of a run folder, or ``-`` for standard input.

    Raises:
        UsageError: The file does not exist or is not text.
    """
    from paceline.diagnose.explain import compressed, folder, reading

    answer = folder.outcome(subject)
    if answer is not None:
        return answer
    with reading.open_subject(subject) as file, compressed.unpacked(file, subject) as stream:
        from paceline.diagnose.explain import (  # import only once the file exists: this is slow
            ranking,
            scan,
        )

        scanner = scan.Scanner()
        for lines in reading.split(reading.chunks(stream, subject)):
            scanner.feed(lines)
    return ranking.judge_scanned(scanner.finish())


def judge(lines: Iterable[str]) -> Answer:
    """Explain the lines of a log."""
    from paceline.diagnose.explain import ranking, reading, scan

    scanner = scan.Scanner()
    text = "\n".join(lines).encode("utf-8", "replace")
    for some in reading.split([text]):
        scanner.feed(some)
    return ranking.judge_scanned(scanner.finish())
