"""Bad news has one shape: the Finding, and the exceptions that carry one.

    PacelineError
    ├── UsageError      the command cannot be run as typed                      (exit status 2)
    ├── SetupError      this machine or environment cannot do what was asked    (exit status 2)
    └── RunError        something that was running failed                       (exit status 1)

Standard library only: this is read on login nodes without torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

# Exit statuses of the command, beside 128 + signal for a run that was ended by one.
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_MISUSE = 2
EXIT_UNFINISHED = 75  # stopped before its end with a checkpoint: start again to go on (sysexits.h: EX_TEMPFAIL)

# The names are a contract (they are never renamed); the codes are ours and never reused.
CODES = {
    "option-unknown": "USE001",
    "option-contradicted": "USE002",
    "option-invalid": "USE003",
    "script-missing": "USE004",
    "script-not-python": "USE005",
    "torch-missing": "ENV001",
    "platform-unsupported": "ENV002",
    "folder-not-writable": "ENV003",
    "gpus-fewer-than-processes": "ENV004",
    "rank-env-missing": "ENV005",
    "cuda-in-parent": "ENV006",
    "debug-detail-crashes-ddp": "ENV007",
    "bf16-emulated": "ENV008",
    "disk-full": "ENV009",
    "run-folder-not-shared": "ENV010",
    "port-in-use": "NET001",
    "port-held-by-other": "NET002",
    "port-refused": "NET003",
    "port-filtered": "NET004",
    "hostname-unresolvable": "NET005",
    "master-unreachable": "NET006",
    "rendezvous-timeout": "NET007",
    "c10d-without-rdzv-endpoint": "NET008",
    "world-size-mismatch": "NET009",
    "node-missing": "NET010",
    "duplicate-ranks": "NET011",
    "extra-node": "NET012",
    "late-node": "NET013",
    "address-resolves-differently": "NET014",
    "gloo-loopback": "NET015",
    "interface-missing-on-node": "NET016",
    "interface-not-routed": "NET017",
    "slow-link": "NET018",
    "master-addr-wrong": "NET019",
    "environment-differs": "ENV011",
    "code-differs": "ENV012",
    "clock-skew": "ENV013",
    "user-exception": "RUN001",
    "script-error-on-one-rank": "RUN002",
    "module-not-found": "RUN003",
    "rank-died-signal": "RUN004",
    "rank-died-oom-killer": "RUN005",
    "rank-segfault": "RUN006",
    "rank-ended-early": "RUN007",
    "peer-rank-died": "RUN008",
    "collective-timeout": "RUN009",
    "collective-mismatch": "RUN010",
    "cuda-oom": "RUN011",
    "dataloader-shm-too-small": "RUN012",
    "agent-died": "RUN013",
    "stopped-by-signal": "RUN014",
    "launcher-fault": "RUN015",
    "grace-too-short": "RUN016",
    "run-unfinished": "RUN017",
    "rank-stuck-in-data": "RUN018",
    "rank-stuck-in-code": "RUN019",
    "conditional-collective": "RUN020",
    "uneven-inputs": "RUN021",
    "straggler": "RUN022",
    "non-finite-on-one-rank": "RUN023",
    "replicas-differ": "RUN024",
    "ddp-model-mismatch": "RUN025",
    "sighup-terminal-closed": "RUN026",
    "data-not-shardable": "DAT001",
    "batch-weight-unknown": "DAT002",
    "optimizer-of-other-model": "DAT003",
    "data-changed": "DAT004",
    "gradients-not-averaged": "DAT005",
    "same-order-each-epoch": "DAT006",
    "same-data-on-all-ranks": "DAT007",
    "checkpoint-damaged": "CKP001",
    "checkpoint-other-model": "CKP002",
    "checkpoint-missing": "CKP003",
    "checkpoint-unfinished": "CKP004",
}

SEVERITIES = ("error", "warning", "hint")


@dataclass(frozen=True)
class Finding:
    """One piece of bad news, in the shape that every command prints.

    Attributes:
        name: The fault in kebab-case, one of ``CODES``; the fault, never the cure.
        what: What happened, one sentence.
        where: Rank, host, ``file:line``, option or variable; empty if there is no place.
        evidence: Lines that the finding rests on.
        why: Why it matters, one line; empty if the fault says so itself.
        fix: One line to paste or to do.
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

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain data, as ``--json`` prints it."""
        return {"code": self.code, **asdict(self), "evidence": list(self.evidence)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        """Return the finding that ``to_json`` made."""
        fields = {key: value for key, value in values.items() if key != "code"}
        return cls(**{**fields, "evidence": tuple(values["evidence"])})

    def render(self) -> str:
        """Return the finding as text: what, where, evidence, why, fix."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.severity} {self.code} {self.name}: {self.what}"
        if self.where:
            yield f"  where: {self.where}"
        for line in self.evidence:
            yield f"  {line}"
        if self.why:
            yield f"  why: {self.why}"
        if self.fix:
            yield f"  fix: {self.fix}"


class PacelineError(Exception):
    """Base of everything that paceline raises for a user; carries a Finding."""

    exit_status = EXIT_FAILED

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.render())
        self.finding = finding


class UsageError(PacelineError):
    """The command or call cannot be carried out as written."""

    exit_status = EXIT_MISUSE


class SetupError(PacelineError):
    """This machine or environment cannot do what was asked."""

    exit_status = EXIT_MISUSE


class RunError(PacelineError):
    """Something that was running failed."""

    exit_status = EXIT_FAILED


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to ``word``, or an empty string if none is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else ""
