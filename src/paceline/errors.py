"""The shape of bad news: the Finding, and the exceptions that carry one.

    PacelineError
    ├── UsageError      the command cannot be run as typed                      (exit status 2)
    ├── SetupError      this machine or environment cannot do what was asked    (exit status 2)
    └── RunError        something that was running failed                       (exit status 1)

Standard library only: login nodes read this without torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from paceline.codes import CODES

ErrorT = TypeVar("ErrorT", bound="PacelineError")

# Exit statuses of the command; a run ended by a signal has 128 + signal.
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_MISUSE = 2
EXIT_UNFINISHED = 75  # stopped early with a checkpoint, resumable (sysexits.h: EX_TEMPFAIL)

SEVERITIES = ("error", "warning", "hint")
TRACEBACK = "traceback: "  # starts a fix that only points to the rest of the traceback


@dataclass(frozen=True)
class Finding:
    """One piece of bad news, in the shape that every command prints.

    Attributes:
        name: The fault in kebab-case, one of ``paceline.codes.CODES``; it never names the cure.
        what: What happened, in one sentence.
        where: Rank, host, ``file:line``, option or variable; empty without a place.
        evidence: Lines that support the finding.
        why: Why it matters, in one line; empty if the fault makes it clear.
        fix: One line to paste, or one thing to do.
        severity: ``"error"``, ``"warning"`` or ``"hint"``.
    """

    name: str
    what: str
    where: str = ""
    evidence: tuple[str, ...] = ()
    why: str = ""
    fix: str = ""
    severity: str = "error"

    def __post_init__(self) -> None:
        if self.name not in CODES:
            raise ValueError(f"unknown name of a finding: {self.name!r}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"unknown severity: {self.severity!r}")

    @property
    def code(self) -> str:
        """The stable code of the name, for example ``NET001``."""
        return CODES[self.name]

    @property
    def advice(self) -> str:
        """The line with the fix; empty without one. A traceback's place is not called a fix."""
        return self.fix if not self.fix or self.fix.startswith(TRACEBACK) else f"fix: {self.fix}"

    @property
    def more(self) -> str:
        """The line that refers to the page of the finding, for reports that end with it."""
        return f"more: paceline explain {self.code}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as the dictionary that ``--json`` prints."""
        return {"code": self.code, **asdict(self), "evidence": list(self.evidence)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        """Build the finding from the output of ``to_json``."""
        fields = {key: value for key, value in values.items() if key != "code"}
        return cls(**{**fields, "evidence": tuple(values["evidence"])})

    def render(self) -> str:
        """Return the finding as text: what, where, evidence, why, fix, reference to its page."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.severity} {self.code} {self.name}: {self.what}"
        if self.where:
            yield f"  where: {self.where}"
        for line in self.evidence:
            yield f"  {line}"
        if self.why:
            yield f"  why: {self.why}"
        if self.advice:
            yield f"  {self.advice}"
        yield f"  {self.more}"


@dataclass(frozen=True)
class Notice:
    """A fact worth knowing about a run, without code, severity or effect on the exit status."""

    what: str  # the fact, in one sentence
    details: tuple[str, ...] = ()  # lines that support it
    advice: str = ""  # what the user can do, in one line; empty if there is nothing to do

    def to_json(self) -> dict[str, Any]:
        """Return the notice as a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Notice:
        """Build the notice from the output of ``to_json``."""
        return cls(values["what"], tuple(values["details"]), values["advice"])

    def render(self) -> str:
        """Return the notice as text, one line for each part."""
        advice = (f"  {self.advice}",) if self.advice else ()
        details = (f"  {line}" for line in self.details)
        return "\n".join((f"notice: {self.what}", *details, *advice))


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity: errors, warnings, hints; equal ones keep their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def status_of(findings: Iterable[Finding]) -> int:
    """Return a checking command's exit status: 1 if a finding is an error, else 0."""
    return EXIT_FAILED if any(finding.severity == "error" for finding in findings) else EXIT_OK


class PacelineError(Exception):
    """Base of all exceptions that paceline raises for a user; carries a Finding.

    Attributes:
        found_by_all: Whether all processes of the same start find the same fault.
        reported_elsewhere: Whether another process prints this error to the same output.
    """

    exit_status = EXIT_FAILED
    found_by_all = False
    reported_elsewhere = False

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.render())
        self.finding = finding

    @classmethod
    def of(
        cls: type[ErrorT],
        name: str,
        what: str,
        *,
        where: str = "",
        evidence: tuple[str, ...] = (),
        why: str = "",
        fix: str = "",
        severity: str = "error",
    ) -> ErrorT:
        """Return the error that carries ``Finding(name, what, ...)``."""
        return cls(Finding(name, what, where, evidence, why, fix, severity))


class UsageError(PacelineError):
    """The command or call cannot be carried out as written."""

    exit_status = EXIT_MISUSE


class SetupError(PacelineError):
    """This machine or environment cannot do what was asked."""

    exit_status = EXIT_MISUSE


class RunError(PacelineError):
    """Something that was running failed."""

    exit_status = EXIT_FAILED


def option_invalid(
    what: str,
    *,
    where: str = "command line",
    evidence: tuple[str, ...] = (),
    why: str = "",
    fix: str = "",
) -> UsageError:
    """Return the error for a value that an option or an argument does not take."""
    return UsageError.of("option-invalid", what, where=where, evidence=evidence, why=why, fix=fix)


def option_contradicted(
    what: str, *, where: str = "command line", why: str = "", fix: str = ""
) -> UsageError:
    """Return the error for options that exclude each other, or have no effect."""
    return UsageError.of("option-contradicted", what, where=where, why=why, fix=fix)


def closest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate nearest to ``word``, or an empty string if none is near."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else ""
