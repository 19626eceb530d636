"""Find the likely cause of a failure in the text of a log.

``explain`` reads a file or standard input, ``judge`` takes lines. ``signatures`` (beside this
package) holds the known texts as data, ``scan`` matches each line once, ``candidates`` turns
matches into possible causes, ``inference`` lists the rules that combine several lines, ``survived``
and ``pairs`` say which of them explains another, and ``ranking`` orders the rest by their tiers.

    answer       the result of ``explain``: findings, likeliest first, and how they are rendered
    arrivals     infer which workers joined the start of a run, and which are missing or too many
    candidates   turn the matches of a text into candidate faults, each with its tier
    collectives  infer from the lines of several ranks which rank a collective waits for, and why
    compressed   read logs compressed with gzip, xz, bzip2 or zstd, recognized by their first bytes
    exceptions   turn exceptions that no signature matches into candidate faults
    folder       explain a run folder from its recorded events
    inference    infer faults from several lines together, and change the tiers of candidates
    pairs        decide which fault explains another one of the same text, beyond their tiers
    ranking      order candidates, likeliest first, and turn them into findings
    readback     read back findings that paceline printed into a log
    reading      read a path or standard input as lines of bytes, with only a piece of the text in
                 memory
    redaction    replace secrets, people and addresses in texts by labels
    scan         match the lines of a log against the signatures
    survived     decide which faults training survived, so that they are not the cause of a later
                 end
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from paceline.diagnose.explain.answer import Answer
from paceline.errors import Finding

if TYPE_CHECKING:
    from paceline.diagnose.explain.scan import Scanned

__all__ = ["explain", "known_fault", "printed_loss"]


def explain(subject: str) -> Answer:
    """Explain a log file, a run folder, or standard input (``-``)."""
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
            scanner.feed(reading.unwrapped(lines))
    return ranking.judge_scanned(scanner.finish())


def judge(lines: Iterable[str]) -> Answer:
    """Explain the lines of a log."""
    from paceline.diagnose.explain import ranking

    return ranking.judge_scanned(_scanned(lines))


def known_fault(lines: Iterable[str]) -> Finding | None:
    """Return the fault that a signature names in the last words of a rank; None if none does."""
    from paceline.diagnose.explain import ranking

    return ranking.known_fault(_scanned(lines))


def printed_loss(text: str) -> Finding | None:
    """Return the warning that the last losses which a rank printed are NaN or Inf; else None."""
    if not re.search(r"loss\W*[\w(]{0,8}[-+]?(?:nan|inf)\b", text, re.IGNORECASE):
        return None  # most runs: a scan would cost time
    findings = judge(text.splitlines()).findings
    return next((finding for finding in findings if finding.name == "loss-not-finite"), None)


def _scanned(lines: Iterable[str]) -> Scanned:
    from paceline.diagnose.explain import reading, scan

    scanner = scan.Scanner()
    text = "\n".join(lines).encode("utf-8", "replace")
    for some in reading.split([text]):
        scanner.feed(reading.unwrapped(some))
    return scanner.finish()
