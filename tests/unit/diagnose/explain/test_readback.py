"""paceline's own account of a run is read back as it is, whatever stands around it."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge

ACCOUNT = """\
── paceline ────────────────────────────────────────
cause: rank 1 raised ValueError: bad label 12   [RUN002 script-error-on-one-rank]
  where: rank 1 on n1 (pid 77), before the first step
  /w/bad.py:7 in load: raise ValueError(f"bad label {label}")
  traceback: less runs/x/logs/rank-001.out
  more: paceline explain RUN002
rank 0: stopped because rank 1 failed
exit status 1 · run folder runs/x
"""
OUTPUT = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/bad.py", line 23, in <module>
[rank0]:     dist.barrier()
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:51842.
"""


def labelled(label, text):
    return "".join(label + line + "\n" for line in text.splitlines())


def test_an_inferred_cause_is_read_back_as_one_that_was_seen():
    inferred = ACCOUNT.replace("cause: rank", "likely cause: rank")
    assert judge([inferred]).findings == judge([ACCOUNT]).findings


@pytest.mark.parametrize("before", ["", OUTPUT, "step 1 loss 2.0\n"])
@pytest.mark.parametrize("label", ["", "2026-01-02T03:04:05.678Z ", "node07: ", "0: "])
def test_an_account_is_read_back_whole(before, label):
    answer = judge([labelled(label, before + ACCOUNT)])
    (finding,) = answer.findings
    assert finding.name == "script-error-on-one-rank"
    assert finding.what == "rank 1 raised ValueError: bad label 12"
    assert finding.where == "rank 1 on n1 (pid 77), before the first step"
    assert finding.evidence == ('/w/bad.py:7 in load: raise ValueError(f"bad label {label}")',)
    assert finding.fix == "traceback: less runs/x/logs/rank-001.out"


def test_a_shortened_account_has_its_name_from_the_reference():
    text = ACCOUNT.replace("bad label 12   [RUN002 script-error-on-one-rank]", "x" * 200 + "…")
    (finding,) = judge([text]).findings
    assert finding.code == "RUN002"


def test_output_of_ranks_between_its_lines_is_not_evidence():
    lines = ACCOUNT.splitlines()
    text = "\n".join([*lines[:3], "step 9 loss 1.2", *lines[3:]])
    (finding,) = judge([text]).findings
    assert finding.evidence == ('/w/bad.py:7 in load: raise ValueError(f"bad label {label}")',)


def test_what_comes_after_an_account_counts():
    names = [
        finding.name
        for finding in judge([ACCOUNT + "torch.OutOfMemoryError: CUDA out of memory.\n"]).findings
    ]
    assert set(names) == {"script-error-on-one-rank", "cuda-oom"}
