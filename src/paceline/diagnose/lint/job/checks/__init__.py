"""The checks of a job script: each takes a case and yields findings."""

from __future__ import annotations

from paceline.diagnose.lint.job.checks import (
    array,
    directives,
    environment,
    program,
    rendezvous,
    resources,
    shell,
    signals,
    start,
    submit,
    tasks,
)

__all__ = ["CHECKS"]

CHECKS = tuple(
    check
    for module in (
        directives,
        start,
        tasks,
        resources,
        rendezvous,
        shell,
        signals,
        environment,
        array,
        program,
        submit,
    )
    for check in module.CHECKS
)
