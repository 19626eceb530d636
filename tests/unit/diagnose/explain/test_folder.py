"""A run folder tells how its run ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paceline.diagnose.explain import explain
from paceline.errors import Finding, UsageError

RAISED = Finding(
    "script-error-on-one-rank", "rank 1 raised ValueError: bad label 12", where="rank 1 on node-a"
)
SLOW = Finding("straggler", "node-b is slower by 1.4", severity="warning")


def told(folder, *events):
    lines = [
        json.dumps({"version": 1, "time_ns": place, "node": 0, **event})
        for place, event in enumerate(events)
    ]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")


def ended(status, *findings):
    return {
        "kind": "outcome",
        "exit_status": status,
        "findings": [each.to_json() for each in findings],
        "summary": {},
    }


@pytest.mark.parametrize("name", ["", "events.jsonl"])
def test_a_failed_run_is_told_as_its_launcher_told_it(tmp_path, name):
    told(tmp_path, {"kind": "start"}, ended(1, RAISED))
    answer = explain(str(tmp_path / name))
    assert answer.findings == (RAISED,)
    assert answer.exit_status == 1


def test_of_several_starts_the_last_counts(tmp_path):
    told(tmp_path, ended(1, RAISED), ended(0, SLOW))
    answer = explain(str(tmp_path))
    assert [each.name for each in answer.findings] == ["no-error-in-log", "straggler"]
    assert answer.exit_status == 0
    assert "followed from it" not in answer.render()


def test_a_warning_did_not_follow_from_the_fault_that_came_after_it(tmp_path):
    told(tmp_path, ended(1, RAISED, SLOW))
    log = tmp_path / "run.log"
    log.write_text(
        f"paceline: {SLOW.render()}\nstep 3\ntorch.OutOfMemoryError: CUDA out of memory\n"
    )
    for subject, first in ((tmp_path, RAISED.name), (log, "cuda-oom")):
        answer = explain(str(subject))
        assert [each.name for each in answer.findings] == [first, "straggler"]
        assert "Also in the text:\n  straggler: " in answer.render()
        assert "followed from it" not in answer.render()


@pytest.mark.parametrize(
    ("severity", "shown"), [("error", "warning"), ("warning", "warning"), ("hint", "hint")]
)
def test_a_run_that_ended_well_has_no_error(tmp_path, severity, shown):
    told(tmp_path, ended(0, replace(SLOW, severity=severity)))
    answer = explain(str(tmp_path))
    assert [finding.severity for finding in answer.findings] == ["hint", shown]
    assert answer.exit_status == 0


@pytest.mark.parametrize("name", ["data-bound", "communication-bound", "memory-grows"])
def test_a_hint_in_a_log_is_no_fault(tmp_path, name):
    log = tmp_path / "log"
    hint = Finding(name, "waiting for it 71% of a step", severity="hint")
    log.write_text(f"epoch 0: loss 1.4\npaceline: {hint.render()}\n")
    answer = explain(str(log))
    assert [finding.name for finding in answer.findings] == [name]
    assert answer.exit_status == 0


def test_an_outcome_before_the_last_start_does_not_count(tmp_path):
    told(
        tmp_path, {"kind": "start", "attempt": 0}, ended(1, RAISED), {"kind": "start", "attempt": 1}
    )
    with pytest.raises(UsageError, match="has not ended"):
        explain(str(tmp_path))


def test_a_finding_that_is_not_understood_hides_no_other(tmp_path):
    told(tmp_path, {**ended(1, RAISED), "findings": [{"code": 1}, RAISED.to_json()]})
    assert explain(str(tmp_path)).findings == (RAISED,)


def test_a_run_without_an_end_names_its_logs(tmp_path):
    told(tmp_path, {"kind": "start"})
    (tmp_path / "events.node-001.jsonl").write_text('{"kind": "outco')
    with pytest.raises(UsageError, match=r"rank-\*\.out"):
        explain(str(tmp_path))


def test_another_folder_is_no_run(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        explain(str(tmp_path))
