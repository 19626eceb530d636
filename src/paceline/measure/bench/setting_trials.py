"""Try settings on the largest number of ranks, in turns with trials without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.measure.bench import rounds, settings
from paceline.measure.bench.request import Request
from paceline.measure.bench.rounds import UNTIMED, Measured
from paceline.measure.bench.settings import Setting, Worth
from paceline.measure.trial import TrialResult
from paceline.measure.trials import Say

_NO_SETTING = Setting("no setting", "")


def measure(
    request: Request,
    measured: Measured,  # at least one of its trials went well
    folder: Path,  # where the run folders of the trials are created
    *,
    offers: Sequence[Setting],
    variables: Mapping[str, str],
    say: Say,  # takes what is measured now; returns what moves the progress bar
) -> list[Worth]:
    """Run the trials of all settings; return what each setting is worth."""
    size = max(measured.results)
    candidates = [_NO_SETTING, *offers]
    results: list[list[TrialResult]] = [[] for _ in candidates]
    for number in range(1, request.rounds + 1):
        for place, setting in enumerate(candidates):
            if any(result.finding is not None for result in results[place]):
                continue  # it would fail again
            run_dir = folder / f"setting-{place}-round-{number}"
            one = rounds.make(request, measured, size, run_dir)
            tick = say(f"{setting.name}, round {number} of {request.rounds}")
            environ = {**variables, **setting.environ}
            results[place].append(rounds.run(replace(one, variables=environ), tick))
    first = UNTIMED + rounds.slow_steps(measured)
    # The trials of the sizes had no setting either; they serve if all of these have failed.
    without = [result for result in results[0] if result.finding is None]
    return [
        settings.judge(setting, of_setting, without or measured.results[size], first=first)
        for setting, of_setting in zip(offers, results[1:], strict=True)
    ]
