"""Check a training script: parse it once, run each check, sort the findings by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.diagnose.lint.program import Program
from paceline.diagnose.lint.python import (
    collectives,
    data,
    devices,
    evaluation,
    names,
    optimisation,
    saving,
)
from paceline.diagnose.lint.python.expectations import expectations
from paceline.diagnose.lint.python.reading import read
from paceline.diagnose.lint.python.script import Script
from paceline.errors import Finding

Check = Callable[[Script], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    collectives.collective_in_rank_block,
    data.set_epoch_missing,
    data.sampler_missing,
    data.shuffle_with_sampler,
    data.download_on_global_rank_only,
    data.workers_not_persistent,
    saving.save_on_every_rank,
    saving.save_wrapped_model,
    evaluation.evaluation_not_reduced,
    evaluation.evaluation_padded,
    devices.device_not_set,
    devices.local_rank_argument_unknown,
    optimisation.accumulation_syncs_every_step,
    optimisation.scheduler_stepped_n_times,
    optimisation.learning_rate_not_scaled,
    names.method_does_not_exist,
    names.deprecated_name,
    names.names_not_judged,
)


def judge(source: str, name: str) -> list[Finding]:
    """Return the findings of a training script, in the order of its lines.

    Args:
        source: The text of the file.
        name: Its path as typed; findings are placed at ``name:line``.

    Returns:
        The findings; a single one if the text is not Python.
    """
    return examine(source, name)[0]


def examine(source: str, name: str) -> tuple[list[Finding], Program | None]:
    """Return the findings of a training script, and what the script expects of the job that starts
    it.

    Args:
        source: The text of the file.
        name: Its path as typed.

    Returns:
        The same findings as `judge`, and the expectations, None if the text is not a training
        script.
    """
    script = read(source, name)
    if isinstance(script, Finding):
        return [script], None
    if script is None:
        return [], None
    return _findings(script), expectations(script)


def _findings(script: Script) -> list[Finding]:
    findings = {
        (finding.name, finding.where): finding for check in CHECKS for finding in check(script)
    }
    return sorted(findings.values(), key=lambda finding: int(finding.where.rpartition(":")[2]))
