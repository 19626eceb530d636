"""What is said about a trial, and how it ended."""

import json
from pathlib import Path

import pytest

from paceline.measure import trial
from paceline.measure.trial import Trial

TRIAL = Trial(("train.py", "--lr", "0.1"), 2, 20, Path("trials/a"), options=("--module",))
TIMED = {3: {0: (1,) * 6, 1: (1,) * 6}}


@pytest.mark.parametrize(
    ("status", "counts", "timed", "name", "words"),
    [
        (0, (20, 20), TIMED, None, ""),
        (0, (20, 20), {}, "trial-without-steps", "none of them could be timed"),
        (0, (0, 0), {}, "trial-without-steps", "ended without an optimizer step"),
        (0, (), {}, "trial-without-steps", "ended without an optimizer step"),
        (0, (20, 7), TIMED, "trial-too-short", "ended after 7 of 20"),
        (1, (20, 20), TIMED, "trial-failed", "train.py on 2 ranks failed"),
        (None, (3, 3), {}, "trial-too-slow", "made 3 of 20 optimizer steps in 600 s"),
    ],
)
def test_what_is_wrong_with_a_trial_is_named(status, counts, timed, name, words):
    finding = trial.judge(TRIAL, exit_status=status, report={}, counts=counts, steps=timed)
    assert (finding and finding.name) == name
    assert finding is None or words in finding.what


def test_a_failure_has_the_cause_that_the_run_found():
    cause = {"name": "cuda-oom", "what": "rank 1 is out of memory", "evidence": ["a", "b"]}
    finding = trial.judge(
        TRIAL, exit_status=1, report={"findings": [cause]}, counts=(3, 3), steps={}
    )
    assert "cuda-oom: rank 1 is out of memory" in finding.evidence[0]
    assert finding.fix == "paceline run --nproc-per-node 2 --module train.py --lr 0.1"


@pytest.mark.parametrize(
    ("reached", "words"), [(3, "--steps"), (0, "paceline run --nproc-per-node")]
)
def test_a_trial_without_a_step_in_time_is_to_be_run_and_not_shortened(reached, words):
    finding = trial.judge(TRIAL, exit_status=None, report={}, counts=(reached,) * 2, steps={})
    assert words in finding.fix


def test_the_report_is_the_last_object_on_stdout():
    report = {"exit_status": 0, "findings": []}
    assert trial.report_in('{"loss": 1}\nhello\n' + json.dumps(report) + "\n") == report
    assert trial.report_in("no module named torch\n") == {"output": "no module named torch\n"}
